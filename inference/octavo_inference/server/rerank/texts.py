"""Pairs of texts to score, and the limits on their length."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_inference.server.pooling import input_tokens
from octavo_inference.server.service import Loaded


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and a document. The fields `of_query` and `of_document` of the body have them."""

    query: str
    document: str
    of_query: str
    of_document: str


@dataclass(frozen=True, slots=True)
class Limits:
    """`keep`: the last tokens of each text; `first`: the first tokens of a document. None keeps all."""

    keep: int | None
    first: int | None = None

    def query(self, loaded: Loaded, pair: Pair) -> list[int]:
        """The tokens of the query. Raises `ApiError`."""
        return input_tokens(loaded, pair.query, pair.of_query, self.keep)

    def document(self, loaded: Loaded, pair: Pair) -> list[int]:
        """The tokens of the document. Raises `ApiError`."""
        return input_tokens(loaded, pair.document, pair.of_document, self.keep, first=self.first)

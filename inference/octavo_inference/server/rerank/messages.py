"""The bodies of requests and responses."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from octavo_inference.server.errors import invalid
from octavo_inference.server.pooling import MAX_INPUTS
from octavo_inference.server.prompt_batch import PromptUsage
from octavo_inference.server.prompts import SchedulingFields

MAX_DOCUMENTS = MAX_INPUTS // 2
"""Documents, or pairs of texts, in one request."""

Texts = Annotated[list[str], Meta(min_length=1, max_length=MAX_DOCUMENTS)]


class RelevanceFields(SchedulingFields, forbid_unknown_fields=True, kw_only=True):
    """Fields common to both endpoints. `truncate_prompt_tokens` keeps that many of the last tokens of each text.

    Accepted without effect: `user`.
    """

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None


class ScoreRequest(RelevanceFields):
    """POST /score: one text and one or more others, or as many pairs of texts as each list has."""

    text_1: str | Texts
    text_2: str | Texts

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs to compare. Raises `ApiError`."""
        first, second = _as_list(self.text_1), _as_list(self.text_2)
        if len(first) == 1:
            first *= len(second)
        if len(first) != len(second):
            raise invalid(
                f"text_2: {len(second)} texts for {len(first)} in text_1; give one text_1, or equally many of both.",
                "text_2",
            )
        return list(zip(first, second, strict=True))


class Score(msgspec.Struct, frozen=True):
    """The score of one pair."""

    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreResponse(msgspec.Struct, frozen=True):
    """The scores, in the order of the pairs."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: PromptUsage
    object: Literal["list"] = "list"


class TextDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document as an object."""

    text: str


Documents = Annotated[list[str | TextDocument], Meta(min_length=1, max_length=MAX_DOCUMENTS)]


class RerankRequest(RelevanceFields):
    """POST /rerank. `top_n` limits the results, `return_documents` false leaves the texts out of them.

    `max_tokens_per_doc` keeps that many of the first tokens of each document.
    """

    query: str
    documents: Documents
    top_n: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [document if isinstance(document, str) else document.text for document in self.documents]


class RerankResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """One document: its index in the request, and its relevance."""

    index: int
    relevance_score: float
    document: TextDocument | None = None


class RerankResponse(msgspec.Struct, frozen=True):
    """The results, most relevant first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: PromptUsage


def _as_list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)

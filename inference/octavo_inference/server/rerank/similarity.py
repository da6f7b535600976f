"""Relevance as the cosine similarity of embeddings, from -1 to 1: it works with every model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from octavo_inference.common.vectors import dot, vector_of
from octavo_inference.core.request import Output
from octavo_inference.server.pooling import pooled_requests as requests
from octavo_inference.server.rerank.texts import Limits, Pair
from octavo_inference.server.service import Loaded

__all__ = ["prompts", "requests", "scores"]


def prompts(loaded: Loaded, pairs: Sequence[Pair], limits: Limits) -> list[Callable[[], list[int]]]:
    """Functions of the tokens of each text, which raise `ApiError`. A text in several pairs is computed once."""
    found: dict[tuple[str, str], Callable[[], list[int]]] = {}
    for pair in pairs:
        query, document = _places(pair)
        found.setdefault(query, partial(limits.query, loaded, pair))
        found.setdefault(document, partial(limits.document, loaded, pair))
    return list(found.values())


def scores(outputs: Sequence[Output], pairs: Sequence[Pair]) -> list[float]:
    """The score of each pair, of the outputs of its `prompts`."""
    places: dict[tuple[str, str], int] = {}
    for pair in pairs:
        for place in _places(pair):
            places.setdefault(place, len(places))
    vectors = [vector_of(output.embedding or b"") for output in outputs]
    found = []
    for pair in pairs:
        query, document = (vectors[places[place]] for place in _places(pair))
        found.append(min(1.0, max(-1.0, dot(query, document))))
    return found


def _places(pair: Pair) -> tuple[tuple[str, str], tuple[str, str]]:
    """Keys of its texts. Fields have limits of their own, so equal texts in two fields may differ in tokens."""
    return (pair.of_query, pair.query), (pair.of_document, pair.document)

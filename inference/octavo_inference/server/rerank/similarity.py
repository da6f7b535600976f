"""Cosine similarity of texts by their embeddings: it works with every model."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_inference.common.vectors import dot, vector_of
from octavo_inference.server.pooling import PooledPrompts
from octavo_inference.server.service import Service

Pair = tuple[int, int]
"""Positions of two texts among the prompts."""


async def similarities(service: Service, prompts: PooledPrompts, pairs: Sequence[Pair]) -> list[float]:
    """Cosine similarity of each pair of prompts, from -1 to 1. Raises `ApiError`."""
    pooled = await prompts.vectors()

    def compare() -> list[float]:
        vectors = [vector_of(data) for data in pooled]
        return [min(1.0, max(-1.0, dot(vectors[first], vectors[second]))) for first, second in pairs]

    return await service.work(compare)

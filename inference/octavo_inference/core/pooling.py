"""Sums of hidden states for embeddings, for backends that work on the engine's row table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from octavo_inference.core.gather import Batch
from octavo_inference.core.model_input import Float32, Int32, RowPooling, StepResult

_NO_TOKENS = np.empty(0, np.int32)


def pooled_tokens(pooling: RowPooling | None) -> Int32:
    """The query tokens whose hidden states are needed, entry by entry."""
    if pooling is None:
        return _NO_TOKENS
    return np.concatenate(
        [np.arange(first, end, dtype=np.int32) for first, end in zip(pooling.first, pooling.end, strict=True)]
    )


def add_states(batch: Batch, states: Float32) -> None:
    """Add the hidden states [N, hidden] of the `pooled_tokens` of a batch to its sums, one after another."""
    pooling, sums = batch.pooling, batch.sums
    if pooling is None or sums is None:
        return
    at = 0
    for row, first, end, fresh, _ in zip(*_columns(pooling), strict=True):
        total = sums[row]
        if fresh:
            total[:] = 0
        for state in states[at : at + end - first]:
            total += state
        at += end - first


def with_pooled(result: StepResult, batch: Batch) -> StepResult:
    """The result of a step, with the sums that the step completed."""
    pooling, sums = batch.pooling, batch.sums
    if pooling is None or sums is None:
        return result
    return replace(result, pooled=sums[pooling.row[pooling.done > 0]])


def _columns(pooling: RowPooling) -> tuple[list[int], ...]:
    columns = (pooling.row, pooling.first, pooling.end, pooling.fresh, pooling.done)
    return tuple(column.tolist() for column in columns)

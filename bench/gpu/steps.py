"""Steps for a backend without an engine, all greedy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from octavo_inference.core.model_input import RowChange, RowSamples, RowStep, sampling_columns


def step_of(counts: ArrayLike, lengths: ArrayLike, changes: Sequence[RowChange] = ()) -> RowStep:
    """A step of `counts` query tokens of each row, from the first; `lengths` include them. Each row is sampled."""
    start, end = np.cumsum([0, *np.asarray(counts)], dtype=np.int32), np.asarray(lengths, np.int32)
    rows = np.arange(len(end), dtype=np.int32)
    sample = RowSamples(start[1:] - np.int32(1), rows, end, np.full(len(rows), -1, np.int32), [None] * len(rows))
    return RowStep(list(changes), rows, start, end, sample)


def entered(row: int, tokens: NDArray[np.int32], first: int, blocks: NDArray[np.int32]) -> list[RowChange]:
    """Changes that fill a row of the table: its tokens from the place `first` on, and its blocks."""
    sampling = RowChange("sampling", row, 0, sampling_columns())
    return [RowChange("tokens", row, first, tokens), RowChange("blocks", row, 0, blocks), sampling]

"""Rows of matrices in another order than that of their files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.groups import Groups
from octavo_inference.models.weights import Matrix, Tensor

Rows = NDArray[np.int64]


def select_rows(matrix: Matrix, rows: Rows) -> Matrix:
    """The rows `rows` of a matrix, in this order: a copy of those in memory, others are read where they are."""
    if isinstance(matrix, Tensor):
        return Tensor(matrix.format, (len(rows), *matrix.shape[1:]), matrix.data[rows])
    read = matrix.read

    def selected(start: int, end: int) -> Groups:
        wanted = rows[start:end]
        first = int(wanted.min())
        groups, at = read(first, int(wanted.max()) + 1), wanted - first
        minimum = None if groups.minimum is None else groups.minimum[at]
        return Groups(groups.values[at], groups.scale[at], minimum)

    return replace(matrix, shape=(len(rows), matrix.shape[1]), read=selected)


def half_split(dim: int) -> Rows:
    """The order of `dim` rotated elements that makes pairs of (i, i + dim / 2) from neighbours (2 i, 2 i + 1)."""
    return np.arange(dim).reshape(-1, 2).T.reshape(-1)


def by_head(heads: int, size: int, within: Rows) -> Rows:
    """Rows `within` of each of `heads` parts of `size` rows."""
    return (np.arange(heads)[:, None] * size + within).reshape(-1)

"""Orders of rows: rotary pairs and stacked projections, brought into the order that backends compute in."""

from __future__ import annotations

from dataclasses import replace
from typing import overload

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.groups import GroupedMatrix, Groups, stacked
from octavo_inference.models.weights import Matrix, Tensor, bf16_bits, dequantize

Order = NDArray[np.int64]


def half_split_rows(heads: int, head_dim: int, rotated: int | None = None) -> Order:
    """Row order from rotary pairs (2i, 2i + 1) to (i, i + rotated / 2), for the first `rotated` rows of each head."""
    rotated = rotated or head_dim
    within = np.arange(head_dim)
    within[:rotated] = within[:rotated].reshape(-1, 2).T.reshape(-1)
    return (np.arange(heads)[:, None] * head_dim + within).reshape(-1)


def grouped_rows(groups: int, sizes: tuple[int, int, int], head_dim: int) -> Order:
    """Row order from [groups][q heads, k heads, v heads of the group] to all q, all k, all v.

    `sizes` are the heads of one group: (1, 1, 1) for GPT-NeoX and Bloom, (queries of a key, 1, 1) for Falcon.
    """
    rows = np.arange(groups * sum(sizes) * head_dim).reshape(groups, -1)
    parts = np.split(rows, np.cumsum(sizes)[:2] * head_dim, axis=1)
    return np.concatenate([part.reshape(-1) for part in parts])


def stacked_order(q: Order | None, k: Order | None, rows: tuple[int, int, int]) -> Order | None:
    """The row order of q, k and v, one below the other, from those of q and of k; None: as they are."""
    if q is None and k is None:
        return None
    q_rows, k_rows, v_rows = rows
    q, k = np.arange(q_rows) if q is None else q, np.arange(k_rows) if k is None else k
    return np.concatenate([q, q_rows + k, q_rows + k_rows + np.arange(v_rows)])


@overload
def reordered(matrix: Tensor, order: Order) -> Tensor: ...
@overload
def reordered(matrix: Matrix, order: Order) -> Matrix: ...
def reordered(matrix: Matrix, order: Order) -> Matrix:
    """The matrix whose row i is row order[i]; floats are copied, groups are read when they are needed."""
    if isinstance(matrix, Tensor):
        return Tensor(matrix.format, (len(order), *matrix.shape[1:]), matrix.data[order])
    return _read_reordered(matrix, order)


def _read_reordered(matrix: GroupedMatrix, order: Order) -> GroupedMatrix:
    read = matrix.read

    def rows(start: int, end: int) -> Groups:
        wanted = order[start:end]
        first, last = int(wanted.min()), int(wanted.max()) + 1
        if last - first <= 2 * len(wanted):
            found, at = read(first, last), wanted - first
            minimum = None if found.minimum is None else found.minimum[at]
            return Groups(found.values[at], found.scale[at], minimum)
        # Far apart, as the q rows of stacked heads are: runs of adjacent rows.
        cuts = np.flatnonzero(np.diff(wanted) != 1) + 1
        return stacked([read(int(run[0]), int(run[-1]) + 1) for run in np.split(wanted, cuts)])

    return replace(matrix, shape=(len(order), matrix.shape[1]), read=rows)


def delta_rows(groups: int, *sizes: int) -> Order:
    """Row order from [groups][parts of `sizes` rows] to all of the first part, of the second and so on (Qwen3-Next)."""
    rows = np.arange(groups * sum(sizes)).reshape(groups, -1)
    return np.concatenate([part.reshape(-1) for part in np.split(rows, np.cumsum(sizes)[:-1], axis=1)])


def tiled_heads(groups: int, heads: int) -> Order:
    """Head order from [heads / groups][groups], as GGUF has value heads of Qwen3.5, to adjacent ones of a group."""
    return np.arange(heads).reshape(-1, groups).T.reshape(-1)


def scaled(matrix: Matrix, factors: float | NDArray[np.float32], *, contents: bool = True) -> Matrix:
    """A matrix whose row i is multiplied by factors[i], or all rows by one factor, in its own format.

    Blocks of GGUF become bfloat16. Without `contents` it has its format and size alone.
    """
    each = np.broadcast_to(np.asarray(factors, np.float32), matrix.shape[:1])
    if (each == 1).all() or not contents:
        return matrix
    if isinstance(matrix, GroupedMatrix):
        return _read_scaled(matrix, each)
    values = dequantize(matrix) * each.reshape(-1, *(1,) * (len(matrix.shape) - 1))
    if matrix.format == "f32":
        return Tensor("f32", matrix.shape, values)
    return Tensor("bf16", matrix.shape, bf16_bits(values))


def _read_scaled(matrix: GroupedMatrix, factors: NDArray[np.float32]) -> GroupedMatrix:
    read = matrix.read

    def rows(start: int, end: int) -> Groups:
        found, factor = read(start, end), factors[start:end, None]
        minimum = None if found.minimum is None else found.minimum * factor
        return Groups(found.values, found.scale * factor, minimum)

    return replace(matrix, read=rows)

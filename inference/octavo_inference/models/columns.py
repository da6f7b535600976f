"""Orders of columns: matrices whose inputs come head by head, with the heads in another order."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.ggml_dequant import BlockFormat, split_blocks
from octavo_inference.models.groups import GroupedMatrix, Grouping, Groups, Kind
from octavo_inference.models.rows import Order
from octavo_inference.models.weights import Matrix, Tensor, column_step

Number = TypeVar("Number", bound=np.generic)
# Block formats whose values fit into 4 bits.
_FOUR_BITS = frozenset({"q4_0", "q4_1", "q4_k"})


def moved_columns(matrix: Matrix, order: Order, width: int, *, contents: bool = True) -> Matrix:
    """The matrix whose run i of `width` columns is run order[i]; not of one with a column order of its own.

    A matrix keeps its format if runs are whole blocks. Others become groups, of the same weights. Without `contents` it
    has its format and size alone.
    """
    if isinstance(matrix, GroupedMatrix):
        return _moved_groups(matrix, order, width)
    if width % column_step(matrix):
        return _moved_groups(_groups_of(matrix), order, width)
    if not contents:
        return matrix
    return Tensor(matrix.format, matrix.shape, _runs(matrix.data, order))


def _runs(values: NDArray[Number], order: Order) -> NDArray[Number]:
    return values.reshape(len(values), len(order), -1)[:, order].reshape(values.shape)


def _moved_groups(matrix: GroupedMatrix, order: Order, width: int) -> GroupedMatrix:
    read, group = matrix.read, math.gcd(matrix.grouping.group, width)

    def rows(start: int, end: int) -> Groups:
        found = read(start, end).regrouped(group)
        minimum = None if found.minimum is None else _runs(found.minimum, order)
        return Groups(_runs(found.values, order), _runs(found.scale, order), minimum)

    return replace(matrix, grouping=replace(matrix.grouping, group=group), read=rows)


def _groups_of(matrix: Tensor) -> GroupedMatrix:
    """Blocks as groups, exactly."""
    format_ = cast("BlockFormat", matrix.format)  # floats can be divided between any columns
    data, columns = matrix.data, matrix.shape[1]
    parts = split_blocks(format_, np.zeros_like(data[:1]))
    kind: Kind = "int4" if format_ in _FOUR_BITS else "int8"
    grouping = Grouping(kind, parts.values.shape[2], minimum=parts.minimum is not None)
    shift = np.uint8(grouping.zero - parts.zero)

    def read(start: int, end: int) -> Groups:
        found, count = split_blocks(format_, data[start:end]), end - start
        minimum = None if found.minimum is None else found.minimum.reshape(count, -1)
        return Groups(found.values.reshape(count, columns) + shift, found.scale.reshape(count, -1), minimum)

    return GroupedMatrix(format_.upper(), (matrix.shape[0], columns), grouping, read, (data,))

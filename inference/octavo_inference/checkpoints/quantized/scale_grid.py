"""Scales and zero points of the blocks of a matrix: one for the tensor, for rows, for groups of columns, for tiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.quantized.source import FLOATS, LARGEST_LEVEL, Source, StoredNumbers
from octavo_inference.models.groups import Floats, common_group

ALL_COLUMNS = 1 << 31
"""The columns of a block that has whole rows: more than a matrix has."""


@dataclass(frozen=True, slots=True)
class ScaleGrid:
    """`numbers` [blocks of rows, blocks of columns], read for each row and each group of `group` columns.

    `block_of_row` [rows] and `block_of_group` [columns / group] are indices into it.
    """

    numbers: StoredNumbers
    group: int
    block_of_row: NDArray[np.int64]
    block_of_group: NDArray[np.int64]

    def rows(self, start: int, end: int) -> Floats:
        """The numbers of some rows, [rows, columns / group]."""
        blocks = self.block_of_row[start:end]
        first, last = int(blocks[0]), int(blocks[-1])
        part = self.numbers.rows(first, last + 1)
        if len(part) != len(blocks):
            part = part[blocks - first]
        return part if part.shape[1] == len(self.block_of_group) else part[:, self.block_of_group]


def scale_grid(
    source: Source,
    name: str,
    rows: int,
    columns: int,
    block: tuple[int, int],
    dtypes: tuple[str, ...] = FLOATS,
    times: float = LARGEST_LEVEL,
) -> ScaleGrid:
    """The numbers of `block` rows and columns, of which the last may be smaller.

    One for the whole tensor may be a scalar, and one for each part of a fused layer a vector; one for each row may be
    a vector. Raises `ModelError` for another shape or type, and for numbers that are not finite, also multiplied by
    `times`.
    """
    height, width = min(block[0], max(rows, 1)), min(block[1], max(columns, 1))
    grid = (-(-rows // height), -(-columns // width))
    # ModelOpt keeps the axes inside of a block.
    shapes: list[tuple[int, ...]] = [grid, (grid[0], 1, grid[1], 1), source.of_experts(name, grid)]
    parts = source.fused.get(_layer(name), ()) if grid == (1, 1) else ()
    if grid == (1, 1):
        shapes += [(), (1,)]
        shapes += [(len(parts),), (len(parts), 1)] if parts else []
    elif grid[1] == 1:
        shapes.append((grid[0],))
    numbers = source.numbers(name, dtypes, *shapes, times=times)
    block_of_row = np.arange(rows) // height
    if numbers.data.size > 1 and parts:
        block_of_row = np.repeat(np.arange(len(parts)), parts)
        grid = (len(parts), 1)
    group = common_group(columns, width)
    return ScaleGrid(numbers.reshape(*grid), group, block_of_row, np.arange(0, columns, group) // width)


def _layer(name: str) -> str:
    """`qkv_proj` of `model.layers.0.self_attn.qkv_proj.weight_scale`."""
    return name.rsplit(".", 2)[-2] if name.count(".") else ""

"""Matrices of float4_e2m1: NVFP4 (scales of 16 columns and of the tensor), MXFP4 (powers of two of 32 columns)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.quantized.bits import unpack_bits
from octavo_inference.checkpoints.quantized.scale_grid import ScaleGrid, scale_grid
from octavo_inference.checkpoints.quantized.source import E8M0, Source
from octavo_inference.common.errors import ModelError
from octavo_inference.models.groups import TWICE_E2M1, Floats, GroupedMatrix, Grouping, Groups

_NVFP4_GROUP, _MXFP4_GROUP = 16, 32
_LARGEST = 6.0


def nvfp4(
    source: Source, weight: str, scale: str, whole: str, shape: tuple[int, int], *, divided: bool
) -> GroupedMatrix:
    """Two columns in a byte, the first in the low bits; float8 scales, `divided` or multiplied by the scale `whole`."""
    factor = source.positive(whole, (), (1,)).reshape(-1)[0]
    packed = _packed(source, "nvfp4", weight, shape, _NVFP4_GROUP)
    times = 0.0
    if source.contents:
        times = _LARGEST / float(factor) if divided else _LARGEST * float(factor)
    grid = scale_grid(source, scale, *shape, (1, _NVFP4_GROUP), ("F8_E4M3",), times)
    if divided:
        return _matrix("nvfp4", shape, packed, grid, lambda scales: scales / factor)
    return _matrix("nvfp4", shape, packed, grid, lambda scales: scales * factor)


def mxfp4(source: Source, weight: str, scale: str, shape: tuple[int, int]) -> GroupedMatrix:
    """Two columns in a byte, the first in the low bits; float8_e8m0 scales."""
    packed = _packed(source, "mxfp4", weight, shape, _MXFP4_GROUP)
    return _matrix("mxfp4", shape, packed, scale_grid(source, scale, *shape, (1, _MXFP4_GROUP), E8M0))


def _packed(source: Source, format_: str, weight: str, shape: tuple[int, int], group: int) -> NDArray[np.generic]:
    rows, columns = shape
    if columns % group:
        raise ModelError(
            f"{source.folder}: tensor {weight} is {format_} of {columns} columns, expected a multiple of {group}"
        )
    blocks = (rows, columns // group, group // 2)
    array = source.array(weight, ("U8",), (rows, columns // 2), blocks, source.of_experts(weight, blocks))
    return array.reshape(rows, columns // 2)


def _matrix(
    format_: str,
    shape: tuple[int, int],
    packed: NDArray[np.generic],
    grid: ScaleGrid,
    scaled: Callable[[Floats], Floats] = lambda scales: scales,
) -> GroupedMatrix:
    octets = packed.view(np.uint8)

    def read(start: int, end: int) -> Groups:
        # Levels are doubled, scales halved.
        return Groups(unpack_bits(octets[start:end], 4), scaled(grid.rows(start, end)) * np.float32(0.5))

    return GroupedMatrix(
        format_, shape, Grouping("code4", grid.group, levels=TWICE_E2M1), read, (octets, grid.numbers.data)
    )

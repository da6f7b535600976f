"""Matrices of float4_e2m1: NVFP4 (scales of 16 columns and of the tensor), MXFP4 (powers of two of 32 columns)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo_inference.checkpoints.quantized.bit_packing import nibbles
from octavo_inference.checkpoints.quantized.scale_grid import scale_grid
from octavo_inference.checkpoints.quantized.source import E8M0, Source
from octavo_inference.common.errors import ModelError
from octavo_inference.models.groups import Bytes, Floats, GroupedMatrix, Grouping, Groups

NVFP4_GROUP, MXFP4_GROUP = 16, 32
# Numbers of two bits of exponent and one of mantissa, times 2: whole numbers suit kernels that multiply integers.
_POSITIVE = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
LEVELS = (*_POSITIVE, *(0.0 - level for level in _POSITIVE))


def nvfp4(
    source: Source, weight: str, scale: str, whole: str, shape: tuple[int, int], *, divided: bool
) -> GroupedMatrix:
    """A matrix with float8 scales, which are `divided` or multiplied by the tensor's scale `whole`."""
    factor = np.float32(source.positive(whole, (), (1,)).reshape(-1)[0] if source.contents else 1)
    if divided:
        return _float4(source, "nvfp4", weight, scale, shape, NVFP4_GROUP, ("F8_E4M3",), lambda s: s / factor)
    return _float4(source, "nvfp4", weight, scale, shape, NVFP4_GROUP, ("F8_E4M3",), lambda s: s * factor)


def mxfp4(source: Source, weight: str, scale: str, shape: tuple[int, int]) -> GroupedMatrix:
    """A matrix with float8_e8m0 scales."""
    return _float4(source, "mxfp4", weight, scale, shape, MXFP4_GROUP, E8M0, lambda s: s)


def float4_grouping(group: int) -> Grouping:
    """How values of float4 become weights: with half of their scale, because levels are doubled."""
    return Grouping("code4", group, levels=LEVELS)


def _float4(
    source: Source,
    format_: str,
    weight: str,
    scale: str,
    shape: tuple[int, int],
    group: int,
    dtypes: tuple[str, ...],
    scaled: Callable[[Floats], Floats],
) -> GroupedMatrix:
    rows, columns = shape
    if columns % group:
        raise ModelError(
            f"{source.folder}: {format_} tensor {weight} has {columns} columns, expected a multiple of {group}"
        )
    packed: Bytes = source.array(weight, ("U8",), (rows, columns // 2)).view(np.uint8)
    grid = scale_grid(source, scale, rows, columns, (1, group), dtypes)

    def read(start: int, end: int) -> Groups:
        return Groups(nibbles(packed[start:end]), scaled(grid.rows(start, end)) * np.float32(0.5))

    return GroupedMatrix(format_, shape, float4_grouping(group), read, (packed, grid.numbers.data))

"""Rounds float32 matrices to published formats without a calibration text, as their reference tools do.

The result has the values that a checkpoint of the format would hold. Scales are float32 or, where the format says so,
rounded to its own type.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.groups import GroupedMatrix, Grouping, Groups, Kind, common_group
from octavo_inference.tools.quantize.e4m3 import LARGEST, from_e4m3, to_e4m3

Floats = NDArray[np.float32]
Round = Callable[[Floats], GroupedMatrix]

# Of NF4 (Dettmers et al. 2023, appendix E): quantiles of the normal distribution with an exact zero.
NF4 = (
    *(-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
)
# Of e2m1, times 2: OCP Microscaling Formats 1.0, section 5.3.3.
E2M1 = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, -0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0)
# Of ggml's IQ4_NL and IQ4_XS.
IQ4 = (-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0)


def integers(bits: int, group: int, *, minimum: bool) -> Round:
    """Round to nearest, with a scale, and a zero point if `minimum`, for each row and `group` columns (0: the row)."""

    def rounded(weights: Floats) -> GroupedMatrix:
        size = common_group(weights.shape[1], group or weights.shape[1])
        groups = _grouped(weights, size)
        top = (1 << bits) - 1
        if minimum:
            low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
            scale = _half(_positive((high - low) / top))
            zero = np.rint(-low / scale)
            values = np.clip(np.rint(groups / scale[..., None]) + zero[..., None], 0, top)
            return _matrix(weights, _kind(bits), size, values, scale, -zero * scale)
        scale = _half(_positive(np.abs(groups).max(-1) / (top // 2)))
        values = np.clip(np.rint(groups / scale[..., None]), -(top // 2) - 1, top // 2)
        return _matrix(weights, _kind(bits), size, values + (top // 2 + 1), scale)

    return rounded


def half_quadratic(bits: int, group: int, steps: int = 20) -> Round:
    """HQQ (Badri and Shaji 2023): zero points that minimise a norm of the error with a power below 1."""

    def rounded(weights: Floats) -> GroupedMatrix:
        size = common_group(weights.shape[1], group)
        groups = _grouped(weights, size)
        top = (1 << bits) - 1
        low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
        scale = _positive((high - low) / top)
        zero, strength = -low / scale, 10.0
        for _ in range(steps):
            values = np.clip(np.rint(groups / scale + zero), 0, top)
            error = groups - (values - zero) * scale
            shrunk = np.sign(error) * np.maximum(np.abs(error) - np.abs(error).clip(1e-8) ** -0.3 / strength, 0)
            zero = (values - (groups - shrunk) / scale).mean(-1, keepdims=True)
            strength *= 1.01
        values = np.clip(np.rint(groups / scale + zero), 0, top)
        return _matrix(weights, _kind(bits), size, values, scale[..., 0], (-zero * scale)[..., 0])

    return rounded


def codes(levels: tuple[float, ...], group: int) -> Round:
    """The nearest of 16 levels, the largest of which is the largest magnitude of each `group` columns.

    With `NF4` and groups of 64 it is what bitsandbytes does.
    """

    def rounded(weights: Floats) -> GroupedMatrix:
        size = common_group(weights.shape[1], group)
        groups = _grouped(weights, size)
        scale = _positive(np.abs(groups).max(-1) / np.float32(max(levels)))
        return _matrix(weights, "code4", size, nearest(groups / scale[..., None], levels), scale, levels=levels)

    return rounded


def mxfp4(weights: Floats) -> GroupedMatrix:
    """MXFP4: e2m1 with a power of two for each 32 columns (OCP Microscaling Formats 1.0, section 6.3)."""
    groups = _grouped(weights, 32)
    peak = np.abs(groups).max(-1)
    # The largest e2m1, 6, has the exponent 2; half of the scale, because levels are doubled.
    scale = np.exp2(np.floor(np.log2(_positive(peak))) - 2).astype(np.float32) / 2
    return _matrix(weights, "code4", 32, nearest(groups / scale[..., None], E2M1), scale, levels=E2M1)


def nvfp4(weights: Floats) -> GroupedMatrix:
    """NVFP4: e2m1 with an e4m3 scale for each 16 columns, and a float32 scale of the matrix."""
    groups = _grouped(weights, 16)
    peak = np.abs(groups).max(-1)
    whole = np.float32(peak.max() / (6 * LARGEST))
    # No scale is 0: a group of zeros has the smallest.
    scale = (np.maximum(from_e4m3(to_e4m3(peak / 6 / whole)), 2.0**-9) * whole / 2).astype(np.float32)
    return _matrix(weights, "code4", 16, nearest(groups / scale[..., None], E2M1), scale, levels=E2M1)


def fp8(height: int, width: int) -> Round:
    """float8_e4m3fn with a scale for each block of `height` rows and `width` columns (0: all)."""

    def rounded(weights: Floats) -> GroupedMatrix:
        rows, columns = weights.shape
        tall, wide = height or rows, width or columns
        grid = np.zeros((-(-rows // tall), -(-columns // wide)), np.float32)
        for i in range(grid.shape[0]):
            for j in range(grid.shape[1]):
                block = weights[i * tall : (i + 1) * tall, j * wide : (j + 1) * wide]
                grid[i, j] = np.abs(block).max() / LARGEST
        size = common_group(columns, wide)
        scale = _positive(grid)[np.arange(rows) // tall][:, np.arange(0, columns, size) // wide]
        values = to_e4m3(_grouped(weights, size) / scale[..., None])
        return _matrix(weights, "fp8", size, values, scale)

    return rounded


def nearest(values: Floats, levels: tuple[float, ...]) -> NDArray[np.uint8]:
    """Index of the nearest level."""
    order = np.argsort(levels, kind="stable")
    sorted_levels = np.array(levels, np.float32)[order]
    between = (sorted_levels[1:] + sorted_levels[:-1]) / 2
    return order[np.searchsorted(between, values)].astype(np.uint8)


def _grouped(weights: Floats, group: int) -> Floats:
    return weights.reshape(len(weights), -1, group)


def _positive(scale: Floats) -> Floats:
    """Scales, 1 in place of 0: a group of zeros has no scale of its own."""
    return np.where(scale > 0, scale, np.float32(1)).astype(np.float32)


def _half(scale: Floats) -> Floats:
    return scale.astype(np.float16).astype(np.float32)


def _kind(bits: int) -> Kind:
    return "int8" if bits == 8 else "int4"


def _matrix(
    weights: Floats,
    kind: Kind,
    group: int,
    values: NDArray[np.generic],
    scale: Floats,
    minimum: Floats | None = None,
    levels: tuple[float, ...] = (),
) -> GroupedMatrix:
    rows, columns = weights.shape
    stored = values.astype(np.uint8).reshape(rows, columns)
    low = None if minimum is None else minimum.astype(np.float32).reshape(rows, -1)
    groups = Groups(stored, scale.astype(np.float32).reshape(rows, -1), low)
    grouping = Grouping(kind, group, minimum is not None, levels)
    return GroupedMatrix(kind, (rows, columns), grouping, groups.rows)

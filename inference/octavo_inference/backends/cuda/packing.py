"""Packs canonical weights into the device's layouts (`kernels.weight_layouts`), in numpy.

A GGUF block interleaves scales and values, which prevents aligned, coalesced GPU loads. On the device they are separate
planes, row by row. Floats are unchanged.

Exact for q4_0, q4_1, q5_0, q5_1 and q8_0. K formats store scales in two steps, whose product fp16 rounds by up to
1 / 2048: a quarter of the error of bfloat16 weights. So do scales of published formats that are float32 in the file,
and minimums that are zero points times scales. A factor for each row, a power of two, keeps those of any size within
fp16's range. The scales of fp8 are float32, and exact. Levels of tables are fp16, like the scales.

Groups of a published format become groups of at most 128 columns with the same scale. The fp8 layout of float weights
(float8_e4m3fn values with one factor per row) is computed on the device, by `linear.quantize_rows`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from octavo_inference.backends.cuda.kernels.weight_layouts import FOUR_BITS, Form, Layout
from octavo_inference.models.ggml_dequant import BlockFormat, Blocks, Bytes, split_blocks
from octavo_inference.models.groups import Floats, GroupedMatrix, Groups
from octavo_inference.models.weights import Format, Matrix, Tensor, bf16_bits, dequantize

Dense = Literal["f32", "bf16"]
Quantization = Literal["auto", "dense", "fp8"]
Planes = dict[str, NDArray[Any]]
PlaneType = Literal["f32", "bf16", "f16", "u8"]

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The numbers of float4_e2m1 (OCP Microscaling Formats, section 5.3.3), which kernels convert without a table."""
_GROUPS = (128, 64, 32, 16)
"""Numbers of columns that may share a scale, the longest first."""

FP8_BY_ROW = Layout("fp8", factors=True)
"""float8 with a factor for each row."""

# The smallest layout that holds a stored format.
LAYOUTS: dict[Format, Layout] = {
    "q4_0": Layout("int4", 32),
    "q4_1": Layout("int4", 32, minimum=True),
    "q4_k": Layout("int4", 32, minimum=True),
    "q5_0": Layout("int8", 32),
    "q5_1": Layout("int8", 32, minimum=True),
    "q5_k": Layout("int8", 32, minimum=True),
    "q6_k": Layout("int8", 16),
    "q8_0": Layout("int8", 32),
}


def layout_of(tensor: Matrix, dense: Dense, quantization: Quantization) -> Layout:
    """The layout of a tensor: `dense` or fp8 for floats; quantized tensors keep theirs, except with "dense"."""
    if isinstance(tensor, GroupedMatrix):
        return (None if quantization == "dense" else _grouped(tensor)) or Layout(dense)
    kept = None if quantization == "dense" else LAYOUTS.get(tensor.format)
    return kept or (FP8_BY_ROW if quantization == "fp8" else Layout(dense))


def _grouped(matrix: GroupedMatrix) -> Layout | None:
    """The layout of a published format, None for one that becomes floats.

    These are groups that no group of `_GROUPS` divides, and floats of 8 or 4 bits with a minimum: kernels multiply the
    sum of their products by a power of two, which a minimum does not have.
    """
    grouping, columns = matrix.grouping, matrix.shape[1]
    e2m1 = _times_e2m1(grouping.levels) != 0.0
    if grouping.minimum and (grouping.kind == "fp8" or e2m1):
        return None
    if grouping.kind == "fp8" and grouping.group == columns:
        return FP8_BY_ROW
    group = next((group for group in _GROUPS if grouping.group % group == 0), None)
    if group is None:
        return None
    if grouping.kind == "fp8":
        return Layout("fp8", group)
    form: Form = "fp4" if e2m1 else grouping.kind
    levels = () if form == "fp4" else grouping.levels
    layout = Layout(form, group, grouping.minimum, factors=True, levels=levels)
    return None if layout.form in FOUR_BITS and columns % layout.pair else layout


def _times_e2m1(levels: tuple[float, ...]) -> float:
    """The factor by which levels are those of float4_e2m1: GGUF has them as integers, twice as large. 0 for others."""
    factor = levels[1] / E2M1[1] if levels else 0.0
    return factor if factor and levels == tuple(factor * level for level in E2M1) else 0.0


def plane_shapes(layout: Layout, rows: int, cols: int) -> dict[str, tuple[PlaneType, tuple[int, ...]]]:
    """Type and shape of each plane of a matrix that has a row for each of its rows, by name."""
    if layout.form == "f32" or layout.form == "bf16":  # noqa: PLR1714  mypy narrows no set
        return {"values": (layout.form, (rows, cols))}
    width = cols // 2 if layout.form in FOUR_BITS else cols
    planes: dict[str, tuple[PlaneType, tuple[int, ...]]] = {"values": ("u8", (rows, width))}
    if layout.group:
        kind: PlaneType = "f32" if layout.form == "fp8" else "f16"
        for name in ("scales", "minimums") if layout.minimum else ("scales",):
            planes[name] = (kind, (rows, cols // layout.group))
    if layout.factors:
        planes["factors"] = ("f32", (rows,))
    return planes


def pack(tensor: Matrix, layout: Layout) -> Planes:
    """Pack a matrix into the planes of its `layout_of`; bfloat16 as bits. Unchanged ones are views.

    Floats are not packed into fp8.
    """
    if isinstance(tensor, Tensor) and tensor.format == layout.form:
        return {"values": tensor.data}
    if layout.form == "f32":
        return {"values": dequantize(tensor)}
    if layout.form == "bf16":
        return {"values": bf16_bits(np.ascontiguousarray(dequantize(tensor)))}
    if isinstance(tensor, GroupedMatrix):
        factor = _times_e2m1(tensor.grouping.levels) if layout.form == "fp4" else 1.0
        return _groups(tensor.read(0, tensor.shape[0]), layout, factor)
    return _integers(split_blocks(cast("BlockFormat", tensor.format), tensor.data), layout, *tensor.shape)


def _integers(blocks: Blocks, layout: Layout, rows: int, cols: int) -> Planes:
    values = blocks.values.reshape(rows, cols)
    if layout.zero != blocks.zero:
        values = values + np.uint8(layout.zero - blocks.zero)
    minimum = None if blocks.minimum is None else blocks.minimum.reshape(rows, -1)
    return _planes(values, blocks.scale.reshape(rows, -1), minimum, layout)


def _groups(groups: Groups, layout: Layout, factor: float) -> Planes:
    """The planes of groups whose levels are `factor` times those of the layout."""
    if layout.group == 0:
        return {"values": groups.values, "factors": groups.scale[:, 0].astype(np.float32)}
    groups = groups.regrouped(layout.group)
    if layout.form == "fp8":
        return _planes(groups.values, groups.scale, groups.minimum, layout)
    if factor != 1.0:
        groups = replace(groups, scale=groups.scale * np.float32(factor))
    exponent = _row_exponents(groups)
    scale = np.ldexp(groups.scale, -exponent[:, None])
    minimum = None if groups.minimum is None else np.ldexp(groups.minimum, -exponent[:, None])
    factors = {"factors": np.ldexp(np.float32(1), exponent)}
    return _planes(groups.values, scale, minimum, layout) | factors


def _row_exponents(groups: Groups) -> NDArray[np.int32]:
    """For each row, the exponent of the power of two by which its largest scale or minimum is from 0.5 to 1.

    It is that of a normal float32: the largest of extreme rows is up to 2, or less than 0.5.
    """
    largest = np.abs(groups.scale).max(axis=1)
    if groups.minimum is not None:
        largest = np.maximum(largest, np.abs(groups.minimum).max(axis=1))
    exponents: NDArray[np.int32] = np.clip(np.frexp(largest)[1], -126, 127)
    return exponents


def _planes(values: Bytes, scale: Floats, minimum: Floats | None, layout: Layout) -> Planes:
    """The planes of values [rows, columns], one in each byte, with the scales of their groups."""
    kind = np.float32 if layout.form == "fp8" else np.float16
    planes: Planes = {
        "values": _two_a_byte(values, layout.pair) if layout.form in FOUR_BITS else values,
        "scales": scale.astype(kind),
    }
    if minimum is not None:
        planes["minimums"] = minimum.astype(kind)
    return planes


def _two_a_byte(values: Bytes, pair: int) -> Bytes:
    rows, cols = values.shape
    halves = values.reshape(rows, cols // pair, 2, pair // 2)
    both: Bytes = (halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)).reshape(rows, cols // 2)
    return both

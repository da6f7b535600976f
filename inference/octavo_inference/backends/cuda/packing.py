"""Packs canonical weights into the device's layouts, in numpy: floats unchanged, GGUF blocks as integer planes.

A GGUF block interleaves scales and values, which prevents aligned, coalesced GPU loads. On the device they are separate
planes, row by row:

    int4  values uint8 [rows, cols / 2]: in each group the low nibbles are the first half of its columns, the high ones
          the second, so that a kernel multiplies both with adjacent columns of x, in their lanes
    int8  values uint8 [rows, cols]
    both  scales fp16 [rows, cols / group], and minimums of the same shape where the format has them:
          weight = (value - zero) * scale + minimum

Exact for q4_0, q4_1, q5_0, q5_1 and q8_0. K formats store scales in two steps, whose product fp16 rounds by up to
1 / 2048: a quarter of the error of bfloat16 weights. The fp8 layout (float8_e4m3fn values with one float32 scale per
row) is computed on the device, by `linear.quantize_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.ggml_dequant import BlockFormat, Blocks, Bytes, Floats, split_blocks
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.weights import Format, Matrix, Tensor, bf16_bits, dequantize

Dense = Literal["f32", "bf16"]
Form = Literal["f32", "bf16", "int4", "int8", "fp8"]
Quantization = Literal["auto", "dense", "fp8"]
Planes = dict[str, NDArray[Any]]
PlaneType = Literal["f32", "bf16", "f16", "u8"]


@dataclass(frozen=True, slots=True)
class Layout:
    """A matrix's layout on the device. `group` is how many columns share a scale, 0 for floats and fp8 (the row)."""

    form: Form
    group: int = 0
    minimum: bool = False

    @property
    def zero(self) -> int:
        """The stored value whose weight is the minimum alone."""
        if self.group == 0 or self.minimum:
            return 0
        return 8 if self.form == "int4" else 128


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
    return kept or Layout("fp8" if quantization == "fp8" else dense)


def _grouped(matrix: GroupedMatrix) -> Layout | None:
    """The layout of a published format, None for one that becomes floats."""
    grouping = matrix.grouping
    if matrix.order is not None or grouping.kind not in {"int4", "int8"} or grouping.group not in {16, 32}:
        return None
    return Layout("int4" if grouping.kind == "int4" else "int8", grouping.group, grouping.minimum)


def plane_shapes(layout: Layout, rows: int, cols: int) -> dict[str, tuple[PlaneType, tuple[int, ...]]]:
    """Type and shape of each plane of a matrix, by name."""
    if layout.form in ("f32", "bf16"):
        return {"values": (layout.form, (rows, cols))}
    if layout.form == "fp8":
        return {"values": ("u8", (rows, cols)), "scales": ("f32", (rows,))}
    width = cols // 2 if layout.form == "int4" else cols
    planes: dict[str, tuple[PlaneType, tuple[int, ...]]] = {"values": ("u8", (rows, width))}
    for name in ("scales", "minimums") if layout.minimum else ("scales",):
        planes[name] = ("f16", (rows, cols // layout.group))
    return planes


def pack(tensor: Matrix, layout: Layout) -> Planes:
    """Pack a matrix into the planes of a `layout_of` layout except fp8; bfloat16 as bits. Unchanged ones are views."""
    if isinstance(tensor, Tensor) and tensor.format == layout.form:
        return {"values": tensor.data}
    if layout.form == "f32":
        return {"values": dequantize(tensor)}
    if layout.form == "bf16":
        return {"values": bf16_bits(np.ascontiguousarray(dequantize(tensor)))}
    if isinstance(tensor, GroupedMatrix):
        groups = tensor.read(0, tensor.shape[0])
        return _planes(groups.values, groups.scale, groups.minimum, layout)
    return _integers(split_blocks(cast("BlockFormat", tensor.format), tensor.data), layout, *tensor.shape)


def _integers(blocks: Blocks, layout: Layout, rows: int, cols: int) -> Planes:
    values = blocks.values.reshape(rows, cols)
    if layout.zero != blocks.zero:
        values = values + np.uint8(layout.zero - blocks.zero)
    minimum = None if blocks.minimum is None else blocks.minimum.reshape(rows, -1)
    return _planes(values, blocks.scale.reshape(rows, -1), minimum, layout)


def _planes(values: Bytes, scale: Floats, minimum: Floats | None, layout: Layout) -> Planes:
    """The planes of values [rows, cols], one in each byte, with the scales of their groups."""
    planes: Planes = {
        "values": _two_a_byte(values, layout.group) if layout.form == "int4" else values,
        "scales": scale.astype(np.float16),
    }
    if minimum is not None:
        planes["minimums"] = minimum.astype(np.float16)
    return planes


def _two_a_byte(values: NDArray[np.uint8], group: int) -> NDArray[np.uint8]:
    rows, cols = values.shape
    halves = values.reshape(rows, cols // group, 2, group // 2)
    return (halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)).reshape(rows, cols // 2)

"""Canonical weights into what the device holds, in numpy: floats as they are, GGUF blocks as planes of integers.

A GGUF block keeps scales and values together, which no GPU reads well. On the device they lie apart, row by row:

    int4  values uint8 [rows, cols / 2]: of each group the low nibbles are the first half of its columns, the high ones
          the second, so that a kernel multiplies both with columns of x that lie together, in their lanes
    int8  values uint8 [rows, cols]
    both  scales fp16 [rows, cols / group], and minimums of the same shape where the format has them:
          weight = (value - zero) * scale + minimum

Exact for q4_0, q4_1, q5_0, q5_1 and q8_0. The k formats keep scales in two steps, whose product fp16 rounds by up to
1 / 2048: a quarter of what bfloat16 would lose of the weights themselves. Form fp8 (float8_e4m3fn values with one
float32 scale per row) is made on the device, by `linear.quantize_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.ggml_dequant import BlockFormat, Blocks, split_blocks
from octavo_inference.models.weights import Format, Tensor, bf16_bits, dequantize

Dense = Literal["f32", "bf16"]
Form = Literal["f32", "bf16", "int4", "int8", "fp8"]
Quantization = Literal["auto", "dense", "fp8"]
Planes = dict[str, NDArray[Any]]
PlaneType = Literal["f32", "bf16", "f16", "u8"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a matrix lies on the device. `group` is how many columns share a scale, 0 for floats and fp8 (the row)."""

    form: Form
    group: int = 0
    minimum: bool = False

    @property
    def zero(self) -> int:
        """The stored value that stands for nothing but the minimum."""
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


def layout_of(tensor: Tensor, dense: Dense, quantization: Quantization) -> Layout:
    """Floats become `dense`, or fp8 where that is asked for. Quantised tensors stay so, but for "dense"."""
    kept = None if quantization == "dense" else LAYOUTS.get(tensor.format)
    return kept or Layout("fp8" if quantization == "fp8" else dense)


def plane_shapes(layout: Layout, rows: int, cols: int) -> dict[str, tuple[PlaneType, tuple[int, ...]]]:
    """Type and shape of all that is kept for a matrix, by name."""
    if layout.form in ("f32", "bf16"):
        return {"values": (layout.form, (rows, cols))}
    if layout.form == "fp8":
        return {"values": ("u8", (rows, cols)), "scales": ("f32", (rows,))}
    width = cols // 2 if layout.form == "int4" else cols
    planes: dict[str, tuple[PlaneType, tuple[int, ...]]] = {"values": ("u8", (rows, width))}
    for name in ("scales", "minimums") if layout.minimum else ("scales",):
        planes[name] = ("f16", (rows, cols // layout.group))
    return planes


def pack(tensor: Tensor, layout: Layout) -> Planes:
    """The planes of a matrix in a layout of `layout_of`, but fp8; bfloat16 as bits. Views where nothing changes."""
    if tensor.format == layout.form:
        return {"values": tensor.data}
    if layout.form == "f32":
        return {"values": dequantize(tensor)}
    if layout.form == "bf16":
        return {"values": bf16_bits(np.ascontiguousarray(dequantize(tensor)))}
    return _integers(split_blocks(cast("BlockFormat", tensor.format), tensor.data), layout, *tensor.shape)


def _integers(blocks: Blocks, layout: Layout, rows: int, cols: int) -> Planes:
    values = blocks.values.reshape(rows, cols)
    if layout.zero != blocks.zero:
        values = values + np.uint8(layout.zero - blocks.zero)
    planes: Planes = {
        "values": _two_a_byte(values, layout.group) if layout.form == "int4" else values,
        "scales": blocks.scale.reshape(rows, -1).astype(np.float16),
    }
    if blocks.minimum is not None:
        planes["minimums"] = blocks.minimum.reshape(rows, -1).astype(np.float16)
    return planes


def _two_a_byte(values: NDArray[np.uint8], group: int) -> NDArray[np.uint8]:
    rows, cols = values.shape
    halves = values.reshape(rows, cols // group, 2, group // 2)
    return (halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)).reshape(rows, cols // 2)

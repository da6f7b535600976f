"""Dequantizes stored bytes of weights: in registers, for `linear` and `embedding`, or rows of a matrix into memory.

On a GPU, an integer conversion costs several times as much as an addition. So small integers are written into the
mantissa of 2**23, which is then subtracted: exact, in two cheap operations. float8_e4m3fn has the bit order of float32
with a shorter exponent: shifted into place, it is the number times 2**-120. Neither requires a GPU that supports the
type.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.weight_layouts import Stored

_BYTES = 1024


@triton.jit
def integers(raw, ZERO: tl.constexpr):
    """Convert int32 from 0 to 2**23 - 1 to float32, minus ZERO."""
    return (raw | 0x4B000000).to(tl.float32, bitcast=True) - (8388608 + ZERO)


@triton.jit
def e4m3(raw):
    """Convert the bits of float8_e4m3fn, as uint8, to float32. Weights contain no NaN: its bits give 480."""
    # Sign-extend, shift, clear the copies of the sign: three operations. Masks would take five.
    bits = (raw.to(tl.int8, bitcast=True).to(tl.int32) << 20) & -0x78100000
    return bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2**120


@triton.jit
def e4m3_byte(word, NTH: tl.constexpr):
    """Convert byte NTH of an int32 from the bits of float8_e4m3fn to float32, times 2**-120."""
    return (((word << (24 - 8 * NTH)) >> 4) & -0x78100000).to(tl.float32, bitcast=True)


@triton.jit
def spread(x, GROUP: tl.constexpr):
    """Repeat each column of x [rows, groups] GROUP times: [rows, groups * GROUP] in float32."""
    wide = tl.broadcast_to(x.to(tl.float32)[:, :, None], (x.shape[0], x.shape[1], GROUP))
    return wide.reshape(x.shape[0], x.shape[1] * GROUP)


@triton.jit
def _dequantize(values, scales, minimums, out, width, groups, FORM: tl.constexpr, GROUP: tl.constexpr,
                ZERO: tl.constexpr, MINIMUM: tl.constexpr, BYTES: tl.constexpr):  # fmt: skip
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BYTES + tl.arange(0, BYTES)
    inside = at < width
    raw = tl.load(values + row * width + at, mask=inside, other=0)
    # Bytes of a row that share a scale.
    SPAN: tl.constexpr = GROUP // 2 if FORM == "int4" else GROUP
    minimum = 0.0
    if GROUP > 0:
        scale = tl.load(scales + row * groups + at // SPAN, mask=inside, other=0.0).to(tl.float32)
    else:
        scale = tl.load(scales + row)
    if MINIMUM:
        minimum = tl.load(minimums + row * groups + at // SPAN, mask=inside, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    if FORM == "int4":
        out += row * 2 * width + at // SPAN * GROUP + at % SPAN
        both = raw.to(tl.int32)
        tl.store(out, (integers(both & 15, ZERO) * scale + minimum).to(kind), mask=inside)
        tl.store(out + SPAN, (integers(both >> 4, ZERO) * scale + minimum).to(kind), mask=inside)
    else:
        value = e4m3(raw) if FORM == "fp8" else integers(raw.to(tl.int32), ZERO)
        tl.store(out + row * width + at, (value * scale + minimum).to(kind), mask=inside)


def dequantize_rows(
    values: Torch, scales: Torch, minimums: Torch | None, out: Torch, *, form: Stored, group: int = 0, zero: int = 0
) -> None:
    """Write rows of packed weights to out [N, K], contiguous, of any float type; the planes as in `linear.linear`."""
    (rows, width), cols = values.shape, out.shape[1]
    _dequantize[rows, triton.cdiv(width, _BYTES)](
        values, scales, minimums, out, width, cols // group if group else 0, FORM=form, GROUP=group, ZERO=zero,
        MINIMUM=minimums is not None, BYTES=_BYTES, **launch_options(),
    )  # fmt: skip

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
from octavo_inference.backends.cuda.kernels.weight_layouts import FOUR_BITS, DeviceMatrix

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
def nibbles(raw, levels, FORM: tl.constexpr, ZERO: tl.constexpr, HIGH: tl.constexpr):
    """Convert the low or the high nibbles of int32 bytes to float32, times 1 / nibble_unit.

    High nibbles of integers are not shifted, and those of float4_e2m1 become float32 as in `e4m3`.
    """
    if FORM == "fp4":
        bits = ((raw << (24 if HIGH else 28)) >> 6) & -0x7E400000
        return bits.to(tl.float32, bitcast=True)
    elif FORM == "code4":  # noqa: RET505  Triton compiles one of two branches, but always compiles code after a return
        return tl.load(levels + ((raw >> 4) & 15 if HIGH else raw & 15)).to(tl.float32)
    else:
        return integers(raw & 240, 16 * ZERO) if HIGH else integers(raw & 15, ZERO)


@triton.constexpr_function
def nibble_unit(form, high):
    """The factor of `nibbles`."""
    return 2.0**126 if form == "fp4" else 0.0625 if form == "int4" and high else 1.0


@triton.constexpr_function
def is_four_bits(form):
    """Return True for layouts with two values in a byte."""
    return form in FOUR_BITS


@triton.jit
def affine(value, scales, minimums, at, mask):
    """Return value * scale + minimum, of the groups `at`."""
    if scales is not None:
        value *= tl.load(scales + at, mask=mask, other=0.0).to(tl.float32)
    if minimums is not None:
        value += tl.load(minimums + at, mask=mask, other=0.0).to(tl.float32)
    return value


@triton.jit
def _dequantize(values, scales, minimums, factors, levels, out, width, groups, FORM: tl.constexpr,
                GROUP: tl.constexpr, ZERO: tl.constexpr, BYTES: tl.constexpr):  # fmt: skip
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BYTES + tl.arange(0, BYTES)
    inside = at < width
    raw = tl.load(values + row * width + at, mask=inside, other=0)
    factor = 1.0
    if factors is not None:
        factor = tl.load(factors + row)
    kind = out.dtype.element_ty
    if is_four_bits(FORM):
        UNIT: tl.constexpr = nibble_unit(FORM, False)
        HALF: tl.constexpr = GROUP // 2 if GROUP > 32 else 16
        low = at // HALF * (2 * HALF) + at % HALF
        out += row * 2 * width
        both = raw.to(tl.int32)
        value = nibbles(both, levels, FORM, ZERO, False) * UNIT
        first = affine(value, scales, minimums, row * groups + low // GROUP, inside)
        tl.store(out + low, (first * factor).to(kind), mask=inside)
        value = nibbles(both >> 4, levels, FORM, ZERO, False) * UNIT
        second = affine(value, scales, minimums, row * groups + (low + HALF) // GROUP, inside)
        tl.store(out + low + HALF, (second * factor).to(kind), mask=inside)
    else:
        value = e4m3(raw) if FORM == "fp8" else integers(raw.to(tl.int32), ZERO)
        if GROUP > 0:
            value = affine(value, scales, minimums, row * groups + at // GROUP, inside)
        tl.store(out + row * width + at, (value * factor).to(kind), mask=inside)


def dequantize_rows(matrix: DeviceMatrix, out: Torch) -> None:
    """Write the rows of a packed matrix to out [rows, cols], contiguous, of any float type."""
    rows, width = matrix.values.shape
    _dequantize[rows, triton.cdiv(width, _BYTES)](
        matrix.values, matrix.scales, matrix.minimums, matrix.factors, matrix.levels, out, width, matrix.groups,
        FORM=matrix.form, GROUP=matrix.layout.group, ZERO=matrix.layout.zero, BYTES=_BYTES, **launch_options(),
    )  # fmt: skip

"""Codes of 8 bits, rounded to the nearest, ties to even, as torch and the GPU do."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def round_even(x):
    """Round |x| < 2**22 to the nearest integer, ties to even: near 1.5 * 2**23 float32 has no bits for a fraction."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def encode_e4m3(x):
    """The bits of float8_e4m3fn for |x| <= 448, ties to even, as uint8.

    Written out because Triton's interpreter truncates where the GPU rounds, and GPUs before compute capability 8.9 have
    no such instruction. The largest code below NaN is 448, so nothing overflows.
    """
    size = tl.abs(x)
    bits = size.to(tl.uint32, bitcast=True)
    # The exponent's bias is 127 in float32 and 7 in float8_e4m3fn; 20 of 23 mantissa bits are dropped.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # Below 2**-6 codes are multiples of 2**-9, which is the unit in the last place of a float32 from 2**14 on.
    tiny = (size + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(size < 0.015625, tiny, normal)
    return (code | ((x.to(tl.uint32, bitcast=True) >> 24) & 0x80)).to(tl.uint8)

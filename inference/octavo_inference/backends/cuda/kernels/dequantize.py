"""Dequantizes stored bytes of weights to float32, in registers. Helpers of `linear` and `embedding`.

On a GPU, an integer conversion costs several times as much as an addition. So small integers are written into the
mantissa of 2**23, which is then subtracted: exact, in two cheap operations. float8_e4m3fn has the bit order of float32
with a shorter exponent: shifted into place, it is the number times 2**-120. Neither requires a GPU that supports the
type.
"""

from __future__ import annotations

import triton
import triton.language as tl


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

"""Unpacks words of weights and of x in the registers of the thread that loaded them. Helpers of `gemv`.

Tuples hold tensors of the same shape, one for each column of a chunk that a thread holds. Sums over them are chains of
fused multiply-adds. A reduction along an axis would multiply first and add in pairs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_inference.backends.cuda.kernels.dequantize import e4m3_byte


@triton.jit
def nothing():
    """An empty tuple. Triton would infer from a literal () that the variable always holds an empty tuple."""
    return ()


@triton.jit
def split4(v):
    """Split [W] into four tensors [W / 4] of every fourth element. One thread holds each run of four."""
    even, odd = tl.split(v.reshape(v.shape[0] // 4, 2, 2))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def floats(v):
    """Convert int64 of four bfloat16 each to four float32 tensors."""
    low, high = v.to(tl.int32), (v >> 32).to(tl.int32)
    return (
        (low << 16).to(tl.float32, bitcast=True),
        (low & -65536).to(tl.float32, bitcast=True),
        (high << 16).to(tl.float32, bitcast=True),
        (high & -65536).to(tl.float32, bitcast=True),
    )


@triton.jit
def columns_of(x, quad, limit, QUADS: tl.constexpr):
    """Load columns of a row of x, four for each element of `quad`: a tuple of 4 * QUADS tensors.

    Each thread holds QUADS consecutive elements of `quad`. x points to int64 of four bfloat16, or to floats.
    """
    mask = quad < limit
    found = nothing()
    if x.dtype.element_ty == tl.int64:
        quads = tl.load(x + quad, mask=mask, other=0)
        parts = split4(quads) if QUADS == 4 else tl.split(quads.reshape(quads.shape[0] // 2, 2))
        for i in tl.static_range(QUADS):
            found = found + floats(parts[i])
    else:
        for i in tl.static_range(4):
            value = tl.load(x + quad * 4 + i, mask=mask, other=0.0).to(tl.float32)
            found = found + (split4(value) if QUADS == 4 else tl.split(value.reshape(value.shape[0] // 2, 2)))
        ordered = nothing()
        for i in tl.static_range(4 * QUADS):
            ordered = ordered + (found[i % 4 * QUADS + i // 4],)
        found = ordered
    return found


@triton.jit
def total_of(values):
    """The sum of a tuple."""
    total = values[0]
    for i in tl.static_range(1, len(values)):
        total += values[i]
    return total


@triton.jit
def scaled(values, FACTOR: tl.constexpr):
    """Multiply each tensor of a tuple by a factor."""
    found = nothing()
    for i in tl.static_range(len(values)):
        found = found + (values[i] * FACTOR,)
    return found


@triton.jit
def bytes_of(t):
    """Shift each byte of a word to the top of a mantissa (bits 15 to 22). The other bits are not cleared."""
    return t << 15, t << 7, t >> 1, t >> 9


@triton.jit
def unpack_integers(words, mask, base):
    """Convert the masked bits of each byte of the words to float32: the value of `base` plus that many units."""
    found = nothing()
    for i in tl.static_range(len(words)):
        moved = bytes_of(words[i])
        for j in tl.static_range(4):
            found = found + (((moved[j] & mask) | base).to(tl.float32, bitcast=True),)
    return found


@triton.jit
def unpack_e4m3(words):
    """Convert each byte of the words from float8_e4m3fn to float32, times 2**-120."""
    found = nothing()
    for i in tl.static_range(len(words)):
        for j in tl.static_range(4):
            found = found + (e4m3_byte(words[i], j),)
    return found


@triton.jit
def unpack_e2m1(words, SHIFT: tl.constexpr):
    """Convert four bits of each byte of the words from float4_e2m1 to float32, times 2**-126.

    SHIFT moves those of the first byte to the top: 28 for the low ones, 24 for the high ones.
    """
    found = nothing()
    for i in tl.static_range(len(words)):
        for j in tl.static_range(4):
            moved = ((words[i] << (SHIFT - 8 * j)) >> 6) & -0x7E400000
            found = found + (moved.to(tl.float32, bitcast=True),)
    return found


@triton.jit
def unpack_levels(words, levels, SHIFT: tl.constexpr):
    """Look up the four bits from SHIFT on of each byte of the words in a table of 16."""
    found = nothing()
    for i in tl.static_range(len(words)):
        for j in tl.static_range(4):
            found = found + (tl.load(levels + ((words[i] >> (8 * j + SHIFT)) & 15)).to(tl.float32),)
    return found


@triton.jit
def dot_of(weights, x):
    """The sum of products of two tuples."""
    total = weights[0] * x[0]
    for i in tl.static_range(1, len(weights)):
        total += weights[i] * x[i]
    return total


@triton.jit
def beside(values):
    """Join tensors [C], a power of two of them, to one [C, 2, ..., 2], so that one reduction adds up all of them."""
    if len(values) == 1:
        return values[0]
    else:  # noqa: RET505  Triton compiles one of two branches, but always compiles code after a return
        joined = nothing()
        for i in tl.static_range(len(values) // 2):
            joined = joined + (tl.join(values[i], values[i + len(values) // 2]),)
        return beside(joined)

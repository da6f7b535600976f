"""Unpacks words of weights and of x in the registers of the thread that loaded them. Helpers of `gemv`.

Tuples hold tensors of the same shape, one for each column of a chunk that a thread holds. Sums over them are chains of
fused multiply-adds, where a reduction along an axis would multiply first and add in pairs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_inference.backends.cuda.kernels.dequantize import e4m3_byte


@triton.jit
def nothing():
    """An empty tuple. What is known of its type would else be that nothing is in it."""
    return ()


@triton.jit
def split4(v):
    """Tensors [W / 4] of every fourth element of [W], which one thread holds together."""
    even, odd = tl.split(v.reshape(v.shape[0] // 4, 2, 2))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def floats(v):
    """Int64 of four bfloat16 to four float32."""
    low, high = v.to(tl.int32), (v >> 32).to(tl.int32)
    return (
        (low << 16).to(tl.float32, bitcast=True),
        (low & -65536).to(tl.float32, bitcast=True),
        (high << 16).to(tl.float32, bitcast=True),
        (high & -65536).to(tl.float32, bitcast=True),
    )


@triton.jit
def columns_of(x, quad, limit, QUADS: tl.constexpr):
    """Columns of a row of x, four for each of `quad`, of which each thread has QUADS together: a tuple of 4 * QUADS.

    x points to int64 of four bfloat16, or to floats.
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
    """Each of a tuple times a factor."""
    found = nothing()
    for i in tl.static_range(len(values)):
        found = found + (values[i] * FACTOR,)
    return found


@triton.jit
def bytes_of(t):
    """A word's bytes, each at the top of a mantissa (bits 15 to 22), with others around it."""
    return t << 15, t << 7, t >> 1, t >> 9


@triton.jit
def unpack_integers(words, mask, base):
    """The masked bits of each byte of the words, as BASE's value and so many units above it."""
    found = nothing()
    for i in tl.static_range(len(words)):
        moved = bytes_of(words[i])
        for j in tl.static_range(4):
            found = found + (((moved[j] & mask) | base).to(tl.float32, bitcast=True),)
    return found


@triton.jit
def unpack_e4m3(words):
    """The floats of each byte of the words, 2**-120 too small."""
    found = nothing()
    for i in tl.static_range(len(words)):
        for j in tl.static_range(4):
            found = found + (e4m3_byte(words[i], j),)
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
    """Tensors [C], a power of two of them, as one [C, 2, ..., 2]: threads can then add all of them up at once."""
    if len(values) == 1:
        return values[0]
    else:  # noqa: RET505  Triton compiles one of two branches, and what follows a return always
        joined = nothing()
        for i in tl.static_range(len(values) // 2):
            joined = joined + (tl.join(values[i], values[i + len(values) // 2]),)
        return beside(joined)

"""The sums of `gemv`: products of a few rows of x with some rows of a matrix, in the registers of one program."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_inference.backends.cuda.kernels.bit_unpack import (
    beside,
    columns_of,
    dot_of,
    floats,
    nothing,
    scaled,
    split4,
    total_of,
    unpack_e2m1,
    unpack_e4m3,
    unpack_integers,
    unpack_levels,
)
from octavo_inference.backends.cuda.kernels.dequantize import is_four_bits


# fmt: off
@triton.jit
def load_weights(w, scales, minimums, step, base, first, n, words, groups, FORM: tl.constexpr, GROUP: tl.constexpr,
                 SIDES: tl.constexpr, OUTPUTS: tl.constexpr, WORDS: tl.constexpr):
    """Words of a step for each output, then the scales of all, then the minimums. Zeros past the end of the rows.

    Output o is row `first` + o // SIDES of side o % SIDES; a side has `n` rows, the first side begins at row `base`.
    """
    # A chunk of 16 bytes has one scale; two where low and high nibbles are of different groups of 16.
    CHUNKS: tl.constexpr = WORDS // (2 if FORM == "dense" else 4)
    COLUMNS: tl.constexpr = 32 if is_four_bits(FORM) else 16
    word = step * WORDS + tl.arange(0, WORDS)
    loaded, scale, minimum = nothing(), nothing(), nothing()
    for o in tl.static_range(OUTPUTS):
        out = base + o % SIDES * n + tl.minimum(first + o // SIDES, n - 1)
        loaded = loaded + (tl.load(w + out * words + word, mask=word < words, other=0),)
        if GROUP > 0:
            chunk = step * CHUNKS + tl.arange(0, CHUNKS)
            inside = chunk * 4 < words
            for i in tl.static_range(2 if GROUP < COLUMNS else 1):
                at = out * groups + (chunk * 2 + i if GROUP < COLUMNS else chunk // (GROUP // COLUMNS))
                scale = scale + (tl.load(scales + at, mask=inside, other=0.0),)
                if minimums is not None:
                    minimum = minimum + (tl.load(minimums + at, mask=inside, other=0.0),)
    return loaded + scale + minimum


@triton.jit
def sums_of(ahead, x, w, scales, minimums, levels, m, base, first, n, words, groups, x_stride, FORM: tl.constexpr,
            GROUP: tl.constexpr, ZERO: tl.constexpr, SIDES: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
            WORDS: tl.constexpr):
    """Sums [OUTPUTS * ROWS] in float32, those of one output for all rows next to each other, without factors.

    `ahead` is what `load_weights` gave for step 0, with the same outputs.
    """
    # A word is one element of a load: 4 columns of fp8, int8 or bfloat16, 8 of four bits.
    EACH: tl.constexpr = 2 if FORM == "dense" else 4
    CHUNKS: tl.constexpr = WORDS // EACH
    FOUR: tl.constexpr = is_four_bits(FORM)
    INTEGER: tl.constexpr = FORM == "int4" or FORM == "int8"  # noqa: PLR1714  Triton compiles no set
    # Bits of floats are read as float32, times 2**-120 or 2**-126; x is multiplied by a part of the inverse.
    X: tl.constexpr = 2.0**90 if FORM == "fp8" or FORM == "fp4" else 1.0  # noqa: PLR1714
    # Words of half a group, and scales of a chunk.
    HALF: tl.constexpr = GROUP // 8 if GROUP > 32 else 4
    SCALES: tl.constexpr = 2 if FOUR and GROUP < 32 else 1
    FIRST: tl.constexpr = OUTPUTS + SCALES * OUTPUTS  # of the minimums
    # Zero, but not a constant for the compiler: it copies constants into a register for each use.
    unknown = tl.minimum(n, 0)
    acc = nothing()
    for _ in tl.static_range(ROWS * OUTPUTS):
        acc = acc + (tl.zeros((CHUNKS,), tl.float32),)
    for step in range(tl.cdiv(words, WORDS)):
        loaded = ahead
        ahead = load_weights(w, scales, minimums, step + 1, base, first, n, words, groups, FORM, GROUP, SIDES, OUTPUTS,
                             WORDS)
        word = step * WORDS + tl.arange(0, WORDS)
        low, high, low_sum, high_sum = nothing(), nothing(), nothing(), nothing()
        for r in tl.static_range(ROWS):
            row = x + tl.minimum(r, m - 1).to(tl.int64) * x_stride
            if FOUR:
                # The two halves of a group.
                at = word // HALF * (2 * HALF) + word % HALF
                low = low + (scaled(columns_of(row, at, 2 * words, 4), X),)
                high = high + (scaled(columns_of(row, at + HALF, 2 * words, 4), X),)
                low_sum, high_sum = low_sum + (total_of(low[r]),), high_sum + (total_of(high[r]),)
            elif FORM == "fp8":
                low = low + (scaled(columns_of(row, word, words, 4), X),)
                low_sum = low_sum + (total_of(low[r]),)
            else:
                low = low + (columns_of(row, word, words, EACH),)
                if FORM == "int8":
                    low_sum = low_sum + (total_of(low[r]),)
        added = nothing()
        for o in tl.static_range(OUTPUTS):
            if FORM == "dense":
                pair = tl.split(loaded[o].reshape(CHUNKS, 2))
                weights = floats(pair[0]) + floats(pair[1])
            elif FORM == "fp8":
                weights = unpack_e4m3(split4(loaded[o]))
            elif FORM == "fp4":
                packed = split4(loaded[o])
                weights, upper = unpack_e2m1(packed, 28), unpack_e2m1(packed, 24)
            elif FORM == "code4":
                packed = split4(loaded[o])
                weights, upper = unpack_levels(packed, levels, 0), unpack_levels(packed, levels, 4)
            else:
                packed = split4(loaded[o])
                mask = unknown + (0x78000 if FORM == "int4" else 0x7F8000)
                weights = unpack_integers(packed, mask, unknown + 0x43800000)
                if FORM == "int4":
                    upper = unpack_integers(packed, unknown + 0x780000, unknown + 0x41800000)
            for r in tl.static_range(ROWS):
                total = acc[o * ROWS + r]
                if GROUP == 0:
                    for i in tl.static_range(len(weights)):
                        total += weights[i] * low[r][i]
                else:
                    product = dot_of(weights, low[r])
                    if INTEGER:
                        product -= (256 + ZERO) * low_sum[r]
                    if FOUR:
                        other = dot_of(upper, high[r])
                        if INTEGER:
                            other -= (16 + ZERO) * high_sum[r]
                        if SCALES == 1:
                            product += other
                        else:
                            total += other * loaded[OUTPUTS + 2 * o + 1].to(tl.float32)
                    total += product * loaded[OUTPUTS + SCALES * o].to(tl.float32)
                    if minimums is not None:
                        of_one = low_sum[r]
                        if FOUR and SCALES == 1:
                            of_one += high_sum[r]
                        if FOUR and SCALES == 2:
                            total += high_sum[r] * loaded[FIRST + 2 * o + 1].to(tl.float32)
                        total += of_one * loaded[FIRST + SCALES * o].to(tl.float32)
                added = added + (total,)
        acc = added
    sums = tl.sum(beside(acc).reshape(CHUNKS, OUTPUTS * ROWS), 0)
    if FORM == "fp8":
        sums *= 2.0**30
    elif FORM == "fp4":
        sums *= 2.0**36
    return sums
# fmt: on

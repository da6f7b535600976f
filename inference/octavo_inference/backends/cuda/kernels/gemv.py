"""GEMV: products of very few rows. Each weight is read once, in runs of 16 bytes, and multiplied in float32.

The GPU sets the instruction budget per weight. An H200 reads 4.8e12 bytes a second. Its 132 multiprocessors x 4
schedulers x 1.98e9 issue 33.5e12 instructions per lane: 7 per byte, so 3.5 for a 4-bit weight, 7 for an 8-bit one and
14 for a 16-bit one. More instructions than that leave memory bandwidth idle. Hence:

- An integer becomes a float in place: shifted to the top of a mantissa, under an exponent that makes it 16 + v or
  256 + v. One operation applies the mask and the exponent. The sum's excess is the constant times the sum of x, which
  is subtracted once per group. That loses 2**-19 of a sum in float32; rounding x to bfloat16 has lost 2**-9.
- A group's scale multiplies its sum, not its weights; the bits of float8 and float4 are read as float32, times 2**-120
  and 2**-126. Only levels of other tables are looked up, in the first-level cache.
- x is unpacked once for all rows of weights of a program, and weights once for all rows of x.

Each further row of x costs another multiplication per weight, while tensor cores take 16 rows for the price of one:
`launch_configs` has the limit. Threads add up their columns, a reduction adds their sums, in an order by shapes alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor as Torch

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
from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.dequantize import is_four_bits
from octavo_inference.backends.cuda.kernels.launch_configs import GemvTile, gemv_tile
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix


# fmt: off
@triton.jit
def _load_weights(w, scales, minimums, step, first, n, words, groups, FORM: tl.constexpr, GROUP: tl.constexpr,
                  OUTPUTS: tl.constexpr, WORDS: tl.constexpr):
    """Words of a step for each output, then the scales of all, then the minimums. Zeros past the end of the rows."""
    # A chunk of 16 bytes has one scale; two where low and high nibbles are of different groups of 16.
    CHUNKS: tl.constexpr = WORDS // (2 if FORM == "dense" else 4)
    COLUMNS: tl.constexpr = 32 if is_four_bits(FORM) else 16
    word = step * WORDS + tl.arange(0, WORDS)
    loaded, scale, minimum = nothing(), nothing(), nothing()
    for o in tl.static_range(OUTPUTS):
        out = tl.minimum(first + o, n - 1)
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


@triton.jit(do_not_specialize=["m"])
def _gemv(x, w, scales, minimums, factors, levels, bias, y, m, n, words, groups, x_stride, y_stride,
          FORM: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
          WORDS: tl.constexpr):
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
    first = tl.program_id(0).to(tl.int64) * OUTPUTS
    # Weights are loaded one step ahead, the first of them while the kernel before this one ends.
    ahead = _load_weights(w, scales, minimums, 0, first, n, words, groups, FORM, GROUP, OUTPUTS, WORDS)
    wait_for_previous()
    # Zero, but not a constant for the compiler: it copies constants into a register for each use.
    unknown = tl.minimum(n, 0)
    acc = nothing()
    for _ in tl.static_range(ROWS * OUTPUTS):
        acc = acc + (tl.zeros((CHUNKS,), tl.float32),)
    for step in range(tl.cdiv(words, WORDS)):
        loaded = ahead
        ahead = _load_weights(w, scales, minimums, step + 1, first, n, words, groups, FORM, GROUP, OUTPUTS, WORDS)
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
    index = tl.arange(0, OUTPUTS * ROWS)
    out, row = first + index // ROWS, index % ROWS
    known = out < n
    if FORM == "fp8":
        sums *= 2.0**30
    elif FORM == "fp4":
        sums *= 2.0**36
    if factors is not None:
        sums *= tl.load(factors + out, mask=known, other=0.0)
    if bias is not None:
        sums += tl.load(bias + out, mask=known, other=0.0)
    tl.store(y + row.to(tl.int64) * y_stride + out, sums.to(y.dtype.element_ty), mask=known & (row < m))
# fmt: on


def suits(x: Torch, matrix: DeviceMatrix) -> bool:
    """Return True if `gemv` supports these: dense weights in bfloat16, and rows of whole words of 32 or 64 bits."""
    starts = (x.shape[1], x.stride(0), x.storage_offset())
    aligned = x.dtype != torch.bfloat16 or all(int(start) % 4 == 0 for start in starts)
    whole = matrix.values.shape[1] % 4 == 0
    return aligned and whole and (matrix.form != "dense" or matrix.values.dtype == torch.bfloat16)


def gemv(x: Torch, matrix: DeviceMatrix, bias: Torch | None, out: Torch, *, tile: GemvTile | None = None) -> None:
    """Write x @ weights.T + bias to `out`, as `linear.linear` does, for few rows of x that `suits` accepts.

    x [M, K], out [M, N], matrix [N, K], bias [N] float32. Products are float32, of weights that are not rounded.
    """
    (m, _), n, form = x.shape, matrix.rows, matrix.form
    if m == 0:
        return
    words = matrix.values.view(torch.int64 if form == "dense" else torch.int32)
    quads = x.view(torch.int64) if x.dtype == torch.bfloat16 else x
    tile = tile or gemv_tile(form, m, n, matrix.values.nbytes // n)
    _gemv[(triton.cdiv(n, tile.outputs),)](
        quads, words, matrix.scales, matrix.minimums, matrix.factors, matrix.levels, bias, out, m, n, words.shape[1],
        matrix.groups, quads.stride(0), out.stride(0), FORM=form, GROUP=matrix.layout.group, ZERO=matrix.layout.zero,
        ROWS=triton.next_power_of_2(m), OUTPUTS=tile.outputs, WORDS=tile.warps * (64 if form == "dense" else 128),
        num_warps=tile.warps, **launch_options(),
    )  # fmt: skip

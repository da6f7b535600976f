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

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.gemv_sums import load_weights, sums_of
from octavo_inference.backends.cuda.kernels.launch_configs import GemvTile, gemv_tile
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix


# fmt: off
@triton.jit(do_not_specialize=["m"])
def _gemv(x, w, scales, minimums, factors, levels, bias, y, m, n, words, groups, x_stride, y_stride,
          FORM: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
          WORDS: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * OUTPUTS
    # Weights are loaded one step ahead, the first of them while the kernel before this one ends.
    ahead = load_weights(w, scales, minimums, 0, 0, first, n, words, groups, FORM, GROUP, 1, OUTPUTS, WORDS)
    wait_for_previous()
    sums = sums_of(ahead, x, w, scales, minimums, levels, m, 0, first, n, words, groups, x_stride, FORM, GROUP, ZERO,
                   1, ROWS, OUTPUTS, WORDS)
    index = tl.arange(0, OUTPUTS * ROWS)
    out, row = first + index // ROWS, index % ROWS
    known = out < n
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

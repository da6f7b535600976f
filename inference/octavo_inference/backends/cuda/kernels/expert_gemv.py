"""Products of a few tokens with the matrices of their experts: each weight of a chosen expert is read once per token.

As `gemv`, with rows that begin at those of the expert, and with two sides as in `expert_linear`. Programs of different
choices for the same rows are neighbours: choices of one expert read its weights at about the same time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.activation import activate, clamped
from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.expert_configs import expert_gemv_tile
from octavo_inference.backends.cuda.kernels.expert_linear import Added
from octavo_inference.backends.cuda.kernels.gemv_sums import load_weights, sums_of
from octavo_inference.backends.cuda.kernels.launch_configs import GemvTile
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix


# fmt: off
@triton.jit
def _expert_gemv(x, w, scales, minimums, factors, levels, bias, y, ids, x_weights, added, keys, n, words, groups,
                 x_stride, y_stride, sharers, limit, FORM: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr,
                 SIDES: tl.constexpr, ACTIVATION: tl.constexpr, OUTPUTS: tl.constexpr, WORDS: tl.constexpr):
    wait_for_previous()
    choice = tl.program_id(0).to(tl.int64)
    expert = tl.load(ids + choice).to(tl.int64)
    if expert >= 0:
        first = tl.program_id(1).to(tl.int64) * (OUTPUTS // SIDES)
        base = expert * SIDES * n
        ahead = load_weights(w, scales, minimums, 0, base, first, n, words, groups, FORM, GROUP, SIDES, OUTPUTS, WORDS)
        sums = sums_of(ahead, x + choice // sharers * x_stride, w, scales, minimums, levels, 1, base, first, n, words,
                       groups, x_stride, FORM, GROUP, ZERO, SIDES, 1, OUTPUTS, WORDS)
        lane = tl.arange(0, OUTPUTS)
        unit = first + lane // SIDES
        row = base + lane % SIDES * n + unit
        if factors is not None:
            sums *= tl.load(factors + row, mask=unit < n, other=0.0)
        if x_weights is not None:
            sums *= tl.load(x_weights + choice)
        if bias is not None:
            sums += tl.load(bias + row, mask=unit < n, other=0.0).to(tl.float32)
        if added is not None:
            end = tl.where(tl.load(keys + choice) >= 0, n, 0)
            at = added + choice * (SIDES * n) + lane % SIDES * n + unit
            sums += tl.load(at, mask=unit < end, other=0.0).to(tl.float32)
        if SIDES == 2:
            gate, up = tl.split(sums.reshape(OUTPUTS // 2, 2))
            result = clamped(gate, up, limit) if ACTIVATION == "clamped" else activate(gate, ACTIVATION) * up
        elif ACTIVATION is None:
            result = sums
        else:
            result = activate(sums, ACTIVATION)
        unit = first + tl.arange(0, OUTPUTS // SIDES)
        tl.store(y + choice * y_stride + unit, result.to(y.dtype.element_ty), mask=unit < n)
# fmt: on


def expert_gemv(
    x: Torch,
    matrix: DeviceMatrix,
    bias: Torch | None,
    out: Torch,
    ids: Torch,
    x_weights: Torch | None,
    *,
    sides: int,
    activation: str | None,
    limit: float = 0.0,
    added: Added | None = None,
    tile: GemvTile | None = None,
) -> None:
    """Write the products of choices with their experts' matrices to `out`, as `expert_linear.expert_linear` does.

    x [C, K] or [T, K] and matrix [experts * sides * N, K] that `gemv.suits` accepts, out [C, N], ids [C] or [T, chosen]
    int32 the expert of each choice, below 0 for none.
    """
    choices, n = out.shape
    if choices == 0:
        return
    form = matrix.form
    words = matrix.values.view(torch.int64 if form == "dense" else torch.int32)
    quads = x.view(torch.int64) if x.dtype == torch.bfloat16 else x
    tile = tile or expert_gemv_tile(form, n, matrix.values.nbytes // matrix.rows)
    outputs = max(tile.outputs, sides)
    changes, added_keys = added or (None, None)
    _expert_gemv[(choices, triton.cdiv(n * sides, outputs))](
        quads, words, matrix.scales, matrix.minimums, matrix.factors, matrix.levels, bias, out, ids, x_weights, changes,
        added_keys, n, words.shape[1], matrix.groups, quads.stride(0), out.stride(0), choices // len(x), limit,
        FORM=form, GROUP=matrix.layout.group, ZERO=matrix.layout.zero, SIDES=sides, ACTIVATION=activation,
        OUTPUTS=outputs, WORDS=tile.warps * (64 if form == "dense" else 128), num_warps=tile.warps, **launch_options(),
    )  # fmt: skip

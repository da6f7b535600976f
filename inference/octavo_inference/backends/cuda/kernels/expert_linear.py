"""Products of many tokens with the matrices of their experts: a block of places has rows of one expert.

The matrices of a layer's experts are one matrix whose rows are those of expert 0, of expert 1, and so on. Those of gate
and up are two sides: a tile has a row of one next to the row of the other, whose sums a thread then has both.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.activation import activate, clamped
from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.dequantized_dot import add_step
from octavo_inference.backends.cuda.kernels.expert_configs import expert_tile
from octavo_inference.backends.cuda.kernels.expert_sort import most_blocks
from octavo_inference.backends.cuda.kernels.launch_configs import LinearTile, dot_type
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix

Added = tuple[Torch, Torch]
"""What is added to products of choices, contiguous [C, sides * N], and int32 [C], below 0 for nothing."""


# fmt: off
@triton.jit
def _expert_linear(x, w, scales, minimums, factors, levels, bias, y, places, blocks, x_weights, added, keys, n, k,
                   width, groups, x_stride, y_stride, sharers, limit, FORM: tl.constexpr, GROUP: tl.constexpr,
                   ZERO: tl.constexpr, DOT: tl.constexpr, SIDES: tl.constexpr, ACTIVATION: tl.constexpr,
                   ROWS: tl.constexpr, OUTPUTS: tl.constexpr, STEP: tl.constexpr):
    wait_for_previous()
    block = tl.program_id(0)
    expert = tl.load(blocks + block).to(tl.int64)
    if expert < 0:
        return
    choice = tl.load(places + block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    lane = tl.arange(0, OUTPUTS)
    unit = tl.program_id(1) * (OUTPUTS // SIDES) + lane // SIDES
    row = expert * SIDES * n + lane % SIDES * n + unit
    present, known = (choice >= 0)[:, None], (unit < n)[:, None]
    x += (choice // sharers)[:, None] * x_stride
    w += row[:, None] * width
    if scales is not None:
        scales += row[:, None] * groups
    if minimums is not None:
        minimums += row[:, None] * groups
    acc = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for step in range(tl.cdiv(width, STEP)):
        acc = add_step(acc, x, w, scales, minimums, levels, step, present, known, k, width, groups, FORM, GROUP,
                       ZERO, DOT, STEP)
    if factors is not None:
        acc *= tl.load(factors + row, mask=unit < n, other=0.0)[None, :]
    if x_weights is not None:
        acc *= tl.load(x_weights + choice, mask=choice >= 0, other=0.0)[:, None]
    if bias is not None:
        acc += tl.load(bias + row, mask=unit < n, other=0.0).to(tl.float32)[None, :]
    if added is not None:
        changed = tl.load(keys + choice, mask=choice >= 0, other=-1) >= 0
        at = added + choice[:, None] * (SIDES * n) + (lane % SIDES * n + unit)[None, :]
        acc += tl.load(at, mask=changed[:, None] & (unit < n)[None, :], other=0.0).to(tl.float32)
    if SIDES == 2:
        gate, up = tl.split(acc.reshape(ROWS, OUTPUTS // 2, 2))
        result = clamped(gate, up, limit) if ACTIVATION == "clamped" else activate(gate, ACTIVATION) * up
    elif ACTIVATION is None:
        result = acc
    else:
        result = activate(acc, ACTIVATION)
    unit = tl.program_id(1) * (OUTPUTS // SIDES) + tl.arange(0, OUTPUTS // SIDES)
    tl.store(y + choice[:, None] * y_stride + unit[None, :], result.to(y.dtype.element_ty),
             mask=present & (unit < n)[None, :])
# fmt: on


def expert_linear(
    x: Torch,
    matrix: DeviceMatrix,
    bias: Torch | None,
    out: Torch,
    places: Torch,
    blocks: Torch,
    x_weights: Torch | None,
    *,
    experts: int,
    rows: int,
    sides: int,
    activation: str | None,
    limit: float = 0.0,
    added: Added | None = None,
    tile: LinearTile | None = None,
) -> None:
    """Write the products of choices with their experts' matrices to their rows of `out`.

    x [C, K] or, with the row of a token for all of its choices, [T, K]; out [C, N]; rows contiguous, at any stride.
    matrix [experts * sides * N, K], bias [experts * sides * N]. `places` and `blocks` are of `expert_sort`, for blocks
    of `rows`. With two `sides` out is activation(gate) * up, of "clamped" with its `limit`. x_weights [C] float32 are
    factors of rows of x. `added`: to the sums, before the activation. Rows of choices without an expert are not
    written.
    """
    choices, n = out.shape
    if choices == 0:
        return
    tile = tile or expert_tile(matrix.form, rows, x.dtype)
    most = most_blocks(choices, experts, rows)
    changes, keys = added or (None, None)
    _expert_linear[(most, triton.cdiv(n * sides, tile.outputs))](
        x, matrix.values, matrix.scales, matrix.minimums, matrix.factors, matrix.levels, bias, out, places, blocks,
        x_weights, changes, keys, n, x.shape[1], matrix.values.shape[1], matrix.groups, x.stride(0), out.stride(0),
        choices // len(x), limit, FORM=matrix.form, GROUP=matrix.layout.group, ZERO=matrix.layout.zero,
        DOT=dot_type(x.dtype), SIDES=sides, ACTIVATION=activation, ROWS=rows, OUTPUTS=tile.outputs, STEP=tile.step,
        num_warps=tile.warps, num_stages=tile.stages, **launch_options(),
    )  # fmt: skip

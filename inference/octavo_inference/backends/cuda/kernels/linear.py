"""Weight-only quantized GEMM: activations times a packed matrix, dequantized in registers before the tensor cores."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.dequantized_dot import add_step
from octavo_inference.backends.cuda.kernels.launch_configs import LinearTile, dot_type, linear_tile
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix

_REDUCED = 1024


@triton.jit(do_not_specialize=["m"])
def _linear(x, w, scales, minimums, factors, levels, bias, y, partial, m, n, k, width, groups, x_stride, y_stride,
            FORM: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr, DOT: tl.constexpr, SPLIT: tl.constexpr,
            ROWS: tl.constexpr, OUTPUTS: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    out = tl.program_id(1).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    part = tl.program_id(2)
    present, known = (row < m)[:, None], (out < n)[:, None]
    x += row[:, None] * x_stride
    w += out[:, None] * width
    if scales is not None:
        scales += out[:, None] * groups
    if minimums is not None:
        minimums += out[:, None] * groups
    steps = tl.cdiv(width, STEP)
    each = tl.cdiv(steps, SPLIT)
    acc = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for step in range(part * each, tl.minimum(part * each + each, steps)):
        acc = add_step(acc, x, w, scales, minimums, levels, step, present, known, k, width, groups, FORM, GROUP, ZERO,
                       DOT, STEP)  # fmt: skip
    mask = present & (out < n)[None, :]
    if SPLIT > 1:
        tl.store(partial + (part * m + row[:, None]) * n + out[None, :], acc, mask=mask)
    else:
        if factors is not None:
            acc *= tl.load(factors + out, mask=out < n, other=0.0)[None, :]
        if bias is not None:
            acc += tl.load(bias + out, mask=out < n, other=0.0)[None, :]
        tl.store(y + row[:, None] * y_stride + out[None, :], acc.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["m"])
def _reduce(partial, factors, bias, y, m, n, y_stride, SPLIT: tl.constexpr, WIDTH: tl.constexpr):
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    out = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros((WIDTH,), tl.float32)
    for part in range(SPLIT):
        total += tl.load(partial + (part * m + row) * n + out, mask=out < n, other=0.0)
    if factors is not None:
        total *= tl.load(factors + out, mask=out < n, other=0.0)
    if bias is not None:
        total += tl.load(bias + out, mask=out < n, other=0.0)
    tl.store(y + row * y_stride + out, total.to(y.dtype.element_ty), mask=out < n)


def linear(
    x: Torch,
    matrix: DeviceMatrix,
    bias: Torch | None,
    out: Torch,
    workspace: Torch,
    *,
    tile: LinearTile | None = None,
) -> None:
    """Write x @ weights.T + bias to `out`, for a packed matrix [N, K].

    x [M, K] and out [M, N] in float32, bfloat16 or float16, rows contiguous and at any stride; bias [N] float32.
    Weights without their row's factor are rounded to the type of x and multiplied in it; sums are float32.
    `workspace`: `launch_configs.WORKSPACE` floats for split-K partial sums. A second launch adds them in order: results
    depend on the shapes alone.
    """
    (m, k), (n, width) = x.shape, matrix.values.shape
    if m == 0:
        return
    tile = tile or linear_tile(matrix.form, m, n, width, x.dtype)
    grid = (triton.cdiv(m, tile.rows), triton.cdiv(n, tile.outputs), tile.split)
    _linear[grid](
        x, matrix.values, matrix.scales, matrix.minimums, matrix.factors, matrix.levels, bias, out, workspace,
        m, n, k, width, matrix.groups, x.stride(0), out.stride(0), FORM=matrix.form, GROUP=matrix.layout.group,
        ZERO=matrix.layout.zero, DOT=dot_type(x.dtype), SPLIT=tile.split, ROWS=tile.rows, OUTPUTS=tile.outputs,
        STEP=tile.step, num_warps=tile.warps, num_stages=tile.stages, **launch_options(),
    )  # fmt: skip
    if tile.split > 1:
        _reduce[m, triton.cdiv(n, _REDUCED)](
            workspace, matrix.factors, bias, out, m, n, out.stride(0), SPLIT=tile.split, WIDTH=_REDUCED,
            **launch_options(),
        )  # fmt: skip

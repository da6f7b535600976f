"""Weight-only quantized GEMM: activations times a packed matrix, dequantized in registers before the tensor cores."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.dequantize import e4m3, integers, spread
from octavo_inference.backends.cuda.kernels.launch_configs import LinearTile, dot_type, linear_tile
from octavo_inference.backends.cuda.kernels.weight_layouts import Stored

_REDUCED = 1024


@triton.jit
def _add_product(acc, x, columns, present, limit, weights, scale, minimum, UNIT: tl.constexpr, DOT: tl.constexpr):
    """The sums `acc` + x @ weights.T over columns below `limit`. `weights` are times 1 / UNIT, and not scaled yet."""
    rows = tl.load(x + columns, mask=present & (columns < limit), other=0.0).to(DOT)
    if scale is not None:
        weights *= scale * UNIT
    if minimum is not None:
        weights += minimum
    return tl.dot(rows, tl.trans(weights.to(DOT)), acc, input_precision="ieee")


@triton.jit(do_not_specialize=["m"])
def _linear(x, w, scales, minimums, bias, y, partial, m, n, k, width, groups, x_stride, y_stride,
            FORM: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr, MINIMUM: tl.constexpr, BIAS: tl.constexpr,
            DOT: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
            STEP: tl.constexpr):  # fmt: skip
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    out = tl.program_id(1).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    part = tl.program_id(2)
    present, known = (row < m)[:, None], (out < n)[:, None]
    x += row[:, None] * x_stride
    w += out[:, None] * width
    if GROUP > 0:
        scales += out[:, None] * groups
    if MINIMUM:
        minimums += out[:, None] * groups
    # Bytes of a row that share a scale.
    SPAN: tl.constexpr = GROUP // 2 if FORM == "int4" else GROUP
    steps = tl.cdiv(width, STEP)
    each = tl.cdiv(steps, SPLIT)
    acc = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for step in range(part * each, tl.minimum(part * each + each, steps)):
        at = step * STEP + tl.arange(0, STEP)[None, :]
        raw = tl.load(w + at, mask=known & (at < width), other=0)
        # Assigned in the loop, because Triton does not let a loop change the type of an outer variable.
        scale, minimum = None, None
        if GROUP > 0:
            group = step * (STEP // SPAN) + tl.arange(0, STEP // SPAN)[None, :]
            mask = known & (group < groups)
            scale = spread(tl.load(scales + group, mask=mask, other=0.0), SPAN)
            if MINIMUM:
                minimum = spread(tl.load(minimums + group, mask=mask, other=0.0), SPAN)
        if FORM == "int4":
            both = raw.to(tl.int32)
            columns = at // SPAN * GROUP + at % SPAN
            acc = _add_product(acc, x, columns, present, k, integers(both & 15, ZERO), scale, minimum, 1.0, DOT)
            # The high nibble is not shifted: 16 times the value, with 1/16 of the scale.
            high = integers(both & 240, 16 * ZERO)
            acc = _add_product(acc, x, columns + SPAN, present, k, high, scale, minimum, 0.0625, DOT)
        elif FORM == "int8":
            acc = _add_product(acc, x, at, present, k, integers(raw.to(tl.int32), ZERO), scale, minimum, 1.0, DOT)
        else:
            acc = _add_product(acc, x, at, present, k, e4m3(raw), scale, minimum, 1.0, DOT)
    mask = present & (out < n)[None, :]
    if SPLIT > 1:
        tl.store(partial + (part * m + row[:, None]) * n + out[None, :], acc, mask=mask)
    else:
        if FORM == "fp8":
            acc *= tl.load(scales + out, mask=out < n, other=0.0)[None, :]
        if BIAS:
            acc += tl.load(bias + out, mask=out < n, other=0.0)[None, :]
        tl.store(y + row[:, None] * y_stride + out[None, :], acc.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["m"])
def _reduce(partial, scales, bias, y, m, n, y_stride, SCALED: tl.constexpr, BIAS: tl.constexpr, SPLIT: tl.constexpr,
            WIDTH: tl.constexpr):  # fmt: skip
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    out = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros((WIDTH,), tl.float32)
    for part in range(SPLIT):
        total += tl.load(partial + (part * m + row) * n + out, mask=out < n, other=0.0)
    if SCALED:
        total *= tl.load(scales + out, mask=out < n, other=0.0)
    if BIAS:
        total += tl.load(bias + out, mask=out < n, other=0.0)
    tl.store(y + row * y_stride + out, total.to(y.dtype.element_ty), mask=out < n)


def linear(
    x: Torch,
    values: Torch,
    scales: Torch | None,
    minimums: Torch | None,
    bias: Torch | None,
    out: Torch,
    workspace: Torch,
    *,
    form: Stored,
    group: int = 0,
    zero: int = 0,
    tile: LinearTile | None = None,
) -> None:
    """Write x @ weights.T + bias to `out`, for weights of rows [N, K] in the layouts of `backends.cuda.packing`.

    x [M, K] and out [M, N] in float32, bfloat16 or float16, rows contiguous and at any stride; bias [N] float32.
    `values` by form:

    - int4: uint8 [N, K / 2], low nibbles of a group before its high ones;
    - int8: uint8 [N, K];
    - fp8: uint8 [N, K], the bits of float8_e4m3fn, with `scales` [N] float32.

    int4 and int8: weight = (value - zero) * scale + minimum, `scales` and `minimums` [N, K / group] float16. Weights
    are rounded to the type of x and multiplied in it; sums are float32. `workspace`: `launch_configs.WORKSPACE` floats
    for split-K partial sums. A second launch adds them in order: results depend on the shapes alone.
    """
    (m, k), (n, width) = x.shape, values.shape
    if m == 0:
        return
    tile = tile or linear_tile(form, m, n, width, x.dtype)
    grid = (triton.cdiv(m, tile.rows), triton.cdiv(n, tile.outputs), tile.split)
    _linear[grid](
        x, values, scales, minimums, bias, out, workspace, m, n, k, width, k // group if group else 0,
        x.stride(0), out.stride(0), FORM=form, GROUP=group, ZERO=zero, MINIMUM=minimums is not None,
        BIAS=bias is not None, DOT=dot_type(x.dtype), SPLIT=tile.split, ROWS=tile.rows, OUTPUTS=tile.outputs,
        STEP=tile.step, num_warps=tile.warps, num_stages=tile.stages, **launch_options(),
    )  # fmt: skip
    if tile.split > 1:
        _reduce[m, triton.cdiv(n, _REDUCED)](
            workspace, scales, bias, out, m, n, out.stride(0), SCALED=form == "fp8", BIAS=bias is not None,
            SPLIT=tile.split, WIDTH=_REDUCED, **launch_options(),
        )  # fmt: skip

"""RMSNorm of rows, alone and fused with the addition to the residual stream.

Source: Zhang and Sennrich 2019. The residual stream is float32; inputs and outputs may be narrower.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous


@triton.jit
def _normed(x, weight, columns, inside, hidden, eps):
    """Normalize one row in float32. x is zero past the row's end."""
    scale = tl.rsqrt(tl.sum(x * x) / hidden + eps)
    return x * scale * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _rms_norm(x, weight, out, x_stride, out_stride, hidden, eps, BLOCK: tl.constexpr):
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    result = _normed(values, weight, columns, inside, hidden, eps)
    tl.store(out + row * out_stride + columns, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add_rms_norm(
    residual,
    x,
    scale,
    x_weight,
    weight,
    out,
    residual_stride,
    x_stride,
    out_stride,
    hidden,
    eps,
    NORM_X: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    added = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if NORM_X:
        added = _normed(added, x_weight, columns, inside, hidden, eps)
    at = residual + row * residual_stride + columns
    total = tl.load(at, mask=inside, other=0.0) + scale * added
    tl.store(at, total, mask=inside)
    result = _normed(total, weight, columns, inside, hidden, eps)
    tl.store(out + row * out_stride + columns, result.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Torch, weight: Torch, eps: float, out: Torch) -> None:
    """Normalize each row: out = x / sqrt(mean(x**2) + eps) * weight.

    x [T, H], weight [H], out [T, H], each of any float type; rows may have any stride, elements are contiguous.
    """
    rows, hidden = x.shape
    if rows:
        block, warps = _sizes(hidden)
        _rms_norm[(rows,)](
            x, weight, out, x.stride(0), out.stride(0), hidden, eps, BLOCK=block, num_warps=warps, **launch_options()
        )


def add_rms_norm(
    residual: Torch, x: Torch, scale: float, weight: Torch, eps: float, out: Torch, x_weight: Torch | None = None
) -> None:
    """Add to the residual stream, then normalize it: residual += scale * x; out = norm(residual) * weight.

    residual [T, H] float32, changed in place; x, out [T, H] and weight [H] of any float type. With x_weight [H], x is
    normalized with it before the addition (`output_norms` of the model).
    """
    rows, hidden = x.shape
    if rows:
        block, warps = _sizes(hidden)
        _add_rms_norm[(rows,)](
            residual,
            x,
            scale,
            weight if x_weight is None else x_weight,
            weight,
            out,
            residual.stride(0),
            x.stride(0),
            out.stride(0),
            hidden,
            eps,
            NORM_X=x_weight is not None,
            BLOCK=block,
            num_warps=warps,
            **launch_options(),
        )


def _sizes(hidden: int) -> tuple[int, int]:
    """Size and warps of the tile, which holds one row: at most 16 elements per thread up to 8192."""
    block = triton.next_power_of_2(hidden)
    return block, max(1, min(16, block // 512))

"""RMSNorm and LayerNorm of rows, alone and fused with the addition to the residual stream.

Sources: Zhang and Sennrich 2019; Ba, Kiros and Hinton 2016. The residual stream is float32; inputs and outputs may be
narrower.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous


class DeviceNorm(NamedTuple):
    """A norm's weight and bias, of any float type; None: it has none. `centred`: LayerNorm, else RMSNorm."""

    weight: Torch | None
    bias: Torch | None = None
    centred: bool = False


@triton.jit
def normalized(x, weight, bias, columns, inside, width, eps, CENTRED: tl.constexpr):
    """Normalize one row in float32. x is zero past the row's end."""
    if CENTRED:
        x = tl.where(inside, x - tl.sum(x) / width, 0.0)
    x = x * tl.rsqrt(tl.sum(x * x) / width + eps)
    if weight is not None:
        x *= tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        x += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    return x


@triton.jit
def _normalize(x, weight, bias, out, x_stride, out_stride, width, eps, CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    result = normalized(values, weight, bias, columns, inside, width, eps, CENTRED)
    tl.store(out + row * out_stride + columns, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add_normalize(
    residual, x, scale, x_weight, x_bias, weight, bias, out, residual_stride, x_stride, out_stride, width, eps,
    NORM_X: tl.constexpr, NORM: tl.constexpr, KEEP: tl.constexpr, CENTRED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    added = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if NORM_X:
        added = normalized(added, x_weight, x_bias, columns, inside, width, eps, CENTRED)
    at = residual + row * residual_stride + columns
    total = tl.load(at, mask=inside, other=0.0) + scale * added
    if not KEEP:
        tl.store(at, total, mask=inside)
    if NORM:
        total = normalized(total, weight, bias, columns, inside, width, eps, CENTRED)
    if KEEP:
        tl.store(at, total, mask=inside)
    tl.store(out + row * out_stride + columns, total.to(out.dtype.element_ty), mask=inside)


def normalize(x: Torch, norm: DeviceNorm, eps: float, out: Torch) -> None:
    """Normalize each row: out = x / sqrt(mean(x**2) + eps) * weight + bias, of x - mean(x) if the norm is centred.

    x [T, H], weight and bias [H], out [T, H], each of any float type; rows may have any stride, elements are
    contiguous. `out` may be x.
    """
    rows, width = x.shape
    if rows:
        block, warps = tile_of(width)
        _normalize[(rows,)](
            x, norm.weight, norm.bias, out, x.stride(0), out.stride(0), width, eps, CENTRED=norm.centred, BLOCK=block,
            num_warps=warps, **launch_options(),
        )  # fmt: skip


def add_normalize(
    residual: Torch,
    x: Torch,
    scale: float,
    norm: DeviceNorm | None,
    eps: float,
    out: Torch,
    x_norm: DeviceNorm | None = None,
    *,
    keep: bool = False,
) -> None:
    """Add to the residual stream, then normalize it: residual += scale * x; out = norm(residual).

    residual [T, H] float32, changed in place; x, out [T, H] and weights [H] of any float type. x is normalized with
    `x_norm` before the addition (`output_norms` of the model). Without `norm` out is the residual stream. `keep`: the
    result becomes the residual stream (`post_residual_norms`). Both norms are of one kind.
    """
    rows, width = x.shape
    if rows:
        block, warps = tile_of(width)
        after, before = norm or DeviceNorm(None), x_norm or DeviceNorm(None)
        _add_normalize[(rows,)](
            residual, x, scale, before.weight, before.bias, after.weight, after.bias, out, residual.stride(0),
            x.stride(0), out.stride(0), width, eps, NORM_X=x_norm is not None, NORM=norm is not None, KEEP=keep,
            CENTRED=before.centred or after.centred, BLOCK=block, num_warps=warps, **launch_options(),
        )  # fmt: skip


def tile_of(width: int) -> tuple[int, int]:
    """Size and warps of the tile, which holds one row: at most 16 elements per thread up to 8192."""
    block = triton.next_power_of_2(width)
    return block, max(1, min(16, block // 512))

"""Products by torch's matrix libraries (cuBLAS, CUTLASS): dense weights, and fp8 activations by fp8 weights.

In Triton's interpreter they are computed in float32: the CPU lacks them.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor as Torch

GROUP = 128
"""Columns of `fp8_groups` that share a scale."""
GROUPED_ROWS = 4
"""`fp8_groups` needs a multiple of this many rows of x, so that the scales of each group begin at 16 bytes."""

_HOPPER, _GROUPS_SINCE = (9, 0), (12, 9)
_STEP = 16  # the library's fp8 products need multiples of this many rows and columns of weights


def dense(x: Torch, weights: Torch, bias: Torch | None, out: Torch) -> None:
    """Write x [M, K] @ weights [N, K].T + bias [N] to out [M, N], whose rows may have any stride.

    `out` has the type of x and weights, or is float32: then the sums are not rounded to the shorter type (logits). The
    latter is `torch.mm(out_dtype=)`, which needs torch 2.8 and a GPU.
    """
    if out.dtype == x.dtype:
        if bias is None:
            torch.mm(x, weights.t(), out=out)
        else:
            torch.addmm(bias, x, weights.t(), out=out)
        return
    if _interpreted(x):
        torch.mm(x.to(out.dtype), weights.to(out.dtype).t(), out=out)
    else:
        torch.mm(x, weights.t(), out_dtype=out.dtype, out=out)
    if bias is not None:
        out.add_(bias)


def scales_rows(rows: int, cols: int) -> bool:
    """Return True if `fp8` supports weights of this shape."""
    return rows % _STEP == 0 and cols % _STEP == 0


def fp8(x: Torch, x_scales: Torch, weights: Torch, scales: Torch, bias: Torch | None, out: Torch) -> None:
    """Write (x * x_scales) @ (weights * scales).T + bias to out [M, N], contiguous.

    x [M, K] and weights [N, K] are uint8, the bits of float8_e4m3fn, contiguous; x_scales [M], scales [N] and bias [N]
    are float32. On a GPU `out` is bfloat16, N and K are those of `scales_rows`, and compute capability 8.9 is needed.
    """
    operands = scaled_operands(x, x_scales, weights, scales)
    if _interpreted(x):
        left, right, left_scales, right_scales = operands
        out.copy_(left.float() @ right.float() * left_scales * right_scales)
    else:
        # No fast accumulation (the default): tensor cores of 9.0 keep about 14 bits of a sum of float8.
        torch._scaled_mm(*operands, out_dtype=out.dtype, out=out)  # noqa: SLF001  torch has no public name for it
    if bias is not None:
        # The library adds only a bias of bfloat16.
        out.add_(bias)


def scaled_operands(x: Torch, x_scales: Torch, weights: Torch, scales: Torch) -> tuple[Torch, Torch, Torch, Torch]:
    """The operands of `torch._scaled_mm` for one scale per row of x and weights.

    x [M, K] row-major, weights [K, N] column-major, scales [M, 1] and [1, N], contiguous.
    """
    kind = torch.float8_e4m3fn
    return x.view(kind), weights.view(kind).t(), x_scales[:, None], scales[None, :]


def scales_groups(rows: int, cols: int) -> bool:
    """Return True if `fp8_groups` supports weights of this shape."""
    return rows % _STEP == 0 and cols % GROUP == 0


def fp8_groups(x: Torch, x_scales: Torch, weights: Torch, scales: Torch, bias: Torch | None, out: Torch) -> None:
    """`fp8` with a scale for each row and `GROUP` columns of both: x_scales [K / 128, M], scales [K / 128, N].

    All are contiguous. On a GPU, M is a multiple of `GROUPED_ROWS`, N and K are those of `scales_groups`, and
    `supports_groups` is true.
    """
    operands = grouped_operands(x, x_scales, weights, scales)
    if _interpreted(x):
        left, right, left_scales, right_scales = operands
        wide = left.float() * left_scales.repeat_interleave(GROUP, dim=1)
        out.copy_(wide @ (right.float() * right_scales.repeat_interleave(GROUP, dim=0)))
    else:
        torch._scaled_mm(*operands, out_dtype=out.dtype, out=out)  # noqa: SLF001  torch has no public name for it
    if bias is not None:
        out.add_(bias)


def grouped_operands(x: Torch, x_scales: Torch, weights: Torch, scales: Torch) -> tuple[Torch, Torch, Torch, Torch]:
    """The operands of `torch._scaled_mm` for "1x128" scales of both.

    As in `scaled_operands`, with scales [M, K / 128] column-major and [K / 128, N] row-major: for cuBLAS, the scales of
    adjacent rows of x or of weights are adjacent.
    """
    kind = torch.float8_e4m3fn
    return x.view(kind), weights.view(kind).t(), x_scales.t(), scales


def supports_groups(capability: tuple[int, int], cuda: str | None) -> bool:
    """Return True if the library multiplies fp8 with scales of groups: on Hopper alone, from CUDA 12.9 on.

    Source: pytorch/pytorch#158037, #166639. `cuda` is the CUDA that torch was built for.
    """
    if capability != _HOPPER or cuda is None:
        return False
    major, minor = map(int, cuda.split(".")[:2])
    return (major, minor) >= _GROUPS_SINCE


def _interpreted(x: Torch) -> bool:
    return bool(triton.knobs.runtime.interpret) and x.device.type == "cpu"

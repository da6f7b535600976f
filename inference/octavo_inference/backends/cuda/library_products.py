"""Products by torch's matrix libraries (cuBLAS, CUTLASS): dense weights, and fp8 activations by fp8 weights.

In Triton's interpreter they are computed in float32: the CPU lacks them.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor as Torch

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


def _interpreted(x: Torch) -> bool:
    return bool(triton.knobs.runtime.interpret) and x.device.type == "cpu"

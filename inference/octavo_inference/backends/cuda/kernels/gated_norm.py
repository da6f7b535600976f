"""Gates of mixers' outputs, with the RMSNorm of state layers, each group of a token's elements by itself."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous

_ELEMENTS = 2048  # of a program, as far as groups are short


@triton.jit
def _gated_norm(
    x, gate, weight, x_stride, gate_stride, groups, width, weight_stride, eps,
    SILU: tl.constexpr, NORM_FIRST: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    group = (tl.program_id(1) * GROUPS + tl.arange(0, GROUPS))[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (group < groups) & (columns < width)
    at = x + token * x_stride + group * width + columns
    values = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    z = tl.load(gate + token * gate_stride + group * width + columns, mask=inside, other=0.0).to(tl.float32)
    z = z * tl.sigmoid(z) if SILU else tl.sigmoid(z)
    if not NORM_FIRST:
        values *= z
    if weight is not None:
        values *= tl.rsqrt(tl.sum(values * values, 1) / width + eps)[:, None]
        values *= tl.load(weight + group * weight_stride + columns, mask=inside, other=0.0)
    if NORM_FIRST:
        values *= z
    tl.store(at, values.to(x.dtype.element_ty), mask=inside)


def gated_norm(x: Torch, gate: Torch, weight: Torch | None, eps: float, *, groups: int, norm_first: bool) -> None:
    """Gate by silu(gate) and normalize each group in place: norm(x * silu(gate)), or norm(x) * silu(gate).

    x, gate [T, inner] of any float type; rows may have any stride, elements are contiguous. weight float32: [inner], or
    [inner / groups], which all groups share. None: no norm.
    """
    _launch(x, gate, weight, eps, groups, silu=True, norm_first=norm_first)


def sigmoid_gate(x: Torch, gate: Torch) -> None:
    """Multiply x by sigmoid(gate) in place; both [T, inner], as in `gated_norm`."""
    _launch(x, gate, None, 0.0, 1, silu=False, norm_first=False)


def _launch(
    x: Torch, gate: Torch, weight: Torch | None, eps: float, groups: int, *, silu: bool, norm_first: bool
) -> None:
    """Launch the kernel over x [T, inner]."""
    tokens, inner = x.shape
    width = inner // groups
    block = triton.next_power_of_2(width)
    together = max(1, min(triton.next_power_of_2(groups), _ELEMENTS // block))
    if tokens:
        _gated_norm[(tokens, triton.cdiv(groups, together))](
            x, gate, weight, x.stride(0), gate.stride(0), groups, width,
            0 if weight is None or len(weight) == width else width, eps,
            SILU=silu, NORM_FIRST=norm_first, GROUPS=together, BLOCK=block,
            num_warps=max(1, min(16, together * block // 512)), **launch_options(),
        )  # fmt: skip

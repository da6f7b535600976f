"""Adds up the outputs of a token's experts in the order of their numbers, and of the MLP that all tokens share."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous

_TILE = 1024


@triton.jit
def _sum(outputs, ids, weights, shared, out, width, out_stride, CHOSEN: tl.constexpr, SHARED: tl.constexpr,
         TILE: tl.constexpr):  # fmt: skip
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < width
    total = tl.zeros((TILE,), tl.float32)
    for i in tl.static_range(CHOSEN):
        choice = token * CHOSEN + i
        # Rows of choices without an expert were not written.
        end = tl.where(tl.load(ids + choice) >= 0, width, 0)
        row = tl.load(outputs + choice * width + columns, mask=columns < end, other=0.0).to(tl.float32)
        if weights is not None:
            row *= tl.load(weights + choice)
        total += row
    if SHARED:
        row = tl.load(out + token * out_stride + columns, mask=inside, other=0.0).to(tl.float32)
        if shared is not None:
            row *= tl.load(shared + token)
        total += row
    tl.store(out + token * out_stride + columns, total.to(out.dtype.element_ty), mask=inside)


def expert_sum(
    outputs: Torch, ids: Torch, weights: Torch | None, shared: Torch | None, out: Torch, *, add: bool
) -> None:
    """Write the sum of a token's rows of `outputs`, times their weights, to `out`; with `add`, times `shared`, to it.

    outputs [T * chosen, width], contiguous; ids [T, chosen] int32, below 0 for rows that do not count; weights [T,
    chosen] and shared [T] float32, None for 1; out [T, width], which holds the output of the shared MLP with `add`.
    """
    tokens, width = out.shape
    if tokens:
        _sum[(tokens, triton.cdiv(width, _TILE))](
            outputs, ids, weights, shared, out, width, out.stride(0), CHOSEN=ids.shape[1], SHARED=add, TILE=_TILE,
            **launch_options(),
        )  # fmt: skip

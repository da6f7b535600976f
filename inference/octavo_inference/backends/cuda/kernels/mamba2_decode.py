"""Mamba-2: a state's update by one token, and what the token reads of it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.state_math import load_state, softplus

_ELEMENTS, _WARPS = 4096, 4  # of a program's part of a state: 32 registers of each thread


@triton.jit(do_not_specialize_on_alignment=["row", "query_start", "seq_len", "bounds"])
def _mamba2_decode(
    x, dt, rate, step_bias, skip, state, row, query_start, seq_len, bounds, out,
    dt_least, dt_most, x_stride, dt_stride, slot_stride, out_stride,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, DIM: tl.constexpr, STATE: tl.constexpr,
    BLOCK_D: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    wait_for_previous()
    seq = tl.program_id(0)
    head = tl.program_id(1)
    if seq >= tl.load(bounds):
        return
    token = tl.load(query_start + seq).to(tl.int64)
    element = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    column = tl.arange(0, N)
    real, inside = element < DIM, column < STATE
    mask = real[:, None] & inside[None, :]

    step = softplus(tl.load(dt + token * dt_stride + head).to(tl.float32) + tl.load(step_bias + head))
    step = tl.minimum(tl.maximum(step, dt_least), dt_most)
    x += token * x_stride
    own = tl.load(x + head * DIM + element, mask=real, other=0.0).to(tl.float32)
    shared = x + HEADS * DIM + head // (HEADS // GROUPS) * STATE + column
    b = tl.load(shared, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(shared + GROUPS * STATE, mask=inside, other=0.0).to(tl.float32)

    at, kept = load_state(
        state, row, seq_len, seq, 1, slot_stride, head, element, column, mask, DIM, STATE
    )  # fmt: skip
    kept = kept * tl.exp(step * tl.load(rate + head)) + (step * own)[:, None] * b[None, :]
    tl.store(at, kept, mask=mask)
    y = tl.sum(kept * c[None, :], 1) + tl.load(skip + head) * own
    tl.store(out + token * out_stride + head * DIM + element, y.to(out.dtype.element_ty), mask=real)


def mamba2_decode(
    x: Torch,
    dt: Torch,
    rate: Torch,
    step_bias: Torch,
    skip: Torch,
    state: Torch,
    row: Torch,
    query_start: Torch,
    seq_len: Torch,
    bounds: Torch,
    out: Torch,
    *,
    dt_limits: tuple[float, float],
) -> None:
    """Update the states of the first bounds[0] sequences, which have one token each, and write their outputs.

    x [T, heads * head_dim + 2 * groups * columns]: the convolved x, B and C; dt [T, heads], rows at any stride; rate
    (-exp(A_log)), step_bias and skip [heads] float32. state [slots, heads, head_dim, columns] float32, a slot's
    elements contiguous: that in row[B] is the sequence's, and starts from zeros where seq_len [B] is 1. query_start
    [B + 1], bounds [2] and the others are int32. out [T, heads * head_dim]. dt_limits: the least and the most step.

    Source: Dao and Gu 2024, "Transformers are SSMs", section 7.
    """
    _, heads, dim, columns = state.shape
    n = triton.next_power_of_2(columns)
    block = max(1, min(triton.next_power_of_2(dim), _ELEMENTS // n))
    _mamba2_decode[(len(seq_len), heads, triton.cdiv(dim, block))](
        x, dt, rate, step_bias, skip, state, row, query_start, seq_len, bounds, out,
        *dt_limits, x.stride(0), dt.stride(0), state.stride(0), out.stride(0),
        HEADS=heads, GROUPS=(x.shape[1] - heads * dim) // (2 * columns), DIM=dim, STATE=columns, BLOCK_D=block, N=n,
        num_warps=_WARPS, **launch_options(),
    )  # fmt: skip

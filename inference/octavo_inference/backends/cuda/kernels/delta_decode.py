"""Gated delta net: a state's update by one token, and what the token reads of it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.state_math import FLOOR, load_state, softplus

_ELEMENTS, _WARPS = 8192, 4  # of a program's part of a state: 64 registers of each thread


@triton.jit(do_not_specialize_on_alignment=["row", "query_start", "seq_len", "bounds"])
def _delta_decode(
    x, steps, rate, step_bias, state, row, query_start, seq_len, bounds, out,
    floor, x_stride, steps_stride, slot_stride, out_stride,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    wait_for_previous()
    seq = tl.program_id(0)
    head = tl.program_id(1)
    if seq >= tl.load(bounds):
        return
    token = tl.load(query_start + seq).to(tl.int64)
    element = tl.arange(0, K)
    column = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    inside, real = element < KEY, column < VALUE
    mask = inside[:, None] & real[None, :]

    steps += token * steps_stride + head
    learned = tl.sigmoid(tl.load(steps).to(tl.float32))
    step = softplus(tl.load(steps + HEADS).to(tl.float32) + tl.load(step_bias + head))
    x += token * x_stride
    shared = x + head // (HEADS // KEY_HEADS) * KEY + element
    q = tl.load(shared, mask=inside, other=0.0).to(tl.float32)
    k = tl.load(shared + KEY_HEADS * KEY, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(x + 2 * KEY_HEADS * KEY + head * VALUE + column, mask=real, other=0.0).to(tl.float32)
    q *= tl.rsqrt(tl.sum(q * q) + floor) * (KEY**-0.5)
    k *= tl.rsqrt(tl.sum(k * k) + floor)

    at, kept = load_state(
        state, row, seq_len, seq, 1, slot_stride, head, element, column, mask, KEY, VALUE
    )  # fmt: skip
    kept *= tl.exp(step * tl.load(rate + head))
    change = (v - tl.sum(kept * k[:, None], 0)) * learned
    kept += k[:, None] * change[None, :]
    tl.store(at, kept, mask=mask)
    y = tl.sum(kept * q[:, None], 0)
    tl.store(out + token * out_stride + head * VALUE + column, y.to(out.dtype.element_ty), mask=real)


def delta_decode(
    x: Torch,
    steps: Torch,
    rate: Torch,
    step_bias: Torch,
    state: Torch,
    row: Torch,
    query_start: Torch,
    seq_len: Torch,
    bounds: Torch,
    out: Torch,
) -> None:
    """Update the states of the first bounds[0] sequences, which have one token each, and write their outputs.

    x [T, 2 * key_heads * key_dim + heads * value_dim]: the convolved queries, keys and values; steps [T, 2 * heads]: b,
    then a, rows at any stride; rate (-exp(A_log)) and step_bias [heads] float32. state [slots, heads, key_dim,
    value_dim] float32, a slot's elements contiguous: that in row[B] is the sequence's, and starts from zeros where
    seq_len [B] is 1. query_start [B + 1], bounds [2] and the others are int32. out [T, heads * value_dim]. Value heads
    in a row share a key head. Queries and keys are normalized to length one.

    Source: Yang et al. 2024, "Gated Delta Networks", section 3.
    """
    _, heads, key, value = state.shape
    k = triton.next_power_of_2(key)
    block = max(1, min(triton.next_power_of_2(value), _ELEMENTS // k))
    _delta_decode[(len(seq_len), heads, triton.cdiv(value, block))](
        x, steps, rate, step_bias, state, row, query_start, seq_len, bounds, out,
        FLOOR, x.stride(0), steps.stride(0), state.stride(0), out.stride(0),
        HEADS=heads, KEY_HEADS=(x.shape[1] - heads * value) // (2 * key), KEY=key, VALUE=value, K=k, BLOCK_V=block,
        num_warps=_WARPS, **launch_options(),
    )  # fmt: skip

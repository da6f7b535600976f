"""Gated delta net over prompts, second part: chunk by chunk, with the inverse of each chunk's system."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.delta_solve import delta_solve
from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.launch_configs import ChunkTile, chunk_tile, dot_type
from octavo_inference.backends.cuda.kernels.state_math import FLOOR, decays_between, load_state, softplus, unit

_ELEMENTS = 4096  # of a program's part of a state: 16 registers of each thread


@triton.jit(do_not_specialize_on_alignment=["row", "query_start", "seq_len", "bounds"])
def _delta_chunks(
    x, steps, rate, step_bias, solved, state, row, query_start, seq_len, bounds, out,
    floor, x_stride, steps_stride, slot_stride, out_stride,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    BLOCK_T: tl.constexpr, K: tl.constexpr, BLOCK_V: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    wait_for_previous()
    head = tl.program_id(0)
    seq = tl.load(bounds) + tl.program_id(2)
    if seq >= tl.load(bounds + 1):
        return
    start = tl.load(query_start + seq).to(tl.int64)
    tokens = (tl.load(query_start + seq + 1) - start).to(tl.int32)
    element = tl.arange(0, K)
    column = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    within = tl.arange(0, BLOCK_T)
    inside, real = element < KEY, column < VALUE
    mask = inside[:, None] & real[None, :]
    # Offsets within a chunk fit into 32 bits.
    rows = within[:, None] * x_stride
    x += start * x_stride
    values = x + 2 * KEY_HEADS * KEY + head * VALUE
    x += head // (HEADS // KEY_HEADS) * KEY
    out += start * out_stride + head * VALUE
    steps += start * steps_stride + head
    solved += (start * HEADS + head) * BLOCK_T
    slope, bias = tl.load(rate + head), tl.load(step_bias + head)

    at, kept = load_state(
        state, row, seq_len, seq, tokens, slot_stride, head, element, column, mask, KEY, VALUE
    )  # fmt: skip
    for first in range(0, tokens, BLOCK_T):
        live = first + within < tokens
        learned = tl.sigmoid(tl.load(steps + within * steps_stride, mask=live, other=0.0).to(tl.float32))
        step = softplus(tl.load(steps + HEADS + within * steps_stride, mask=live, other=0.0).to(tl.float32) + bias)
        fall = tl.where(live, step * slope, 0.0)
        total, last = tl.cumsum(fall, 0), tl.sum(fall, 0)
        narrow, wide = live[:, None] & real[None, :], live[:, None] & inside[None, :]
        q = tl.load(x + rows + element[None, :], mask=wide, other=0.0).to(tl.float32)
        q = (unit(q, floor) * (KEY**-0.5)).to(DOT)
        k = tl.load(x + rows + (KEY_HEADS * KEY + element)[None, :], mask=wide, other=0.0).to(tl.float32)
        k = unit(k, floor).to(DOT)
        v = tl.load(values + rows + column[None, :], mask=narrow, other=0.0).to(tl.float32)
        inverse = solved + within[:, None] * (HEADS * BLOCK_T) + within[None, :]
        inverse = tl.load(inverse, mask=live[:, None], other=0.0).to(DOT)

        before = kept.to(DOT)
        reach = tl.exp(total)[:, None]
        wrong = (v - tl.dot(k, before, input_precision="ieee") * reach) * learned[:, None]
        change = tl.dot(inverse, wrong.to(DOT), input_precision="ieee").to(DOT)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * decays_between(total, BLOCK_T)
        y = tl.dot(q, before, input_precision="ieee") * reach
        y = tl.dot(score.to(DOT), change, y, input_precision="ieee")
        tl.store(out + within[:, None] * out_stride + column[None, :], y.to(out.dtype.element_ty), mask=narrow)
        left = tl.trans(k.to(tl.float32) * tl.exp(last - total)[:, None]).to(DOT)
        kept = tl.dot(left, change, kept * tl.exp(last), input_precision="ieee")
        x += BLOCK_T * x_stride
        values += BLOCK_T * x_stride
        out += BLOCK_T * out_stride
        steps += BLOCK_T * steps_stride
        solved += BLOCK_T * HEADS * BLOCK_T
    tl.store(at, kept, mask=mask)


def delta_chunks(
    x: Torch,
    steps: Torch,
    rate: Torch,
    step_bias: Torch,
    solved: Torch,
    state: Torch,
    row: Torch,
    query_start: Torch,
    seq_len: Torch,
    bounds: Torch,
    out: Torch,
    *,
    tile: ChunkTile | None = None,
) -> None:
    """Update the states of the sequences from bounds[0] up to bounds[1], of any number of tokens, and write outputs.

    Shapes are those of `delta_decode.delta_decode`; a state starts from zeros where the tokens are all of seq_len.
    `solved` [T, heads, chunk] of the type of x is written before it is read. Products have operands in the type of x,
    sums and the state are float32.

    Source: the chunkwise form, Yang et al. 2024, "Gated Delta Networks", section 3.3.
    """
    _, heads, key, value = state.shape
    key_heads, k = (x.shape[1] - heads * value) // (2 * key), max(16, triton.next_power_of_2(key))
    tile = tile or chunk_tile(x.dtype)
    delta_solve(
        x, steps, rate, step_bias, query_start, bounds, solved, heads=heads, key_dim=key, key_heads=key_heads,
        warps=tile.warps,
    )  # fmt: skip
    block = max(16, min(triton.next_power_of_2(value), _ELEMENTS // k))
    _delta_chunks[(heads, triton.cdiv(value, block), len(seq_len))](
        x, steps, rate, step_bias, solved, state, row, query_start, seq_len, bounds, out,
        FLOOR, x.stride(0), steps.stride(0), state.stride(0), out.stride(0),
        HEADS=heads, KEY_HEADS=key_heads, KEY=key, VALUE=value, BLOCK_T=solved.shape[2], K=k, BLOCK_V=block,
        DOT=dot_type(x.dtype), num_warps=tile.warps, num_stages=tile.stages, **launch_options(),
    )  # fmt: skip

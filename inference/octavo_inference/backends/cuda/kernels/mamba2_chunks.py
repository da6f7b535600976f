"""Mamba-2 over prompts, chunk by chunk: within a chunk by products of matrices, between chunks by the state."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.launch_configs import ChunkTile, chunk_tile, dot_type
from octavo_inference.backends.cuda.kernels.state_math import decays_between, load_state, softplus

_LARGEST = 1 << 20  # elements of a state's part times its width, which the tiles of B and C have, too


@triton.jit(do_not_specialize_on_alignment=["row", "query_start", "seq_len", "bounds"])
def _mamba2_chunks(
    x, dt, rate, step_bias, skip, state, row, query_start, seq_len, bounds, out,
    dt_least, dt_most, x_stride, dt_stride, slot_stride, out_stride,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, DIM: tl.constexpr, STATE: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, N: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    wait_for_previous()
    head = tl.program_id(0)
    seq = tl.load(bounds) + tl.program_id(2)
    if seq >= tl.load(bounds + 1):
        return
    start = tl.load(query_start + seq).to(tl.int64)
    tokens = (tl.load(query_start + seq + 1) - start).to(tl.int32)
    element = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    column = tl.arange(0, N)
    real, inside = element < DIM, column < STATE
    mask = real[:, None] & inside[None, :]
    within = tl.arange(0, BLOCK_T)
    # Offsets within a chunk fit into 32 bits.
    rows = within[:, None] * x_stride
    x += start * x_stride + head * DIM
    shared = x + (HEADS - head) * DIM + head // (HEADS // GROUPS) * STATE
    out += start * out_stride + head * DIM
    dt += start * dt_stride + head
    slope, bias, through = tl.load(rate + head), tl.load(step_bias + head), tl.load(skip + head)

    at, kept = load_state(
        state, row, seq_len, seq, tokens, slot_stride, head, element, column, mask, DIM, STATE
    )  # fmt: skip
    for first in range(0, tokens, BLOCK_T):
        live = first + within < tokens
        step = softplus(tl.load(dt + within * dt_stride, mask=live, other=0.0).to(tl.float32) + bias)
        step = tl.where(live, tl.minimum(tl.maximum(step, dt_least), dt_most), 0.0)
        total = tl.cumsum(step * slope, 0)  # the logarithm of the decay from the chunk's start on
        last = tl.sum(step * slope, 0)
        narrow, wide = live[:, None] & real[None, :], live[:, None] & inside[None, :]
        own = tl.load(x + rows + element[None, :], mask=narrow, other=0.0)
        b = tl.load(shared + rows + column[None, :], mask=wide, other=0.0).to(DOT)
        c = tl.load(shared + rows + (GROUPS * STATE + column)[None, :], mask=wide, other=0.0).to(DOT)

        weight = tl.dot(c, tl.trans(b), input_precision="ieee") * decays_between(total, BLOCK_T) * step[None, :]
        y = tl.dot(c, tl.trans(kept).to(DOT), input_precision="ieee") * tl.exp(total)[:, None]
        y = tl.dot(weight.to(DOT), own.to(DOT), y, input_precision="ieee") + through * own.to(tl.float32)
        tl.store(out + within[:, None] * out_stride + element[None, :], y.to(out.dtype.element_ty), mask=narrow)
        left = own.to(tl.float32) * (step * tl.exp(last - total))[:, None]
        kept = tl.dot(tl.trans(left).to(DOT), b, kept * tl.exp(last), input_precision="ieee")
        x += BLOCK_T * x_stride
        shared += BLOCK_T * x_stride
        out += BLOCK_T * out_stride
        dt += BLOCK_T * dt_stride
    tl.store(at, kept, mask=mask)


def mamba2_chunks(
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
    tile: ChunkTile | None = None,
) -> None:
    """Update the states of the sequences from bounds[0] up to bounds[1], of any number of tokens, and write outputs.

    Shapes are those of `mamba2_decode.mamba2_decode`. A state starts from zeros where the tokens are all of seq_len.
    Products have operands in the type of x, and sums and the state are float32.

    Source: the state space dual form, Dao and Gu 2024, "Transformers are SSMs", section 6.
    """
    _, heads, dim, columns = state.shape
    n = max(16, triton.next_power_of_2(columns))
    tile = tile or chunk_tile(x.dtype)
    block = max(16, min(triton.next_power_of_2(dim), _LARGEST // n**2))
    _mamba2_chunks[(heads, triton.cdiv(dim, block), len(seq_len))](
        x, dt, rate, step_bias, skip, state, row, query_start, seq_len, bounds, out,
        *dt_limits, x.stride(0), dt.stride(0), state.stride(0), out.stride(0),
        HEADS=heads, GROUPS=(x.shape[1] - heads * dim) // (2 * columns), DIM=dim, STATE=columns,
        BLOCK_T=tile.tokens, BLOCK_D=block, N=n, DOT=dot_type(x.dtype),
        num_warps=tile.warps, num_stages=tile.stages, **launch_options(),
    )  # fmt: skip

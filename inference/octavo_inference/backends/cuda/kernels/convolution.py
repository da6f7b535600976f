"""Causal convolution of each channel over ragged chunks, continued from the last inputs of each sequence."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.paged_indexing import find_sequence

_CHANNELS, _TOKENS = 128, 16


@triton.jit
def _inputs(x, gate, at, column, mask):
    """Inputs of the convolution, times their gates if they have any, in float32; zero outside of `mask`."""
    values = tl.load(x + at + column, mask=mask, other=0.0).to(tl.float32)
    if gate is not None:
        values *= tl.load(gate + at + column, mask=mask, other=0.0).to(tl.float32)
    return values


@triton.jit(do_not_specialize=["num_seqs"], do_not_specialize_on_alignment=["row", "query_start", "seq_len"])
def _convolve(
    x, gate, out_gate, weight, bias, state, row, query_start, seq_len, out,
    num_seqs, x_stride, out_stride, slot_stride, channels,
    KERNEL: tl.constexpr, BLOCK_T: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    wait_for_previous()
    place = tl.program_id(0)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < channels
    if BLOCK_T == 1:
        seq = place
        first = 0
    else:
        seq = find_sequence(query_start, 0, num_seqs, place, BLOCK_T)
        first = (place - tl.load(query_start + seq) // BLOCK_T - seq) * BLOCK_T
    start = tl.load(query_start + seq).to(tl.int64)
    tokens = (tl.load(query_start + seq + 1) - start).to(tl.int32)
    if first >= tokens:
        return
    before = tl.load(seq_len + seq) - tokens  # without tokens before, the slot is arbitrary
    kept = state + tl.load(row + seq).to(tl.int64) * slot_stride
    x += start * x_stride
    if gate is not None:
        gate += start * x_stride

    nth = (first + tl.arange(0, BLOCK_T))[:, None]
    acc = tl.zeros([BLOCK_T, TILE], tl.float32)
    if bias is not None:
        acc += tl.load(bias + column, mask=inside, other=0.0)[None, :]
    for tap in tl.static_range(KERNEL):
        source = nth - (KERNEL - 1) + tap  # negative: before the chunk, where the state has it
        now = inside[None, :] & (source >= 0) & (source < tokens)
        values = _inputs(x, gate, source.to(tl.int64) * x_stride, column[None, :], now)
        old = kept + (source + KERNEL - 1) * channels + column[None, :]
        values += tl.load(old, mask=inside[None, :] & (source < 0) & (source >= -before), other=0.0)
        acc += values * tl.load(weight + tap * channels + column, mask=inside, other=0.0)[None, :]
    at = (start + nth) * out_stride + column[None, :]
    live = inside[None, :] & (nth < tokens)
    if out_gate is None:
        acc *= tl.sigmoid(acc)
    else:
        acc *= tl.load(out_gate + (start + nth) * x_stride + column[None, :], mask=live, other=0.0).to(tl.float32)
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=live)

    # Only programs of a sequence's first tokens read the state, so they write it: each channel's in one program. Its
    # threads have read what they need before others of them write.
    if first == 0:
        tl.debug_barrier()
        for i in tl.static_range(KERNEL - 1):
            nearest = tokens - (KERNEL - 1) + i
            new = column < tl.where(nearest >= 0, channels, 0)
            moved = _inputs(x, gate, nearest.to(tl.int64) * x_stride, column, new)
            # A row that is written later: a chunk has at least one token.
            stored = column < tl.where((nearest < 0) & (nearest >= -before), channels, 0)
            moved += tl.load(kept + (nearest + KERNEL - 1) * channels + column, mask=stored, other=0.0)
            tl.store(kept + i * channels + column, moved, mask=inside)


def convolve(
    x: Torch,
    weight: Torch,
    bias: Torch | None,
    state: Torch,
    row: Torch,
    query_start: Torch,
    seq_len: Torch,
    out: Torch,
    *,
    gates: tuple[Torch, Torch] | None = None,
    decodes: bool,
) -> None:
    """Write silu(conv(x)), or with gates (before, after) after * conv(before * x), and move the states on.

    x and gates [T, channels] of any float type, with one stride of rows; weight [kernel, channels], the oldest token's
    first, and bias [channels] float32; out [T, channels]. state [slots, kernel - 1, channels] float32, a slot's
    elements contiguous: the last inputs of the sequence in row[B], whose tokens are those from query_start[B] on of
    query_start [B + 1]; seq_len [B] counts those before the step, too. Where there are none before, the state is not
    read. With `decodes`, each sequence has at most one token.
    """
    (tokens, channels), sequences = out.shape, len(seq_len)
    before, after = gates or (None, None)
    block = 1 if decodes else _TOKENS
    places = sequences if decodes else tokens // block + sequences
    _convolve[(places, triton.cdiv(channels, _CHANNELS))](
        x, before, after, weight, bias, state, row, query_start, seq_len, out,
        sequences, x.stride(0), out.stride(0), state.stride(0), channels,
        KERNEL=len(weight), BLOCK_T=block, TILE=_CHANNELS, **launch_options(),
    )  # fmt: skip

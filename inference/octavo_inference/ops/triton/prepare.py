"""Batch preparation: where each query token stands and where its K and V go, from what is known of the sequences."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

_TILE = 128


# What changes from step to step makes no variants of the kernel.
@triton.jit(do_not_specialize=["sequences", "tokens", "table_stride", "steps"])
def _prepare(
    query_start,
    seq_len,
    block_table,
    positions,
    slots,
    sequences,
    tokens,
    table_stride,
    block_size,
    steps,
    TILE: tl.constexpr,
):
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    # The last sequence that starts at or before the token: one with no token starts where the next one does.
    low = tl.zeros([TILE], tl.int32)
    high = tl.full([TILE], 0, tl.int32) + sequences
    for _ in range(steps):  # halves the distance from low to high, which ends as 1
        middle = (low + high) // 2
        before = tl.load(query_start + middle) <= token
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    real = token < tl.load(query_start + sequences)
    end = tl.load(query_start + low + 1)
    position = tl.where(real, tl.load(seq_len + low) - (end - token), 0)
    block = tl.load(block_table + low.to(tl.int64) * table_stride + position // block_size, mask=real, other=0)
    slot = tl.where(real, block.to(tl.int64) * block_size + position % block_size, -1)
    tl.store(positions + token, position, mask=token < tokens)
    tl.store(slots + token, slot, mask=token < tokens)


def prepare(
    query_start: Torch, seq_len: Torch, block_table: Torch, block_size: int, positions: Torch, slots: Torch
) -> None:
    """Find the position and the slot of each query token.

    query_start [B+1], seq_len [B] (tokens after the step) and block_table [B, W] in int32; positions [T] in int32 and
    slots [T] in int64 (block * block_size + offset) are written. Tokens from query_start[B] on are padding: position 0,
    slot -1. A batch has at least one sequence.
    """
    tokens, sequences = len(positions), len(seq_len)
    if tokens:
        _prepare[(triton.cdiv(tokens, _TILE),)](
            query_start,
            seq_len,
            block_table,
            positions,
            slots,
            sequences,
            tokens,
            block_table.stride(0),
            block_size,
            (sequences - 1).bit_length(),
            TILE=_TILE,
        )

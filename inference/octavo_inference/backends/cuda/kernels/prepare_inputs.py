"""Batch preparation: id, position and KV slot of each query token, read from the row table."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous

_TILE = 128


# Arguments that vary between steps are not specialized, so that they create no variants of the kernel.
@triton.jit(
    do_not_specialize=["sequences", "count", "history_stride", "table_stride", "columns", "slots_stride", "steps"]
)
def _prepare(
    row,
    query_start,
    seq_len,
    history,
    block_table,
    tokens,
    positions,
    slots,
    sequences,
    count,
    history_stride,
    table_stride,
    columns,
    slots_stride,
    block_size,
    steps,
    GROUPS: tl.constexpr,
    TILE: tl.constexpr,
):
    wait_for_previous()
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    # The last sequence that starts at or before the token. A sequence with no token starts where the next one does.
    low = tl.zeros([TILE], tl.int32)
    high = tl.full([TILE], 0, tl.int32) + sequences
    for _ in range(steps):  # halves the distance from low to high, until it is 1
        middle = (low + high) // 2
        before = tl.load(query_start + middle) <= token
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    real = token < tl.load(query_start + sequences)
    end = tl.load(query_start + low + 1)
    position = tl.where(real, tl.load(seq_len + low) - (end - token), 0)
    own = tl.load(row + low).to(tl.int64)
    # A negative token means invalid logits, such as NaN. This step was launched before the host read the token.
    word = tl.maximum(tl.load(history + own * history_stride + position, mask=real, other=0), 0)
    tl.store(tokens + token, word, mask=token < count)
    tl.store(positions + token, position, mask=token < count)
    for group in tl.static_range(GROUPS):
        table = block_table + own * table_stride + group * columns
        block = tl.load(table + position // block_size, mask=real, other=0)
        slot = tl.where(real, block.to(tl.int64) * block_size + position % block_size, -1)
        tl.store(slots + group * slots_stride + token, slot, mask=token < count)


def prepare(
    row: Torch,
    query_start: Torch,
    seq_len: Torch,
    history: Torch,
    block_table: Torch,
    block_size: int,
    tokens: Torch,
    positions: Torch,
    slots: Torch,
) -> None:
    """Write token and position of each query token, and its slot in each group of layers.

    row [B] (of the table), query_start [B+1] and seq_len [B] (tokens after the step) in int32. The row table: history
    [rows, positions] (tokens) and block_table [rows, groups, columns] in int32. Written: tokens [T] and positions [T]
    in int32, slots [groups, T] in int64 (block * block_size + offset), rows at any stride. Tokens from query_start[B]
    on are padding: token and position 0, slot -1. A batch has at least one sequence.
    """
    count, sequences = len(tokens), len(seq_len)
    if count:
        _prepare[(triton.cdiv(count, _TILE),)](
            row,
            query_start,
            seq_len,
            history,
            block_table,
            tokens,
            positions,
            slots,
            sequences,
            count,
            history.stride(0),
            block_table.stride(0),
            block_table.stride(1),
            slots.stride(0),
            block_size,
            (sequences - 1).bit_length(),
            GROUPS=len(slots),
            TILE=_TILE,
            **launch_options(),
        )

"""Shared by kernels over the paged pool: the sequence of a program, and the address of a key."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def find_sequence(query_start, origin, num_seqs, block, BLOCK_Q: tl.constexpr):
    """The sequence that query block `block` belongs to. `origin` is where the first one starts.

    Sequence i's blocks begin at (query_start[i] - origin) // BLOCK_Q + i: room for all of them whatever the lengths,
    so that the grid depends on shapes alone. Its last block may be empty.
    """
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if (tl.load(query_start + middle) - origin) // BLOCK_Q + middle <= block:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def key_rows(table, keys, stored, kv_head, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Rows of the pool, seen as [num_blocks * 2 * kv_heads * block_size, head_dim], of a sequence's keys.

    Their values lie KV_HEADS * BLOCK_SIZE rows further. `table` points at the sequence's blocks; keys that are not
    `stored` give some row of block 0.
    """
    block = tl.load(table + keys // BLOCK_SIZE, mask=stored, other=0).to(tl.int64)
    return (block * 2 * KV_HEADS + kv_head) * BLOCK_SIZE + keys % BLOCK_SIZE


@triton.jit
def bend(x, cap):
    """A soft cap: cap * tanh(x / cap), by an exponential that cannot overflow."""
    shrunk = tl.exp2(tl.abs(x) * (-2.8853900817779268 / cap))  # exp(-2 |x| / cap)
    bent = cap * (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(x < 0, -bent, bent)

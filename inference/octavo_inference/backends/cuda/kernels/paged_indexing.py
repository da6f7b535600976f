"""Shared by kernels over the paged pool: the sequence of a program, and the address of a key."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def find_sequence(query_start, origin, num_seqs, block, BLOCK_Q: tl.constexpr):
    """The sequence that query block `block` belongs to. `origin` is the start of the first one, query_start[0].

    Sequence i's blocks begin at (query_start[i] - origin) // BLOCK_Q + i. All of them have room at any lengths, so that
    the grid depends on shapes alone. The last block of a sequence may be empty.
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
    """Rows of a sequence's keys in the pool, viewed as [num_blocks * 2 * kv_heads * block_size, head_dim].

    The row of a value is KV_HEADS * BLOCK_SIZE after that of its key. `table` points to the sequence's row of the block
    table. Keys that are not `stored` get some row of block 0.
    """
    block = tl.load(table + keys // BLOCK_SIZE, mask=stored, other=0).to(tl.int64)
    return (block * 2 * KV_HEADS + kv_head) * BLOCK_SIZE + keys % BLOCK_SIZE


@triton.jit
def bend(x, cap):
    """Softcap: cap * tanh(x / cap), computed with an exponential that cannot overflow."""
    shrunk = tl.exp2(tl.abs(x) * (-2.8853900817779268 / cap))  # exp(-2 |x| / cap)
    bent = cap * (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(x < 0, -bent, bent)

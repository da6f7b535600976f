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
def block_ids(table, keys, end, BLOCK_SIZE: tl.constexpr):
    """Blocks (int64) of a sequence's keys; block 0 for keys from `end` on. `table` is its row of the block table."""
    return tl.load(table + keys // BLOCK_SIZE, mask=keys < end, other=0).to(tl.int64)


@triton.jit
def first_seen(position, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """The first key that the token at a position attends to, of `WINDOW` keys and within `CHUNK` positions; 0: all."""
    low = position * 0
    if WINDOW:
        low = tl.maximum(position - WINDOW + 1, 0)
    if CHUNK:
        low = tl.maximum(low, position // CHUNK * CHUNK)
    return low


@triton.jit
def bend(x, cap):
    """Softcap: cap * tanh(x / cap), computed with an exponential that cannot overflow."""
    shrunk = tl.exp2(tl.abs(x) * (-2.8853900817779268 / cap))  # exp(-2 |x| / cap)
    bent = cap * (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(x < 0, -bent, bent)

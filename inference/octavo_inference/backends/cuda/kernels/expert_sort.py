"""Sorts the choices of tokens by expert on the device, with shapes that depend on the number of tokens alone.

A choice is a token and one of its experts, numbered token * chosen + which. The choices of an expert fill blocks of
`rows` places, in the order of tokens; the rest of its last block is -1. So a program of a product has rows of one
expert, and a graph can hold the launch: its grid covers as many blocks as there may be, and the others have expert -1.

    expert 0: 5 choices   expert 1: 0   expert 2: 3      blocks of 4
    places   [0 3 4 7 | 8 -1 -1 -1 | 1 2 9 -1 | ...]
    experts  [0       | 0          | 2        | -1]

The idea of padded blocks is that of vLLM's `moe_align_block_size`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous

_TILE = 1024


def most_blocks(choices: int, experts: int, rows: int) -> int:
    """Most blocks of `rows` places that any `choices` of `experts` fill."""
    used = min(choices, experts)  # experts with a block that may not be full
    return used + (choices - used) // rows


@triton.jit(do_not_specialize=["choices"])
def _count(ids, totals, choices, TILE: tl.constexpr):
    wait_for_previous()
    expert = tl.program_id(0)
    found = tl.zeros((TILE,), tl.int32)
    for start in range(0, choices, TILE):
        at = start + tl.arange(0, TILE)
        found += (tl.load(ids + at, mask=at < choices, other=-1) == expert).to(tl.int32)
    tl.store(totals + expert, tl.sum(found, 0))


@triton.jit(do_not_specialize=["choices", "most"])
def _place(ids, totals, places, blocks, choices, most, count, ROWS: tl.constexpr, EXPERTS: tl.constexpr,
           TILE: tl.constexpr):  # fmt: skip
    wait_for_previous()
    expert = tl.program_id(0)
    everyone = tl.arange(0, EXPERTS)
    needed = (tl.load(totals + everyone, mask=everyone < count, other=0) + ROWS - 1) // ROWS
    first = tl.sum(tl.where(everyone < expert, needed, 0), 0)
    end = first + tl.sum(tl.where(everyone == expert, needed, 0), 0)
    lanes = tl.arange(0, TILE)
    for start in range(first, end, TILE):
        tl.store(blocks + start + lanes, expert, mask=start + lanes < end)
    if expert == count - 1:
        for start in range(end, most, TILE):
            tl.store(blocks + start + lanes, -1, mask=start + lanes < most)
    if end > first:
        at = first * ROWS
        for start in range(0, choices, TILE):
            choice = start + lanes
            mine = tl.load(ids + choice, mask=choice < choices, other=-1) == expert
            rank = tl.cumsum(mine.to(tl.int32), 0)
            tl.store(places + at + rank - 1, choice, mask=mine)
            at += tl.sum(mine.to(tl.int32), 0)
        rest = at + tl.arange(0, ROWS)
        tl.store(places + rest, -1, mask=rest < end * ROWS)


def sort_by_expert(ids: Torch, totals: Torch, places: Torch, blocks: Torch, *, rows: int) -> None:
    """Write the choices by expert to `places`, and the expert of each block of `rows` of them to `blocks`.

    ids [T, chosen] int32, -1 for no expert. totals [experts] int32 is written: choices of each expert. blocks int32 of
    at least `most_blocks` elements, places int32 of `rows` times as many.
    """
    choices, count = ids.numel(), totals.shape[0]
    if choices == 0:
        return
    _count[(count,)](ids, totals, choices, TILE=_TILE, **launch_options())
    _place[(count,)](
        ids, totals, places, blocks, choices, most_blocks(choices, count, rows), count, ROWS=rows,
        EXPERTS=triton.next_power_of_2(count), TILE=_TILE, **launch_options(),
    )  # fmt: skip

"""The slot of each query token's adapter, from those of the sequences."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous

_TILE = 1024


@triton.jit(do_not_specialize=["count"])
def _spread(adapter, query_start, slots, count, TILE: tl.constexpr):
    wait_for_previous()
    sequence = tl.program_id(0)
    slot = tl.load(adapter + sequence)
    end = tl.load(query_start + sequence + 1)
    for start in range(tl.load(query_start + sequence), end, TILE):
        at = start + tl.arange(0, TILE)
        tl.store(slots + at, slot, mask=at < end)
    if sequence == tl.num_programs(0) - 1:
        for start in range(end, count, TILE):
            at = start + tl.arange(0, TILE)
            tl.store(slots + at, -1, mask=at < count)


def spread_slots(adapter: Torch, query_start: Torch, slots: Torch) -> None:
    """Write the slot of each sequence's adapter to its query tokens; -1 to padding tokens, which have none.

    adapter [B] and query_start [B + 1] in int32; slots [T] int32. A batch has at least one sequence.
    """
    if len(slots):
        _spread[(len(adapter),)](adapter, query_start, slots, len(slots), TILE=_TILE, **launch_options())

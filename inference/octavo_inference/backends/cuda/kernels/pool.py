"""Sums of hidden states for embeddings: in float32 and token by token, so that chunks do not change their bits."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

_COLUMNS = 128
"""Elements of a state that one program adds."""


@triton.jit
def _add_states(states, items, sums, states_stride, hidden, BLOCK: tl.constexpr):
    items += tl.program_id(0).to(tl.int64) * 4
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    at = sums + tl.load(items).to(tl.int64) * hidden + columns
    first = tl.load(items + 1)
    end = tl.load(items + 2)
    total = tl.where(tl.load(items + 3) != 0, 0.0, tl.load(at, mask=inside, other=0.0))
    states += first.to(tl.int64) * states_stride + columns
    for _ in range(first, end):
        total += tl.load(states, mask=inside, other=0.0).to(tl.float32)
        states += states_stride
    tl.store(at, total, mask=inside)


def add_states(states: Torch, items: Torch, sums: Torch) -> None:
    """Add hidden states to sums.

    states [T, H] of any float type. items [P, 4] int32: the row of a sum, its first query token and the one after its
    last, and 1 if the sum starts from zero; no two have the same row. sums [rows, H] float32, changed in place.
    """
    if len(items):
        hidden = states.shape[1]
        grid = (len(items), triton.cdiv(hidden, _COLUMNS))
        _add_states[grid](states, items, sums, states.stride(0), hidden, BLOCK=_COLUMNS, num_warps=1)

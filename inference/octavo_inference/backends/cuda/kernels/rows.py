"""Applies the row table's changes: scatters runs of integers from one staging copy into the table."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

LONGEST = 1024
"""Maximum length of a run: one program writes it at once."""
HEADER = 4
"""Integers in front of the runs for each of them."""


@triton.jit
def _write(table, runs, values, TILE: tl.constexpr):
    runs += tl.program_id(0).to(tl.int64) * 4
    low = tl.load(runs).to(tl.uint32, bitcast=True).to(tl.int64)
    high = tl.load(runs + 1).to(tl.int64)
    start = tl.load(runs + 2)
    lanes = tl.arange(0, TILE)
    inside = lanes < tl.load(runs + 3)
    run = tl.load(values + start + lanes, mask=inside)
    tl.store(table + ((high << 32) | low) + lanes, run, mask=inside)


def write_rows(table: Torch, runs: Torch, values: Torch) -> None:
    """Write runs of integers into a table.

    table [n] int32, changed in place. runs [R, 4] int32: a run's offset in the table (the low and the high half of 64
    bits), its offset in `values` [m] int32, and its length, at most `LONGEST`. Runs do not overlap.
    """
    if len(runs):
        _write[(len(runs),)](table, runs, values, TILE=LONGEST)

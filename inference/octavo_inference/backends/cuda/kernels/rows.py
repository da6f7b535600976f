"""The row table's changes: runs of integers from one staged copy to their places in the table."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

LONGEST = 1024
"""Integers that one run may have: a program writes it at once."""


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

    table [n] int32, changed in place. runs [R, 4] int32: where in the table a run goes (the low and the high half of 64
    bits), where it begins in `values` [m] int32, and how many integers it has, at most `LONGEST`. No two overlap.
    """
    if len(runs):
        _write[(len(runs),)](table, runs, values, TILE=LONGEST)

"""Launch configurations of the products of experts, measured on an H100 by `bench.gpu expert_tiles`."""

from __future__ import annotations

import torch

from octavo_inference.backends.cuda.kernels.launch_configs import (
    ROW_STEPS,
    GemvTile,
    LinearTile,
    gemv_tile,
    row_step,
)
from octavo_inference.backends.cuda.kernels.target import HOPPER, capability
from octavo_inference.backends.cuda.kernels.weight_layouts import FOUR_BITS, Stored

_FLOAT_ROWS = 64  # float32 is multiplied in registers
_WIDE = 4096  # bytes of a row


def block_rows(choices: int, experts: int, dtype: torch.dtype) -> int:
    """Places of a block of `expert_sort`: about as many as an expert has choices, if all have as many."""
    rows = row_step(-(-choices // experts))
    return min(rows, _FLOAT_ROWS) if dtype == torch.float32 else rows


def token_steps(chosen: int, experts: int) -> list[int]:
    """Numbers of tokens, one for each configuration: a server launches them all before it is ready."""
    return [1, *(max(1, step * experts // chosen) for step in ROW_STEPS), ROW_STEPS[-1] * experts // chosen + 1]


def few_tokens(experts: int, chosen: int) -> int:
    """Most tokens of which each is multiplied with its own experts' matrices, whether or not others have the same.

    Up to half as many choices as experts most are of different ones, and the sort by expert gains little.
    """
    return max(1, experts // (2 * chosen))


def expert_tile(form: Stored, rows: int, dtype: torch.dtype) -> LinearTile:
    """The tile for blocks of `rows` places. Those for all GPUs fit 99 KiB of shared memory."""
    four, dense = form in FOUR_BITS, form == "dense"
    if dtype == torch.float32:
        return LinearTile(rows, 64, 32, 1, 4 if rows <= 32 else 8, 2)
    if rows == 32 and four:
        return LinearTile(rows, 64, 64, 1, 4, 4)
    if rows <= 32 and not four:
        return LinearTile(rows, 64, 128, 1, 4, 3)
    if rows <= 64:
        return LinearTile(rows, 128, 64, 1, 4, 3)
    if four and capability() <= HOPPER:  # registers of older GPUs do not hold the longer step, those of newer none
        return LinearTile(rows, 256, 64 if capability() == HOPPER else 32, 1, 8, 3)
    return LinearTile(rows, 128, 64, 1, 8, 3 if dense else 4)


def expert_gemv_tile(form: Stored, n: int, width: int) -> GemvTile:
    """The tile for one row of x and an expert's matrix of `n` rows of `width` bytes."""
    return gemv_tile(form, 1, n, width) if form != "dense" else GemvTile(4, 4 if width >= _WIDE else 2)

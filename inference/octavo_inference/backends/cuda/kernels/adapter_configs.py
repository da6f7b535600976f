"""Launch configurations of the products of adapters: by the number of rows, never by the adapters."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_inference.backends.cuda.kernels.adapter_entries import TILE

_FEW, _FEW_ROWS, _MANY_ROWS, _FLOAT_ROWS = 256, 16, 64, 32
_PROGRAMS = 128  # about one for each multiprocessor, if one adapter has all rows
_MOST_SPLITS, _LEAST_COLUMNS = 16, 512
MOST_ACROSS = 256
"""Most programs of `expand` for each block of rows; the tiles of larger matrices share them."""


@dataclass(frozen=True, slots=True)
class ShrinkTile:
    """Ranks and columns of a step of a program, its warps and pipeline stages."""

    ranks: int
    step: int
    warps: int
    stages: int


def block_rows(rows: int, dtype: torch.dtype) -> int:
    """Rows of a block, which have one adapter.

    Few where each sequence may have its own: the product of a block takes the time of all its rows. Many where prompts
    have long runs of rows: each block reads the adapter again.
    """
    return _FEW_ROWS if rows <= _FEW else _FLOAT_ROWS if dtype == torch.float32 else _MANY_ROWS


def row_steps(rows: int) -> list[int]:
    """Numbers of rows up to `rows`, one for each configuration."""
    steps = [_PROGRAMS // _MOST_SPLITS * _FEW_ROWS]
    while steps[-1] < min(_PROGRAMS * _MANY_ROWS, rows):
        steps.append(2 * steps[-1])
    return sorted({min(step, rows) for step in (*steps, rows)})


def splits_of(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Into how many parts the columns of x are split: few rows alone would not occupy the GPU."""
    block = block_rows(rows, dtype)
    wanted = min(_MOST_SPLITS, _PROGRAMS // -(-rows // block), columns // _LEAST_COLUMNS)
    return 1 << (max(1, wanted).bit_length() - 1)


def products_size(rows: int, width: int, dtype: torch.dtype) -> int:
    """Elements that the products of up to `rows` rows of `width` ranks take, split."""
    return max(step * splits_of(step, 1 << 30, dtype) for step in row_steps(rows)) * width


def choice_rows(choices: int, experts: int, dtype: torch.dtype) -> int:
    """Rows of a block of choices, which have one adapter and one expert: by the choices of an expert on average."""
    return block_rows(-(-choices // experts), dtype)


def choice_splits(choices: int, columns: int) -> int:
    """As `splits_of`, for rows of choices: few of them fill a block."""
    wanted = min(_MOST_SPLITS, _PROGRAMS // -(-choices // _FEW_ROWS), columns // _LEAST_COLUMNS)
    return 1 << (max(1, wanted).bit_length() - 1)


def choice_products(choices: int, width: int) -> int:
    """Elements that the products of up to so many choices of `width` ranks take, split."""
    return max(choices, min(_MOST_SPLITS * choices, _PROGRAMS * _FEW_ROWS)) * width


def choice_steps(tokens: int, chosen: int, experts: int) -> list[int]:
    """Numbers of tokens up to `tokens`, one for each configuration of choices."""
    halves = [_PROGRAMS // splits * _FEW_ROWS for splits in (16, 8, 4, 2)]
    most = tokens * chosen
    return sorted({max(1, min(step, most) // chosen) for step in (*halves, _FEW * experts, most)})


def shrink_tile(block: int, dtype: torch.dtype) -> ShrinkTile:
    """The tile for blocks of `block` rows."""
    if dtype == torch.float32:
        return ShrinkTile(16, 32, 4, 2)
    return ShrinkTile(32, 128, 4, 3) if block == _FEW_ROWS else ShrinkTile(64, 64, 4, 3)


def expand_ranks(most: int) -> int:
    """Ranks of a step of `expand`, of adapters of up to `most`."""
    return 16 if most <= 16 else 32


def expand_outputs(block: int) -> int:
    """Rows of `up` that a program multiplies at a time with a block of `block` rows: its sums stay in registers."""
    return TILE if block == _FEW_ROWS else TILE // 2


def expand_warps(block: int) -> int:
    """Warps of a program of `expand`."""
    return 8 if block == _MANY_ROWS else 4

"""Tiles measured on a GPU, one file per GPU. `python -m bench.gpu tiles` writes them; a server only reads them.

A shape that the file does not contain uses the tile of the rules in `launch_configs`. The tile of a product depends on
its shape and the GPU alone. It changes at the same row counts as the tile of the rules, so that warm-up covers all
tiles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from octavo_inference.backends.cuda.kernels.launch_configs import (
    ROW_STEPS,
    WORKSPACE,
    AttentionTile,
    GemvTile,
    LinearTile,
    attention_tile,
    gemv_rows,
    gemv_tile,
    linear_tile,
    row_step,
)
from octavo_inference.backends.cuda.kernels.weight_layouts import Stored

TABLES = Path(__file__).with_name("tables")
Shape = tuple[str, int, int, int]
"""Layout, rows and width (values, or bytes of two) of the weights, and the most rows of x."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles for a `card`; "" if there are no measurements.

    `gemv_rows` maps a layout to the most rows of x for `gemv`. The keys of `attention` are the head dim, the number of
    query heads per KV head, and True for one token per sequence.
    """

    card: str = ""
    gemv_rows: Mapping[str, int] = field(default_factory=dict)
    gemv: Mapping[Shape, GemvTile] = field(default_factory=dict)
    linear: Mapping[Shape, LinearTile] = field(default_factory=dict)
    attention: Mapping[tuple[int, int, bool], AttentionTile] = field(default_factory=dict)

    def few(self, form: Stored) -> int:
        """The most rows of x that are multiplied by `gemv`."""
        return self.gemv_rows.get(form, gemv_rows(form))

    def for_gemv(self, form: Stored, m: int, values: torch.Tensor) -> GemvTile:
        """The tile for `m` rows of x and weights `values` [N, width]."""
        n, width = values.shape
        return self.gemv.get((form, n, width, power_of_two(m))) or gemv_tile(form, m, n, width * values.element_size())

    def for_linear(self, form: Stored, m: int, values: torch.Tensor, dtype: torch.dtype) -> LinearTile:
        """The tile for `m` rows of x in `dtype` and weights `values` [N, width]."""
        n, width = values.shape
        measured = dtype == torch.bfloat16 and m <= ROW_STEPS[-1]
        found = self.linear.get((form, n, width, row_step(m))) if measured else None
        return found or linear_tile(form, m, n, width, dtype)

    def for_attention(
        self, head_dim: int, group: int, dtype: torch.dtype, *, decode: bool, quantized: bool
    ) -> AttentionTile:
        """The tile for sequences of one query token, or of several, whose `group` heads share keys."""
        measured = dtype == torch.bfloat16 and not quantized
        found = self.attention.get((head_dim, group, decode)) if measured else None
        return found or attention_tile(head_dim, group, dtype, decode=decode, quantized=quantized)


def power_of_two(m: int) -> int:
    """The smallest power of two that is at least m."""
    return 1 << (m - 1).bit_length()


def find_tiles(card: str, folder: Path = TABLES) -> Tiles:
    """Tiles of the card's file, or the rules without one. Raises ValueError for an invalid file."""
    path = folder / file_name(card)
    return read_tiles(path) if path.exists() else Tiles()


def file_name(card: str) -> str:
    """File name of a card's table: "NVIDIA H200" has nvidia-h200.json."""
    return re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-") + ".json"


def read_tiles(path: Path) -> Tiles:
    """Parse a file that `python -m bench.gpu tiles` wrote. Raises ValueError with the problem."""
    table = json.loads(path.read_text(encoding="utf-8"))
    try:
        linear = {_shape(row): LinearTile(**row["tile"]) for row in table["linear"]}
        gemv = {_shape(row): GemvTile(**row["tile"]) for row in table["gemv"]}
        attention = {
            (row["head_dim"], row["group"], row["decode"]): AttentionTile(**row["tile"]) for row in table["attention"]
        }
        tiles = Tiles(table["card"], table["gemv_rows"], gemv, linear, attention)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a table of tiles ({error!r}): create it again with python -m bench.gpu tiles"
        ) from error
    for (_, group, _), narrow in attention.items():
        if narrow.rows < group:
            raise ValueError(f"{path}: attention in tiles of {narrow.rows} rows has no room for {group} heads")
    for (form, n, width, rows), tile in linear.items():
        if not fits(tile, rows, n):
            raise ValueError(
                f"{path}: {form} {n}x{width} is cut into {tile.split} parts for {rows} rows, more than there is room "
                "for: create it again with python -m bench.gpu tiles"
            )
    return tiles


def fits(tile: LinearTile, rows: int, n: int) -> bool:
    """Return True if its partial sums fit."""
    return tile.split == 1 or (rows <= ROW_STEPS[-1] and tile.split * rows * n <= WORKSPACE)


def _shape(row: dict[str, Any]) -> Shape:
    return row["form"], row["n"], row["width"], row["rows"]

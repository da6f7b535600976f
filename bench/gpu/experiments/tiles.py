"""Measures this card's tile table: products and attention at the shapes of three models, with each candidate tile.

A row of the result file is a product for one step of rows of x, or attention of decodes or prompts, with the times of
all candidates. `table_of` converts the rows to the server's format (`backends/cuda/kernels/tuned_configs.py`); a
running server never tunes.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from triton.runtime.errors import OutOfResources, PTXASError

from bench.gpu.cases.attention import Attention
from bench.gpu.cases.case import Place
from bench.gpu.cases.weights import LAYOUTS, weights
from bench.gpu.experiments.setting import Setting
from bench.gpu.measured_models import MODELS, products
from bench.gpu.timing import Flush, measured
from bench.lib.results import Item, Row
from octavo_inference.backends.cuda.aot.null_driver import SHARED_KIB
from octavo_inference.backends.cuda.kernels.gemv import gemv, suits
from octavo_inference.backends.cuda.kernels.launch_configs import (
    ROW_STEPS,
    WORKSPACE,
    AttentionTile,
    GemvTile,
    LinearTile,
    attention_tile,
    gemv_tile,
    linear_tile,
)
from octavo_inference.backends.cuda.kernels.linear import linear
from octavo_inference.backends.cuda.kernels.tuned_configs import Tiles, file_name, fits
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix
from octavo_inference.backends.cuda.linear import Linear

Tile = TypeVar("Tile", bound=AttentionTile | GemvTile | LinearTile)
REPEATS = 20
FORMS = ("int4 q4_0", "dense", "fp8", "int8 q8_0")
FEW = (1, 2, 4)
"""Rows of x with a variant of `gemv`."""
AT = {16: (4, 8, 16), 32: (32,), 64: (64,), 128: (128,)}
"""Rows of x at which a step of rows is measured."""
ATTENTION_SECONDS = 60.0
"""Bound of a search for a tile of attention; most of it is compilation, about three seconds per tile."""
DECODES, PREFILLS = ((1, 1, 8191), (32, 1, 1023), (256, 1, 1023)), ((1, 2048, 0), (1, 8192, 0))
"""Sequences, query tokens of each, keys before them."""
GEMV = tuple(GemvTile(outputs, warps) for outputs in (4, 8) for warps in (1, 2, 4))
# Rows of weights, columns per iteration, warps, stages.
LINEAR = {
    16: ((64, 128, 4, 4), (128, 128, 4, 3), (32, 128, 4, 3), (64, 64, 4, 4), (128, 64, 8, 3)),
    32: ((64, 64, 4, 4), (128, 64, 8, 3), (64, 128, 8, 3)),
    64: ((64, 64, 4, 4), (128, 64, 8, 3), (64, 128, 8, 3)),
    128: ((128, 32, 8, 4), (128, 64, 8, 3), (64, 64, 8, 3), (256, 32, 8, 3)),
}


def items(setting: Setting) -> Iterator[Item]:
    """First decodes of one sequence, then of many, then prompts; `only` selects from gemv, linear, attention."""
    found = _items(setting)
    return (item for item in found if not setting.only or item.key.split()[0] in setting.only)


def _items(setting: Setting) -> Iterator[Item]:
    place = setting.place
    flush = Flush(setting.device)
    for few in (True, False):
        for rows in setting.pick(FEW if few else ROW_STEPS, (2,) if few else (16,)):
            for model in setting.models:
                for name in setting.pick(tuple(products(MODELS[model])), ("o", "head")):
                    for stored in setting.pick(FORMS, ("int4 q4_0",)):
                        # Dense products of more rows use the library.
                        if few or stored != "dense":
                            run = partial(_row, setting, place, flush, model, name, stored, rows, few)
                            yield Item(f"{'gemv' if few else 'linear'} {model} {name} {stored} {rows}", run)

    for model in setting.models:
        for decode in (True, False):
            run = partial(_attention, setting, place, flush, model, decode)
            yield Item(f"attention {model} {'decode' if decode else 'prefill'}", run)


def _attention(setting: Setting, place: Place, flush: Flush, model: str, decode: bool) -> Row:
    config = MODELS[model]
    group = config.heads // config.kv_heads
    row: Row = {"kernel": "attention", "head_dim": config.head_dim, "group": group, "decode": decode}

    def times(tile: AttentionTile) -> dict[int, float]:
        """Microseconds by sequences of a decode, or tokens of a prompt."""
        found = {}
        for batch, queries, before in setting.pick(
            DECODES if decode else PREFILLS, ((2, 1, 9) if decode else (1, 5, 3),)
        ):
            shape = Attention(
                config.heads, config.kv_heads, config.head_dim, ((queries, before),) * batch, split=decode, tile=tile
            )
            launch = shape.prepare(place).launch
            found[batch * queries] = 1e6 * measured(setting.timer, launch, setting.pick(REPEATS, 1), flush)
        return found

    first = attention_tile(config.head_dim, group, place.dtype, decode=decode)
    candidates = attention_candidates(first, config.head_dim, decode=decode)
    return row | best_of(tried_by(setting.pick(candidates, candidates[:1]), times, seconds=ATTENTION_SECONDS))


def attention_candidates(first: AttentionTile, head_dim: int, *, decode: bool) -> list[AttentionTile]:
    """The rules' tile and others whose K and V fit a GPU's shared memory, those of few stages first.

    Decodes need few rows, the least that hold a group of heads.
    """
    rows, keys = ((first.rows,), (32, 64, 128)) if decode else ((64, 128), (64, 128))
    found = [first]
    for stages in (3, 2, 4, 5, 6) if decode else (2, 3, 4):
        for size in itertools.product(rows, keys, (4, 8)):
            tile = AttentionTile(*size, stages)
            buffers = (stages - 1) * 2 * tile.keys * head_dim * torch.bfloat16.itemsize
            if tile not in found and buffers < max(SHARED_KIB.values()) * 1024:
                found.append(tile)
    return found


def _row(setting: Setting, place: Place, flush: Flush, model: str, name: str, stored: str, rows: int, few: bool) -> Row:
    n, k = (place.pick(size, small) for size, small in zip(products(MODELS[model])[name], (77, 64), strict=True))
    matrix = setting.keep.get((model, name, stored), lambda: weights(place, LAYOUTS[stored], n, k).matrix)
    width = matrix.values.shape[1]
    workspace = place.empty(WORKSPACE, dtype=torch.float32)

    def time(launch: Callable[[], object]) -> float:
        return 1e6 * measured(setting.timer, launch, setting.pick(REPEATS, 1), flush)

    def operands(m: int) -> tuple[torch.Tensor, torch.Tensor]:
        return place.randn(m, k), place.empty(m, n, dtype=torch.float32 if name == "head" else None)

    row: Row = {"form": matrix.form, "n": n, "width": width, "rows": rows, "kernel": "gemv" if few else "linear"}
    if few:
        x, out = operands(rows)
        if not suits(x, matrix):
            return row | {"why": "gemv does not take this shape", "verdict": "refused"}
        narrow = gemv_tile(matrix.form, rows, n, width * matrix.values.element_size())
        tried = tried_by(
            (narrow, *setting.pick(GEMV, GEMV[:1])),
            lambda tile: {rows: time(lambda: gemv(x, matrix, None, out, tile=tile))},
        )
        return row | best_of(tried) | {"else_us": time(_without_gemv(matrix, workspace, x, out))}
    sizes = setting.pick(AT[rows], (3,))
    first = linear_tile(matrix.form, rows, n, width, place.dtype)

    def times(tile: LinearTile) -> dict[int, float]:
        found = {}
        for m in sizes:
            x, out = operands(m)
            found[m] = time(partial(linear, x, matrix, None, out, workspace, tile=tile))
        return found

    candidates = linear_candidates(first, rows, n, width)
    return row | best_of(tried_by(setting.pick(candidates, candidates[:2]), times))


def linear_candidates(first: LinearTile, rows: int, n: int, width: int) -> list[LinearTile]:
    """The rules' tile and others, each with the rules' split, half and twice of it, where there is room."""
    parts = sorted({max(1, first.split // 2), first.split, 2 * first.split})
    found = [first]
    for outputs, step, warps, stages in LINEAR[rows]:
        for split in parts:
            tile = LinearTile(first.rows, outputs, step, split, warps, stages)
            if tile not in found and split * step <= width and fits(tile, rows, n):
                found.append(tile)
    return found


def tried_by(
    tiles: Iterable[Tile],
    times: Callable[[Tile], dict[int, float]],
    *,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> list[Row]:
    """Microseconds by rows of x of each tile; one that exceeds the card's resources or the time has the reason instead.

    After `seconds`, no further tile is tried.
    """
    rows: list[Row] = []
    end = clock() + seconds
    for tile in dict.fromkeys(tiles):
        if rows and clock() >= end:
            rows.append({"tile": asdict(tile), "why": f"not tried within {seconds:g} s"})
            continue
        try:
            rows.append({"tile": asdict(tile), "us": {str(m): round(us, 3) for m, us in times(tile).items()}})
        except (OutOfResources, PTXASError) as error:
            rows.append({"tile": asdict(tile), "why": str(error).splitlines()[0]})
    return rows


def best_of(tried: list[Row]) -> Row:
    """The tile that is closest to the fastest over all numbers of rows, its times, and all candidates."""
    timed = [row for row in tried if "us" in row]
    if not timed:
        raise ValueError(f"no tile has room on this card: {tried}")
    least = {m: min(row["us"][m] for row in timed) for m in timed[0]["us"]}
    best = min(timed, key=lambda row: sum(us / least[m] for m, us in row["us"].items()))
    return {
        "tile": best["tile"],
        "us": best["us"],
        "best_us": sum(best["us"].values()),
        "of_rules": timed[0]["us"],
        "rules_us": sum(timed[0]["us"].values()),
        "tried": tried,
    }


def table_of(card: str, rows: list[Row]) -> Row:
    """The table that `tuned_configs` reads: each product's best tile, and the most rows at which `gemv` was faster."""
    good = [row for row in rows if row["verdict"] == "ok"]
    kept = ("form", "n", "width", "rows", "head_dim", "group", "decode", "tile", "us")
    few = [row for row in good if row["kernel"] == "gemv"]
    faster = {}
    for form in dict.fromkeys(row["form"] for row in few):
        faster[form] = 0
        for rows_of_x in sorted({row["rows"] for row in few if row["form"] == form}):
            at = [row for row in few if (row["form"], row["rows"]) == (form, rows_of_x)]
            if sum(row["us"][str(rows_of_x)] for row in at) > sum(row["else_us"] for row in at):
                break
            faster[form] = rows_of_x
    return {"card": card, "gemv_rows": faster} | {
        kernel: [{name: row[name] for name in kept if name in row} for row in good if row["kernel"] == kernel]
        for kernel in ("gemv", "linear", "attention")
    }


def write_table(out: Path) -> Path:
    """Write the card's tile table, in a folder next to the result file, under the name that the server reads."""
    report = json.loads(out.read_text(encoding="utf-8"))
    card = report["card"] or "interpreter"
    path = out.parent / "tables" / file_name(card)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(table_of(card, report["rows"]), indent=1) + "\n", encoding="utf-8")
    return path


def _without_gemv(
    matrix: DeviceMatrix, workspace: torch.Tensor, x: torch.Tensor, out: torch.Tensor
) -> Callable[[], object]:
    layer = Linear((matrix,), (None,), workspace, tiles=Tiles(gemv_rows={matrix.form: 0}))
    return lambda: layer(x, out)

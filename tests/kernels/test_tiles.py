"""Tiles that were measured: how a table is made of what was tried, read, and used; without a card."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

from bench.gpu.experiments.tiles import attention_candidates, best_of, linear_candidates, tried_by, write_table
from octavo_inference.backends.cuda import linear as layers
from octavo_inference.backends.cuda.kernels.launch_configs import (
    ROW_STEPS,
    WORKSPACE,
    AttentionTile,
    GemvTile,
    LinearTile,
    attention_tile,
    linear_tile,
    row_step,
)
from octavo_inference.backends.cuda.kernels.tuned_configs import (
    TABLES,
    Tiles,
    file_name,
    find_tiles,
    read_tiles,
)
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix, Layout, Stored
from octavo_inference.backends.cuda.linear import Linear

FAST, SLOW = GemvTile(4, 2), GemvTile(8, 1)
FORMS: tuple[Stored, ...] = ("int4", "int8", "fp8")


def gemv_row(rows: int, us: float, else_us: float) -> dict[str, Any]:
    shape = {"form": "int4", "n": 4096, "width": 2048, "rows": rows, "kernel": "gemv", "verdict": "ok"}
    tried = tried_by((SLOW, FAST), lambda tile: {rows: us if tile == FAST else 2 * us})
    return shape | best_of(tried) | {"else_us": else_us}


def linear_row(tile: LinearTile, rows: int = 16) -> dict[str, Any]:
    shape = {"form": "int8", "n": 64, "width": 128, "rows": rows, "kernel": "linear", "verdict": "ok"}
    return shape | {"tile": asdict(tile), "us": {str(rows): 1.0}}


def written(folder: Path, rows: list[dict[str, Any]], card: str = "NVIDIA Example 1") -> Path:
    out = folder / "tiles.json"
    out.write_text(json.dumps({"part": "tiles", "card": card, "rows": rows, "complete": True}))
    return write_table(out)


def test_the_best_is_the_nearest_to_the_fastest_at_all_rows() -> None:
    times = {4: {4: 10.0, 8: 10.0, 16: 10.0}, 8: {4: 9.0, 8: 11.0, 16: 30.0}, 16: {4: 11.0, 8: 10.0, 16: 8.0}}
    tiles = [LinearTile(16, outputs, 64, 1, 4, 3) for outputs in (8, 4, 16)]
    found = best_of(tried_by(tiles, lambda tile: times[tile.outputs]))
    assert found["tile"]["outputs"] == 16
    assert found["of_rules"] == {"4": 9.0, "8": 11.0, "16": 30.0}


def test_a_tile_that_the_card_has_no_room_for_is_named_and_left() -> None:
    def times(tile: GemvTile) -> dict[int, float]:
        if tile == SLOW:
            raise OutOfResources(2, 1, "shared memory")
        return {1: 1.0}

    tried = tried_by((SLOW, FAST), times)
    assert "shared memory" in tried[0]["why"]
    assert best_of(tried)["tile"] == asdict(FAST)
    with pytest.raises(ValueError, match="no tile has room"):
        best_of(tried[:1])


def test_a_search_ends_in_time_with_what_it_has_tried() -> None:
    passed = iter((0.0, 1.0, 2.0))
    tried = tried_by((SLOW, FAST, GemvTile(1, 1)), lambda _: {1: 1.0}, seconds=2.0, clock=lambda: next(passed))
    assert ["us" in row for row in tried] == [True, True, False]
    assert tried[2]["why"] == "not tried within 2 s"
    assert best_of(tried)["tile"] == asdict(SLOW)


@pytest.mark.parametrize("decode", [True, False])
def test_candidates_for_attention_fit_a_card(decode: bool) -> None:
    first = AttentionTile(16 if decode else 64, 64, 4, 3 if decode else 2)
    found = attention_candidates(first, 128, decode=decode)
    assert found[0] == first
    assert len(found) == len(set(found))
    assert all(2 * (tile.stages - 1) * tile.keys * 128 * 2 < 227 * 1024 for tile in found)
    assert {tile.stages for tile in found} == ({2, 3, 4, 5, 6} if decode else {2, 3, 4})
    assert {tile.rows for tile in found} == ({16} if decode else {64, 128})
    assert {tile.keys for tile in found} == ({32, 64, 128} if decode else {64, 128})
    assert AttentionTile(first.rows, 64, 8, 4) in found


def test_a_table_is_what_the_server_reads(tmp_path: Path) -> None:
    tile = LinearTile(16, 32, 128, 2, 4, 3)
    slower_at_four = [gemv_row(1, 1, 2), gemv_row(2, 2, 2), gemv_row(4, 4, 3)]
    flat = AttentionTile(16, 128, 4, 3)
    decode = {"kernel": "attention", "verdict": "ok", "head_dim": 128, "group": 4, "decode": True, "tile": asdict(flat)}
    written(tmp_path, [*slower_at_four, linear_row(tile), decode, {"verdict": "failed", "kernel": "gemv"}])
    tiles = find_tiles("NVIDIA Example 1", tmp_path / "tables")
    assert tiles == Tiles(
        "NVIDIA Example 1",
        {"int4": 2},
        {("int4", 4096, 2048, rows): FAST for rows in (1, 2, 4)},
        {("int8", 64, 128, 16): tile},
        {(128, 4, True): flat},
    )
    assert tiles.for_attention(128, 4, torch.bfloat16, decode=True, quantized=False) == flat
    of_rules = attention_tile(128, 4, torch.bfloat16, decode=False)
    assert tiles.for_attention(128, 4, torch.bfloat16, decode=False, quantized=False) == of_rules
    values = torch.empty((64, 128), dtype=torch.bfloat16)
    assert tiles.for_linear("int8", 9, values, torch.bfloat16) == tile
    # Float32 was not measured, and other shapes have the tiles of the rules.
    assert tiles.for_linear("int8", 9, values, torch.float32) == linear_tile("int8", 9, 64, 128, torch.float32)
    assert tiles.for_linear("int8", 17, values, torch.bfloat16) == linear_tile("int8", 17, 64, 128, torch.bfloat16)
    assert find_tiles("NVIDIA Example", tmp_path / "tables") == Tiles()


def test_a_layer_multiplies_by_the_tiles_of_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[object] = []
    for name in ("gemv", "linear"):
        monkeypatch.setattr(layers, name, lambda *_, tile, **__: used.append(tile))
    scales = torch.ones((32, 2), dtype=torch.float16)
    matrix = DeviceMatrix(Layout("int8", 32), 64, torch.zeros((32, 64), dtype=torch.uint8), scales)
    large = LinearTile(16, 32, 128, 1, 4, 3)
    tiles = Tiles("a card", {"int8": 1}, {("int8", 32, 64, 1): FAST}, {("int8", 32, 64, 16): large})
    layer = Linear((matrix,), (None,), torch.empty(WORKSPACE), tiles=tiles)
    for rows in (1, 2):
        layer(torch.zeros((rows, 64), dtype=torch.bfloat16), torch.empty(rows, 32))
    assert used == [FAST, large]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([linear_row(LinearTile(16, 64, 64, 9000, 4, 3))], "is cut into 9000 parts for 16 rows"),
        ([linear_row(LinearTile(128, 64, 64, 1100, 4, 3), rows=128)], "is cut into 1100 parts"),
        (
            [
                {
                    "kernel": "attention",
                    "verdict": "ok",
                    "head_dim": 64,
                    "group": 32,
                    "decode": True,
                    "tile": asdict(AttentionTile(16, 64, 4, 2)),
                }
            ],
            "has no room for 32 heads",
        ),
    ],
)
def test_a_table_that_has_no_room_is_refused(tmp_path: Path, rows: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_tiles(written(tmp_path, rows))


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"card": "x", "gemv_rows": {}, "gemv": [{"form": "int4"}], "linear": [], "attention": []}')
    with pytest.raises(ValueError, match="is not a table of tiles"):
        read_tiles(path)


def test_all_tables_that_come_along_can_be_read() -> None:
    for path in TABLES.glob("*.json"):
        assert file_name(read_tiles(path).card) == path.name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles_change_with_rows_where_those_of_the_rules_do(form: Stored, dtype: torch.dtype) -> None:
    """The rehearsal before a server is ready knows these numbers of rows."""
    for m in range(1, ROW_STEPS[-1]):
        if linear_tile(form, m, 4096, 4096, dtype) != linear_tile(form, m + 1, 4096, 4096, dtype):
            assert row_step(m) != row_step(m + 1)


def test_candidates_have_room_and_begin_with_the_rules() -> None:
    for rows, n, width in ((16, 1024, 1024), (64, 28672, 4096), (128, 4096, 14336), (16, 151_936, 1024)):
        first = linear_tile("int4", rows, n, width, torch.bfloat16)
        found = linear_candidates(first, rows, n, width)
        assert found[0] == first
        assert len(found) == len(set(found)) > 3
        assert all(tile.split == 1 or tile.split * rows * n <= WORKSPACE for tile in found)

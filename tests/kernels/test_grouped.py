"""Products with weights of published formats, and rows of them, against what their groups mean in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor as Torch

from bench.gpu.cases.weights import NF4
from octavo_inference.backends.cuda.kernels.dequantize import dequantize_rows
from octavo_inference.backends.cuda.kernels.embedding import embed
from octavo_inference.backends.cuda.kernels.gemv import gemv, suits
from octavo_inference.backends.cuda.kernels.launch_configs import WORKSPACE, GemvTile, LinearTile
from octavo_inference.backends.cuda.kernels.linear import linear
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix
from octavo_inference.backends.cuda.linear import LIBRARY_ROWS, Linear
from octavo_inference.backends.cuda.packing import E2M1, layout_of, pack, plane_shapes
from octavo_inference.models.groups import GroupedMatrix, Grouping

from .grouped import GROUPINGS, grouped


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture(scope="module")
def workspace() -> Torch:
    return torch.full((WORKSPACE,), float("nan"))


def on_device(matrix: GroupedMatrix) -> DeviceMatrix:
    layout = layout_of(matrix, "f32", "auto")
    planes = {name: torch.from_numpy(np.array(plane)) for name, plane in pack(matrix, layout).items()}
    assert {name: tuple(plane.shape) for name, plane in planes.items()} == {
        name: shape for name, (_, shape) in plane_shapes(layout, *matrix.shape).items()
    }
    if layout.levels:
        planes["levels"] = torch.tensor(layout.levels, dtype=torch.float16)
    return DeviceMatrix(layout, matrix.shape[1], **planes)


def columns_of(grouping: Grouping) -> int:
    """Columns that fill no whole tile: an odd number of groups, and of the pairs of short ones."""
    return 5 * max(32, grouping.group)


def compare(out: Torch, expected: NDArray[np.float64], x: Torch, weights: NDArray[np.float32], rel: float) -> float:
    bound = rel * (np.abs(x.double().numpy()) @ np.abs(weights.astype(np.float64)).T) + 1e-30
    error = np.abs(out.double().numpy() - expected)
    assert (error <= bound).all(), f"{(error / bound).max():.1f} times the bound"
    return float(error.max() / np.abs(expected).max())


@pytest.mark.parametrize("name", GROUPINGS)
@pytest.mark.parametrize(("rows", "dtype"), [(1, torch.float32), (3, torch.bfloat16)])
def test_gemv(rng: np.random.Generator, record: Any, name: str, rows: int, dtype: torch.dtype) -> None:
    grouping = GROUPINGS[name]
    # More than the 512 bytes of a step of one warp.
    cols = 9 * max(128, grouping.group)
    matrix = grouped(rng, grouping, 5, cols)
    x = torch.from_numpy(rng.standard_normal((rows, cols), np.float32)).to(dtype)
    bias = torch.from_numpy(rng.standard_normal(5, np.float32)) if rows == 1 else None
    wide = torch.full((rows + 1, 9), float("nan"))
    packed = on_device(matrix)
    assert suits(x, packed)
    gemv(x, packed, bias, wide[:rows, 2:7], tile=GemvTile(2, 1))
    assert wide[rows:].isnan().all()
    assert wide[:, [0, 1, 7, 8]].isnan().all()
    weights = matrix.dequantize()
    expected = x.double().numpy() @ weights.T.astype(np.float64) + (0 if bias is None else bias.double().numpy())
    # Integers are made floats with 16 or 256 more, which cost bits of float32 sums.
    error = compare(wide[:rows, 2:7], expected, x, weights, 4e-5)
    record(f"gemv {name}", (rows, 5, cols), dtype, error)


@pytest.mark.parametrize(
    ("name", "rows"), [*((name, 2) for name in GROUPINGS), ("awq", 33), ("nvfp4", 33), ("fp8 blocks", 33)]
)
def test_linear(rng: np.random.Generator, workspace: Torch, record: Any, name: str, rows: int) -> None:
    grouping = GROUPINGS[name]
    cols = columns_of(grouping)
    matrix = grouped(rng, grouping, 37, cols)
    x = torch.from_numpy(rng.standard_normal((rows, cols), np.float32))
    bias = torch.from_numpy(rng.standard_normal(37, np.float32)) if rows == 2 else None
    wide = torch.full((rows + 2, 45), float("nan"))
    linear(x, on_device(matrix), bias, wide[:rows, 3:40], workspace)
    assert wide[rows:].isnan().all()
    assert wide[:, :3].isnan().all()
    assert wide[:, 40:].isnan().all()
    weights = matrix.dequantize()
    expected = x.double().numpy() @ weights.T.astype(np.float64) + (0 if bias is None else bias.double().numpy())
    error = compare(wide[:rows, 3:40], expected, x, weights, 2e-6)
    record(f"linear {name}", (rows, 37, cols), "float32", error)


@pytest.mark.parametrize("name", ["awq", "int4 of 16, minimum", "int8 of 64, minimum", "nf4", "fp8 blocks"])
@pytest.mark.parametrize(("step", "split"), [(16, 1), (32, 3), (256, 2)])
def test_a_step_covers_a_part_of_a_group_or_several(
    rng: np.random.Generator, workspace: Torch, name: str, step: int, split: int
) -> None:
    cols = 9 * max(32, GROUPINGS[name].group)
    matrix = grouped(rng, GROUPINGS[name], 20, cols)
    x, out = torch.from_numpy(rng.standard_normal((3, cols), np.float32)), torch.empty(3, 20)
    linear(x, on_device(matrix), None, out, workspace, tile=LinearTile(16, 32, step, split, 4, 2))
    weights = matrix.dequantize()
    compare(out, x.double().numpy() @ weights.T.astype(np.float64), x, weights, 2e-6)


@pytest.mark.parametrize("name", GROUPINGS)
def test_dequantized_rows_and_pieces_of_many_rows(rng: np.random.Generator, name: str) -> None:
    cols = columns_of(GROUPINGS[name])
    matrix = grouped(rng, GROUPINGS[name], 21, cols)
    packed, weights, out = on_device(matrix), matrix.dequantize(), torch.full((21, cols), float("nan"))
    dequantize_rows(packed, out)
    np.testing.assert_allclose(out, weights, rtol=1e-6, atol=1e-6 * np.abs(weights).max())
    x = torch.from_numpy(rng.standard_normal((LIBRARY_ROWS, cols), np.float32))
    layer = Linear((packed,), (None,), torch.full((18 * cols,), float("nan")))
    compare(layer(x), x.double().numpy() @ weights.T.astype(np.float64), x, weights, 2e-6)


@pytest.mark.parametrize("name", GROUPINGS)
def test_rows_of_a_table(rng: np.random.Generator, name: str) -> None:
    cols = columns_of(GROUPINGS[name])
    matrix = grouped(rng, GROUPINGS[name], 11, cols)
    tokens, out = torch.tensor([10, 0, 3, 3]), torch.full((4, cols), float("nan"))
    embed(tokens, on_device(matrix), out, factor=3.0)
    weights = matrix.dequantize()
    np.testing.assert_allclose(out, 3 * weights[tokens], rtol=1e-6, atol=1e-6 * np.abs(weights).max())


@pytest.mark.parametrize("size", [2.0**-100, 2.0**-30, 2.0**30, 2.0**100])
@pytest.mark.parametrize("name", ["gptq", "awq", "nvfp4", "fp8 blocks"])
def test_scales_of_any_size_are_kept(rng: np.random.Generator, workspace: Torch, name: str, size: float) -> None:
    """fp16 holds 6e-8 to 65,504: beyond it a row's factor has the exponent."""
    cols = columns_of(GROUPINGS[name])
    matrix = grouped(rng, GROUPINGS[name], 6, cols, size=size)
    # One row of its own size, and one of zeros.
    groups = matrix.read(0, 6)
    scale = groups.scale.copy()
    scale[1] *= np.float32(2.0**-20)
    scale[2] = 0
    changed = replace(groups, scale=scale, minimum=None if groups.minimum is None else groups.minimum * 0)
    matrix = replace(matrix, read=changed.rows)
    weights, out = matrix.dequantize(), torch.full((6, cols), float("nan"))
    packed = on_device(matrix)
    dequantize_rows(packed, out)
    assert np.isfinite(weights).all()
    np.testing.assert_allclose(out, weights, rtol=1e-6, atol=0)
    assert weights[1].any()
    assert not weights[2].any()
    x, found = torch.ones(1, cols), torch.empty(1, 6)
    linear(x, packed, None, found, workspace)
    compare(found, x.double().numpy() @ weights.T.astype(np.float64), x, weights, 2e-6)


def test_levels_are_rounded_to_fp16(rng: np.random.Generator) -> None:
    matrix = grouped(rng, Grouping("code4", 64, levels=NF4), 5, 128)
    out = torch.empty(5, 128)
    dequantize_rows(on_device(matrix), out)
    np.testing.assert_allclose(out, matrix.dequantize(), rtol=2**-11, atol=0)


@pytest.mark.parametrize(
    ("grouping", "cols", "form", "group"),
    [
        (Grouping("int4", 1024), 1024, "int4", 128),
        (Grouping("int4", 576), 576, "int4", 64),  # whole rows
        (Grouping("int8", 256), 512, "int8", 128),
        (Grouping("code4", 16, levels=E2M1), 64, "fp4", 16),
        (Grouping("code4", 32, levels=tuple(2 * level for level in E2M1)), 64, "fp4", 32),
        (Grouping("int4", 96), 288, "int4", 32),
        (Grouping("int4", 8), 64, "f32", 0),
        (Grouping("int4", 16), 48, "f32", 0),  # no whole pairs of groups
        (Grouping("int8", 16), 48, "int8", 16),
        (Grouping("fp8", 640), 640, "fp8", 0),
        (Grouping("fp8", 640, minimum=True), 640, "f32", 0),  # kernels scale sums without minimums
        (Grouping("fp8", 128, minimum=True), 640, "f32", 0),
        (Grouping("code4", 32, minimum=True, levels=E2M1), 640, "f32", 0),
        (Grouping("fp8", 128), 640, "fp8", 128),
    ],
)
def test_groups_of_the_device_divide_those_of_the_file(
    rng: np.random.Generator, grouping: Grouping, cols: int, form: str, group: int
) -> None:
    matrix = grouped(rng, grouping, 3, cols)
    layout = layout_of(matrix, "f32", "auto")
    assert (layout.form, layout.group) == (form, group)
    x, out = torch.eye(cols), torch.empty(cols, 3)
    if layout.form != "f32":
        linear(x, on_device(matrix), None, out, torch.empty(WORKSPACE))
        np.testing.assert_allclose(out.T, matrix.dequantize(), rtol=1e-6, atol=1e-7)
    assert layout_of(matrix, "bf16", "dense").form == "bf16"

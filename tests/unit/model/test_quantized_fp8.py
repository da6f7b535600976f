"""FP8 checkpoints: weights are those of the stored bits times the scales of the tensor, of rows, or of blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo_inference.common.errors import ModelError
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.groups import GroupedMatrix, e4m3_levels
from octavo_inference.models.weights import dequantize

from .conftest import Typed, linear_modules, write_quantized

Tensors = dict[str, np.ndarray]
DOWN = "model.layers.0.mlp.down_proj"


def stored(tensors: Tensors, scales: dict[str, np.ndarray], suffix: str) -> dict[str, Typed]:
    """The tensors with float8 linear layers."""
    typed: dict[str, Typed] = {name: ("F32", values) for name, values in tensors.items()}
    for module, scale in scales.items():
        rows = torch.from_numpy(tensors[module + ".weight"])
        typed[module + ".weight"] = ("F8_E4M3", rows.to(torch.float8_e4m3fn).view(torch.uint8).numpy())
        typed[module + suffix] = ("F32", scale)
    return typed


def weights(folder: Path) -> tuple[GroupedMatrix, np.ndarray]:
    """`down_proj` of a folder, and its values."""
    model = load_model(str(folder))
    assert isinstance(model, LoadedModel)
    matrix = model.weights.layers[0].down
    assert isinstance(matrix, GroupedMatrix)
    return matrix, dequantize(matrix)


def test_levels_are_those_of_torch() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32).numpy()
    np.testing.assert_array_equal(e4m3_levels(), every)


@pytest.mark.parametrize("shape", [(), (1,), "rows", "column"])
def test_scales_of_a_tensor_or_of_rows(tmp_path: Path, tensors: Tensors, shape: Any) -> None:
    rng = np.random.default_rng(1)
    scales = {}
    for module in linear_modules(tensors):
        rows = len(tensors[module + ".weight"])
        size = {"rows": (rows,), "column": (rows, 1)}.get(shape, shape)
        scales[module] = rng.uniform(0.5, 2, size).astype(np.float32)
    folder = write_quantized(tmp_path / "m", {"quant_method": "fp8"}, stored(tensors, scales, ".weight_scale"))
    expected = torch.from_numpy(tensors[DOWN + ".weight"]).to(torch.float8_e4m3fn).to(torch.float32).numpy()
    np.testing.assert_array_equal(weights(folder)[1], expected * scales[DOWN].reshape(-1, 1))


def test_scales_of_blocks(tmp_path: Path, tensors: Tensors) -> None:
    rng = np.random.default_rng(1)
    scales = {}
    for module in linear_modules(tensors):
        rows, columns = tensors[module + ".weight"].shape
        scales[module] = rng.uniform(0.5, 2, (-(-rows // 24), -(-columns // 32))).astype(np.float32)
    described = {"quant_method": "fp8", "weight_block_size": [24, 32]}
    folder = write_quantized(tmp_path / "m", described, stored(tensors, scales, ".weight_scale_inv"))
    matrix, values = weights(folder)
    assert matrix.grouping.group == 32
    expected = torch.from_numpy(tensors[DOWN + ".weight"]).to(torch.float8_e4m3fn).to(torch.float32).numpy()
    rows, columns = expected.shape
    expected *= scales[DOWN].repeat(24, axis=0)[:rows].repeat(32, axis=1)[:, :columns]
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(dequantize(matrix.rows(5, 30)), expected[5:30])
    np.testing.assert_array_equal(dequantize(matrix.columns(32, 64)), expected[:, 32:64])


def test_scales_that_are_not_finite_are_refused(tmp_path: Path, tensors: Tensors) -> None:
    scales = {module: np.full((), np.nan, np.float32) for module in linear_modules(tensors)}
    folder = write_quantized(tmp_path / "m", {"quant_method": "fp8"}, stored(tensors, scales, ".weight_scale"))
    with pytest.raises(ModelError, match=r"m: tensor model\.layers\.0\.\S+weight_scale has scales that are not finite"):
        load_model(str(folder))

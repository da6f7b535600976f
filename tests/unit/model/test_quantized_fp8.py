"""FP8 checkpoints: weights are those of the stored bits times the scales of the tensor, of rows, or of blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.logs import warnings_of

from octavo_inference.checkpoints.quantized import unused_scales
from octavo_inference.common.errors import ModelError
from octavo_inference.model_loader import load_model
from octavo_inference.models.groups import GroupedMatrix, e4m3_levels
from octavo_inference.models.weights import Tensor, dequantize

from .conftest import Typed, linear_modules, loaded_layer, write_quantized
from .quantized_files import DOWN, Layer, Tensors, checkpoint, exponents, float8, float8_layer


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
    matrix = loaded_layer(folder).down
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


def test_blocks_that_are_not_whole(tmp_path: Path, tensors: Tensors) -> None:
    """64 and 96 columns are in blocks of 40, the last of them smaller: scales belong to groups of 8."""
    rng = np.random.default_rng(1)

    def make(rows: int, columns: int) -> Layer:
        stored, values = float8(rng, rows, columns)
        scale = rng.uniform(0.5, 2, (-(-rows // 40), -(-columns // 40))).astype(np.float32)
        whole = scale.repeat(40, axis=0)[:rows].repeat(40, axis=1)[:, :columns]
        return {"weight": stored, "weight_scale_inv": ("F32", scale)}, values * whole

    expected = checkpoint(tmp_path / "m", {"quant_method": "fp8", "weight_block_size": [40, 40]}, tensors, make)
    matrix, values = weights(tmp_path / "m")
    assert matrix.grouping.group == 8
    np.testing.assert_array_equal(values, expected[DOWN])
    for start, end in ((0, 40), (39, 41), (40, 64)):
        np.testing.assert_array_equal(dequantize(matrix.rows(start, end)), expected[DOWN][start:end])


def test_scales_are_powers_of_two(tmp_path: Path, tensors: Tensors) -> None:
    rng = np.random.default_rng(1)

    def make(rows: int, columns: int) -> Layer:
        stored, values = float8(rng, rows, columns)
        bits, scale = exponents(rng, 1, columns)
        return {"weight": stored, "weight_scale_inv": ("F8_E8M0", bits)}, values * scale

    expected = checkpoint(tmp_path / "m", {"quant_method": "fp8", "weight_block_size": [128, 32]}, tensors, make)
    np.testing.assert_array_equal(weights(tmp_path / "m")[1], expected[DOWN].astype(np.float32))


@pytest.mark.parametrize("entries", [1, 3])
def test_stacked_layers_have_a_scale_or_one_for_each_part(tmp_path: Path, tensors: Tensors, entries: int) -> None:
    rng = np.random.default_rng(1)
    typed: dict[str, Typed] = {name: ("F32", values) for name, values in tensors.items() if "_proj" not in name}
    expected = {}
    for module, parts in (
        ("self_attn.qkv_proj", (64, 32, 32)),
        ("self_attn.o_proj", (64,)),
        ("mlp.gate_up_proj", (96, 96)),
        ("mlp.down_proj", (64,)),
    ):
        name = f"model.layers.0.{module}"
        typed[name + ".weight"], values = float8(rng, sum(parts), 96 if "down" in module else 64)
        scale = rng.uniform(0.5, 2, min(entries, len(parts))).astype(np.float32)
        typed[name + ".weight_scale"] = typed[name + ".input_scale"] = ("F32", scale)
        expected[module] = values * (scale if len(scale) == 1 else scale.repeat(parts))[:, None]
    folder = write_quantized(tmp_path / "m", {"quant_method": "fp8"}, typed, architectures=["Phi3ForCausalLM"])
    layer = loaded_layer(folder)
    np.testing.assert_array_equal(dequantize(layer.q), expected["self_attn.qkv_proj"][:64])
    np.testing.assert_array_equal(dequantize(layer.k), expected["self_attn.qkv_proj"][64:96])
    np.testing.assert_array_equal(dequantize(layer.v), expected["self_attn.qkv_proj"][96:])
    np.testing.assert_array_equal(dequantize(layer.up), expected["mlp.gate_up_proj"][96:])


def test_layers_that_were_not_converted_stay_as_they_are(tmp_path: Path, tensors: Tensors) -> None:
    def make(rows: int, columns: int) -> Layer:
        if columns == tensors[DOWN + ".weight"].shape[1]:
            return {"weight": ("F32", tensors[DOWN + ".weight"])}, tensors[DOWN + ".weight"]
        return float8_layer(rows, columns)

    described = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": [DOWN]}
    checkpoint(tmp_path / "m", described, tensors, make)
    layer = loaded_layer(tmp_path / "m")
    assert isinstance(layer.down, Tensor)
    assert isinstance(layer.up, GroupedMatrix)


CACHE_SCALES = [
    "self_attn.k_scale",
    "self_attn.attn.v_scale",
    "self_attn.k_proj.output_scale",
    "self_attn.v_proj.v_scale",
]


@pytest.mark.parametrize("name", CACHE_SCALES)
def test_scales_of_the_cache_are_not_used(
    tmp_path: Path, tensors: Tensors, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has its own. Numbers that cannot be scales are logged once."""

    def write(folder: Path, scale: float) -> Path:
        typed: dict[str, Typed] = {key: ("F32", values) for key, values in tensors.items()}
        typed["model.layers.0." + name] = ("F32", np.float32(scale))
        return write_quantized(folder, {"quant_method": "fp8"}, typed)

    logged = warnings_of(unused_scales, monkeypatch)
    for number, scale in enumerate((0.5, -1.0, 0.0, np.nan, np.inf)):
        logged.clear()
        layer = loaded_layer(write(tmp_path / f"{number}", scale))
        np.testing.assert_array_equal(dequantize(layer.down), tensors[DOWN + ".weight"])
        said = [line for line in logged if f"a tensor {name.rpartition('.')[2]} is 0" in line]
        assert len(said) == (number > 0)


def test_a_large_tensor_with_the_name_of_a_scale_is_not_read(tmp_path: Path, tensors: Tensors) -> None:
    typed: dict[str, Typed] = {key: ("F32", values) for key, values in tensors.items()}
    typed["model.layers.0.self_attn.k_scale"] = ("F32", np.full((64, 64), np.nan, np.float32))
    loaded_layer(write_quantized(tmp_path / "m", {"quant_method": "fp8"}, typed))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight_block_size": [128]}, r"weight_block_size is \[128\], expected two sizes"),
        ({"weight_block_size": [128, True]}, r"weight_block_size is \[128, True\], expected two sizes"),
        ({"weight_block_size": [8, 8]}, r"q_proj.weight_scale has shape \[1\], expected \[8, 8\]"),
        ({"activation_scheme": "tensor"}, "activation_scheme is 'tensor', expected 'static' or 'dynamic'"),
        ({"modules_to_not_convert": 3}, "modules_to_not_convert is 3, expected a list of names"),
        ({"ignored_layers": [1]}, r"ignored_layers is \[1\], expected a list of names"),
    ],
)
def test_settings_that_lie(tmp_path: Path, tensors: Tensors, settings: dict[str, Any], message: str) -> None:
    checkpoint(tmp_path / "m", {"quant_method": "fp8"} | settings, tensors, float8_layer)
    with pytest.raises(ModelError, match=message):
        loaded_layer(tmp_path / "m")


def test_a_scale_that_is_missing(tmp_path: Path, tensors: Tensors) -> None:
    def make(rows: int, columns: int) -> Layer:
        parts, values = float8_layer(rows, columns)
        return {"weight": parts["weight"]}, values

    for settings, name in (({}, "weight_scale"), ({"weight_block_size": [128, 128]}, "weight_scale_inv")):
        checkpoint(tmp_path / "m", {"quant_method": "fp8"} | settings, tensors, make)
        with pytest.raises(ModelError, match=rf"m: tensor model\.layers\.0\.self_attn\.q_proj\.{name} is missing"):
            loaded_layer(tmp_path / "m")


def test_the_other_float8_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    def make(rows: int, columns: int) -> Layer:
        parts, values = float8_layer(rows, columns)
        return parts | {"weight": ("F8_E5M2", parts["weight"][1])}, values

    checkpoint(tmp_path / "m", {"quant_method": "fp8"}, tensors, make)
    with pytest.raises(ModelError, match=r"q_proj\.weight has dtype F8_E5M2, supported are"):
        loaded_layer(tmp_path / "m")

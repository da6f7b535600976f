"""ModelOpt checkpoints: each quant_algo, described in config.json or in a file of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo_inference.common.errors import ModelError
from octavo_inference.config.engine import EngineSettings
from octavo_inference.engine.factory import load_engine
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.weights import Tensor, dequantize

from .conftest import Typed, linear_modules, loaded_layer, write_hf, write_quantized
from .quantized_files import DOWN, UP, Layer, Make, Tensors, checkpoint, exponents, float8, float8_layer, nvfp4_layer
from .quantized_modules import check_matrix, named


def rows_layer(rows: int, columns: int) -> Layer:
    rng = np.random.default_rng(rows)
    stored, values = float8(rng, rows, columns)
    scale = rng.uniform(0.01, 0.02, rows).astype(np.float32)
    return {"weight": stored, "weight_scale": ("F32", scale)}, values * scale[:, None]


def tiles_layer(rows: int, columns: int) -> Layer:
    """Both dimensions are below a tile's."""
    rng = np.random.default_rng(rows)
    stored, values = float8(rng, rows, columns)
    scale = rng.uniform(0.01, 0.02, (1, 1, 1, 1)).astype(np.float32)
    return {"weight": stored, "weight_scale": ("F32", scale)}, values * scale.reshape(1, 1)


def mxfp8_layer(rows: int, columns: int) -> Layer:
    rng = np.random.default_rng(rows)
    stored, values = float8(rng, rows, columns)
    bits, scale = exponents(rng, rows, columns)
    return {"weight": stored, "weight_scale": ("U8", bits)}, values * scale


@pytest.mark.parametrize(
    ("algorithm", "make"),
    [
        ("FP8", float8_layer),
        ("FP8_PER_CHANNEL_PER_TOKEN", rows_layer),
        ("fp8_pb_wo", tiles_layer),
        ("MXFP8", mxfp8_layer),
        ("NVFP4", nvfp4_layer),
        ("W4A16_NVFP4", nvfp4_layer),
    ],
)
def test_weights_are_those_of_the_definition(tmp_path: Path, tensors: Tensors, algorithm: str, make: Make) -> None:
    settings = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"]}
    expected = checkpoint(tmp_path / "m", settings, tensors, make)
    layer = loaded_layer(tmp_path / "m")
    for matrix, module in ((layer.down, DOWN), (layer.up, UP)):
        assert isinstance(matrix, GroupedMatrix)
        np.testing.assert_allclose(dequantize(matrix), expected[module], rtol=3e-7)
        np.testing.assert_array_equal(dequantize(matrix.rows(5, 30)), dequantize(matrix)[5:30])


def test_float4_keeps_its_groups(tmp_path: Path, tensors: Tensors) -> None:
    checkpoint(tmp_path / "m", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, tensors, nvfp4_layer)
    matrix = loaded_layer(tmp_path / "m").down
    assert isinstance(matrix, GroupedMatrix)
    assert (matrix.grouping.kind, matrix.grouping.group, matrix.format) == ("code4", 16, "nvfp4")
    np.testing.assert_array_equal(dequantize(matrix.columns(16, 48)), dequantize(matrix)[:, 16:48])


def test_a_file_of_its_own_describes_the_quantization(tmp_path: Path, tensors: Tensors) -> None:
    expected = checkpoint(tmp_path / "m", {}, tensors, nvfp4_layer)
    inner = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    file = tmp_path / "m" / "hf_quant_config.json"
    file.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": inner}))
    np.testing.assert_allclose(dequantize(loaded_layer(tmp_path / "m").down), expected[DOWN], rtol=3e-7)
    file.write_text(json.dumps({"quantization": inner | {"quant_algo": "W4A16_AWQ"}}))
    with pytest.raises(
        ModelError, match=r"hf_quant_config.json: quant_algo 'W4A16_AWQ' is not supported; supported ar"
    ):
        loaded_layer(tmp_path / "m")


def test_other_models_with_that_file_are_refused(tmp_path: Path, tensors: Tensors) -> None:
    folder = write_hf(tmp_path / "m", tensors, architectures=["OwnForCausalLM"])
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    with pytest.raises(
        ModelError, match=r"OwnForCausalLM cannot be served on a CPU: only native .* quantized weights \(modelopt\)"
    ):
        load_engine(EngineSettings(model=str(folder), backend="cpu"))


def test_a_mixture_has_an_algorithm_for_each_layer(tmp_path: Path, tensors: Tensors) -> None:
    def make(rows: int, columns: int) -> Layer:
        if columns == tensors[DOWN + ".weight"].shape[1]:
            return float8_layer(rows, columns)
        if rows == tensors[UP + ".weight"].shape[0]:
            return {"weight": ("F32", tensors[UP + ".weight"])}, tensors[UP + ".weight"]
        return nvfp4_layer(rows, columns)

    layers = {f"model.layers.0.self_attn.{name}_proj": {"quant_algo": "NVFP4", "group_size": 16} for name in "qkvo"}
    settings = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": layers | {DOWN: {"quant_algo": "FP8"}},
    }
    expected = checkpoint(tmp_path / "m", settings, tensors, make)
    layer = loaded_layer(tmp_path / "m")
    kinds = [matrix.grouping.kind for matrix in (layer.q, layer.down) if isinstance(matrix, GroupedMatrix)]
    assert kinds == ["code4", "fp8"]
    assert isinstance(layer.up, Tensor)
    np.testing.assert_allclose(dequantize(layer.down), expected[DOWN], rtol=3e-7)


def test_layers_of_a_mixture_may_be_in_the_other_file(tmp_path: Path, tensors: Tensors) -> None:
    expected = checkpoint(tmp_path / "m", {"quant_method": "modelopt_mixed"}, tensors, float8_layer)
    layers = {module: {"quant_algo": "FP8"} for module in linear_modules(tensors)}
    whole = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    (tmp_path / "m/hf_quant_config.json").write_text(json.dumps(whole))
    np.testing.assert_allclose(dequantize(loaded_layer(tmp_path / "m").down), expected[DOWN], rtol=3e-7)


def test_tiles_that_the_matrix_does_not_fill(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    stored, values = float8(rng, 300, 400)
    scale = rng.uniform(0.01, 0.02, (3, 1, 4, 1)).astype(np.float32)
    settings = {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}
    parts: dict[str, Typed] = {"weight": stored, "weight_scale": ("F32", scale)}
    folder = write_quantized(tmp_path / "m", settings, named(parts))
    each = scale[:, 0, :, 0].repeat(128, axis=0)[:300].repeat(128, axis=1)[:, :400]
    assert check_matrix(folder, values * each).grouping.group == 16


def test_a_cache_alone_may_be_quantized(tmp_path: Path, tensors: Tensors) -> None:
    def floats(rows: int, columns: int) -> Layer:
        ones = np.ones((rows, columns), np.float32)
        return {"weight": ("F32", ones)}, ones

    settings = {"quant_method": "modelopt", "quant_algo": None, "kv_cache_scheme": {"type": "float", "num_bits": 8}}
    checkpoint(tmp_path / "m", settings, tensors, floats)
    assert isinstance(loaded_layer(tmp_path / "m").q, Tensor)


@pytest.mark.parametrize(
    ("settings", "extra", "message"),
    [
        ({"quant_algo": "NVFP4_AWQ"}, {}, "quant_algo 'NVFP4_AWQ' is not supported; supported are FP8, "),
        ({"quant_algo": 8}, {}, "quant_algo 8 is not supported"),
        ({"quant_algo": "NVFP4", "group_size": 32}, {}, "quant_algo is NVFP4 with a group_size of 32, expected 16"),
        ({"quant_algo": None}, {}, r"q_proj.weight is quantized \(U8\), but config.json has no quant_algo for model"),
        ({"quant_algo": "MIXED_PRECISION"}, {}, "quantized_layers is None, expected an object of objects"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {}}, {}, "has no quant_algo for model.layers.0"),
        (
            {"quant_algo": "NVFP4"},
            {"pre_quant_scale": ("F32", np.ones(64, np.float32))},
            "q_proj.pre_quant_scale is not supported: the layer's inputs would have to be scaled",
        ),
        (
            {"quant_algo": "NVFP4"},
            {"weight_scale_2": ("F32", np.float32(np.nan))},
            "q_proj.weight_scale_2 has scales that are not finite numbers: nan at index 0",
        ),
        (
            {"quant_algo": "NVFP4"},
            {"weight_scale_2": ("F32", np.float32(0))},
            "q_proj.weight_scale_2 has the scale 0.0, expected more than 0",
        ),
        (
            {"quant_algo": "NVFP4"},
            {"weight_scale": ("F8_E4M3", np.full((64, 4), 0x7F, np.uint8))},
            "q_proj.weight_scale has scales that are not finite numbers: nan",
        ),
        (
            {"quant_algo": "NVFP4"},
            {"weight_scale": ("F8_E4M3", np.ones((64, 2), np.uint8))},
            r"q_proj.weight_scale has shape \[64, 2\], expected \[64, 4\]",
        ),
        ({"quant_algo": "FP8"}, {}, "q_proj.weight has dtype U8, expected F8_E4M3"),
    ],
)
def test_what_is_not_supported_or_lies(
    tmp_path: Path, tensors: Tensors, settings: dict[str, Any], extra: dict[str, Typed], message: str
) -> None:
    def make(rows: int, columns: int) -> Layer:
        parts, weights = nvfp4_layer(rows, columns)
        return parts | extra, weights

    checkpoint(tmp_path / "m", {"quant_method": "modelopt"} | settings, tensors, make)
    with pytest.raises(ModelError, match=message) as refused:
        loaded_layer(tmp_path / "m")
    assert str(tmp_path / "m") in str(refused.value)

"""compressed-tensors checkpoints: weights are those of the format's definition, and what contradicts it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.logs import warnings_of

from octavo_inference.checkpoints.quantized import unused_scales
from octavo_inference.checkpoints.quantized.schemes import read_schemes
from octavo_inference.common.errors import ModelError
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.weights import Tensor, dequantize

from .conftest import Typed, loaded_layer, write_quantized
from .quantized_files import (
    DOWN,
    INT4,
    UP,
    Layer,
    Make,
    Q,
    Tensors,
    checkpoint,
    described,
    exponents,
    float4,
    float8,
    int4_layer,
    words,
)


def scales_of(rng: np.random.Generator, strategy: str, size: int, rows: int, columns: int) -> tuple[Any, np.ndarray]:
    """Scales as stored, and one for each weight."""
    shape = {
        "tensor": (1,),
        "channel": (rows, 1),
        "group": (rows, columns // size),
        "block": (-(-rows // 24), -(-columns // size)),
    }[strategy]
    stored = rng.uniform(0.01, 0.02, shape).astype(np.float32)
    if strategy == "block":
        return stored, stored.repeat(24, axis=0)[:rows].repeat(size, axis=1)[:, :columns]
    if strategy == "tensor":
        return stored, np.broadcast_to(stored, (rows, columns))
    return stored, stored.repeat(columns // stored.shape[1], axis=1)


def args(bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    sizes = {"group": {"group_size": 32}, "block": {"block_structure": [24, 32]}}.get(strategy, {})
    return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy, "actorder": None} | sizes | more


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("strategy", ["channel", "group"])
@pytest.mark.parametrize("bits", range(1, 9))
def test_packed_integers(tmp_path: Path, tensors: Tensors, bits: int, strategy: str, symmetric: bool) -> None:
    rng = np.random.default_rng(bits)

    def make(rows: int, columns: int) -> Layer:
        values = rng.integers(0, 1 << bits, (rows, columns))
        stored, scale = scales_of(rng, strategy, 32, rows, columns)
        zero = np.full(stored.shape, 1 << bits - 1) if symmetric else rng.integers(0, 1 << bits, stored.shape)
        parts: dict[str, Typed] = {
            "weight_packed": ("I32", words(values, bits)),
            "weight_scale": ("F32", stored),
            "weight_shape": ("I64", np.array([rows, columns])),
        }
        if not symmetric:
            parts["weight_zero_point"] = ("I32", words(zero.T, bits).T)
        return parts, (values - zero.repeat(columns // zero.shape[1], axis=1)) * scale

    settings = described("pack-quantized", args(bits, strategy, symmetric=symmetric))
    expected = checkpoint(tmp_path / "m", settings, tensors, make)
    layer = loaded_layer(tmp_path / "m")
    for matrix, module in ((layer.down, DOWN), (layer.q, Q)):
        assert isinstance(matrix, GroupedMatrix)
        assert matrix.grouping.kind == ("int4" if bits <= 4 else "int8")
        assert matrix.grouping.minimum is not symmetric
        np.testing.assert_allclose(dequantize(matrix), expected[module], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(dequantize(layer.down.rows(5, 30)), dequantize(layer.down)[5:30])
    if strategy == "group":
        np.testing.assert_array_equal(dequantize(layer.down.columns(32, 64)), dequantize(layer.down)[:, 32:64])


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_scales_keep_their_16_bits(tmp_path: Path, tensors: Tensors, dtype: str) -> None:
    rng = np.random.default_rng(1)
    to_type = {"F16": torch.float16, "BF16": torch.bfloat16}[dtype]

    def make(rows: int, columns: int) -> Layer:
        values = rng.integers(0, 16, (rows, columns))
        scale = torch.from_numpy(rng.uniform(0.01, 0.02, (rows, columns // 32))).to(to_type)
        parts: dict[str, Typed] = {
            "weight_packed": ("I32", words(values, 4)),
            "weight_scale": (dtype, scale.view(torch.int16).numpy()),
        }
        return parts, (values - 8) * scale.to(torch.float32).numpy().repeat(32, axis=1)

    expected = checkpoint(tmp_path / "m", described("pack-quantized", args(4, "group")), tensors, make)
    np.testing.assert_array_equal(dequantize(loaded_layer(tmp_path / "m").up), expected[UP].astype(np.float32))


def test_groups_of_sorted_columns(tmp_path: Path, tensors: Tensors) -> None:
    rng = np.random.default_rng(1)

    def make(rows: int, columns: int) -> Layer:
        values = rng.integers(0, 16, (rows, columns))
        index = rng.permutation(np.arange(columns) // 16)
        scale = rng.uniform(0.01, 0.02, (rows, columns // 16)).astype(np.float32)
        parts: dict[str, Typed] = {
            "weight_packed": ("I32", words(values, 4)),
            "weight_scale": ("F32", scale),
            "weight_g_idx": ("I32", index.astype(np.int32)),
        }
        return parts, (values - 8) * scale[:, index]

    settings = described("pack-quantized", args(4, "group", group_size=16, actorder="group"))
    expected = checkpoint(tmp_path / "m", settings, tensors, make)
    matrix = loaded_layer(tmp_path / "m").down
    assert isinstance(matrix, GroupedMatrix)
    assert matrix.order is not None
    np.testing.assert_array_equal(dequantize(matrix), expected[DOWN].astype(np.float32))
    np.testing.assert_array_equal(dequantize(matrix.rows(5, 30)), expected[DOWN][5:30].astype(np.float32))


@pytest.mark.parametrize("index", [np.repeat([0, 1, 2], 32), np.full(96, -1)])
def test_an_index_that_sorts_nothing_is_no_order(tmp_path: Path, tensors: Tensors, index: np.ndarray) -> None:
    rng = np.random.default_rng(1)

    def make(rows: int, columns: int) -> Layer:
        values = rng.integers(0, 16, (rows, columns))
        scale = rng.uniform(0.01, 0.02, (rows, columns // 32)).astype(np.float32)
        parts: dict[str, Typed] = {
            "weight_packed": ("I32", words(values, 4)),
            "weight_scale": ("F32", scale),
            "weight_g_idx": ("I32", index[:columns].astype(np.int32)),
        }
        return parts, (values - 8) * scale.repeat(32, axis=1)

    expected = checkpoint(tmp_path / "m", described("pack-quantized", args(4, "group")), tensors, make)
    matrix = loaded_layer(tmp_path / "m").down
    assert isinstance(matrix, GroupedMatrix)
    assert matrix.order is None
    np.testing.assert_array_equal(dequantize(matrix), expected[DOWN].astype(np.float32))


@pytest.mark.parametrize("format_", ["int-quantized", "naive-quantized"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("strategy", ["tensor", "channel", "group", "block"])
def test_integers_in_bytes(tmp_path: Path, tensors: Tensors, strategy: str, symmetric: bool, format_: str) -> None:
    rng = np.random.default_rng(1)

    def make(rows: int, columns: int) -> Layer:
        values = rng.integers(-128, 128, (rows, columns))
        stored, scale = scales_of(rng, strategy, 32, rows, columns)
        zero = rng.integers(-128, 128, stored.shape)
        parts: dict[str, Typed] = {"weight": ("I8", values.astype(np.int8)), "weight_scale": ("F32", stored)}
        if symmetric:
            return parts, values * scale
        parts["weight_zero_point"] = ("I8", zero.astype(np.int8))
        if strategy == "block":
            zero = zero.repeat(24, axis=0)[:rows].repeat(32, axis=1)[:, :columns]
        elif strategy != "tensor":
            zero = zero.repeat(columns // zero.shape[1], axis=1)
        return parts, (values - zero) * scale

    settings = described(format_, args(8, strategy, symmetric=symmetric))
    settings["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "dynamic": True, "strategy": "token"}
    expected = checkpoint(tmp_path / "m", settings, tensors, make)
    layer = loaded_layer(tmp_path / "m")
    for matrix, module in ((layer.down, DOWN), (layer.q, Q)):
        assert isinstance(matrix, GroupedMatrix)
        assert matrix.grouping.kind == "int8"
        np.testing.assert_allclose(dequantize(matrix), expected[module], rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(dequantize(matrix.rows(5, 30)), dequantize(matrix)[5:30])


@pytest.mark.parametrize("strategy", ["tensor", "channel", "group", "block"])
def test_float8(tmp_path: Path, tensors: Tensors, strategy: str) -> None:
    rng = np.random.default_rng(1)

    def make(rows: int, columns: int) -> Layer:
        weight, values = float8(rng, rows, columns)
        stored, scale = scales_of(rng, strategy, 32, rows, columns)
        ones: Typed = ("F32", np.ones(1, np.float32))
        return {"weight": weight, "weight_scale": ("F32", stored), "input_scale": ones}, values * scale

    settings = described("float-quantized", args(8, strategy, type="float"))
    expected = checkpoint(tmp_path / "m", settings, tensors, make)
    layer = loaded_layer(tmp_path / "m")
    for matrix, module in ((layer.down, DOWN), (layer.q, Q)):
        assert isinstance(matrix, GroupedMatrix)
        np.testing.assert_array_equal(dequantize(matrix), expected[module])


def test_nvfp4(tmp_path: Path, tensors: Tensors) -> None:
    rng = np.random.default_rng(1)

    def make(rows: int, columns: int) -> Layer:
        packed, values = float4(rng, rows, columns)
        stored, scale = float8(rng, rows, columns // 16, least=1, most=400)
        whole = np.array([1234.5], np.float32)
        parts: dict[str, Typed] = {
            "weight_packed": ("U8", packed),
            "weight_scale": stored,
            "weight_global_scale": ("F32", whole),
            "input_global_scale": ("F32", whole),
        }
        return parts, values * (scale / whole).repeat(16, axis=1)

    settings = described("nvfp4-pack-quantized", args(4, "tensor_group", type="float", group_size=16))
    expected = checkpoint(tmp_path / "m", settings, tensors, make)
    matrix = loaded_layer(tmp_path / "m").down
    assert isinstance(matrix, GroupedMatrix)
    assert (matrix.grouping.kind, matrix.grouping.group) == ("code4", 16)
    np.testing.assert_array_equal(dequantize(matrix), expected[DOWN].astype(np.float32))
    np.testing.assert_array_equal(dequantize(matrix.columns(16, 48)), dequantize(matrix)[:, 16:48])


@pytest.mark.parametrize("dtype", ["U8", "F8_E8M0"])
def test_mxfp4(tmp_path: Path, tensors: Tensors, dtype: str) -> None:
    rng = np.random.default_rng(1)

    def make(rows: int, columns: int) -> Layer:
        packed, values = float4(rng, rows, columns)
        bits, scale = exponents(rng, rows, columns)
        return {"weight_packed": ("U8", packed), "weight_scale": (dtype, bits)}, values * scale

    settings = described("mxfp4-pack-quantized", args(4, "group", type="float"))
    expected = checkpoint(tmp_path / "m", settings, tensors, make)
    matrix = loaded_layer(tmp_path / "m").down
    assert isinstance(matrix, GroupedMatrix)
    assert (matrix.grouping.kind, matrix.grouping.group) == ("code4", 32)
    np.testing.assert_array_equal(dequantize(matrix), expected[DOWN].astype(np.float32))


def test_mxfp8(tmp_path: Path, tensors: Tensors) -> None:
    rng = np.random.default_rng(1)

    def make(rows: int, columns: int) -> Layer:
        stored, values = float8(rng, rows, columns)
        bits, scale = exponents(rng, rows, columns)
        return {"weight": stored, "weight_scale": ("U8", bits)}, values * scale

    expected = checkpoint(tmp_path / "m", described("mxfp8-quantized", args(8, "group", type="float")), tensors, make)
    np.testing.assert_array_equal(dequantize(loaded_layer(tmp_path / "m").down), expected[DOWN].astype(np.float32))


@pytest.mark.parametrize("ignored", [DOWN, r"re:.*mlp\.down.*", "re:model.*down_proj$"])
def test_ignored_layers_stay_as_they_are(tmp_path: Path, tensors: Tensors, ignored: str) -> None:
    def make(rows: int, columns: int) -> Layer:
        if columns == tensors[DOWN + ".weight"].shape[1]:
            return {"weight": ("F32", tensors[DOWN + ".weight"])}, tensors[DOWN + ".weight"]
        return int4_layer(rows, columns)

    expected = checkpoint(tmp_path / "m", described("pack-quantized", INT4, ignore=[ignored]), tensors, make)
    layer = loaded_layer(tmp_path / "m")
    assert isinstance(layer.down, Tensor)
    assert isinstance(layer.up, GroupedMatrix)
    np.testing.assert_array_equal(dequantize(layer.down), expected[DOWN])
    np.testing.assert_array_equal(dequantize(layer.up), expected[UP].astype(np.float32))


def test_each_group_has_its_format(tmp_path: Path, tensors: Tensors) -> None:
    def make(rows: int, columns: int) -> Layer:
        if columns != tensors[DOWN + ".weight"].shape[1]:
            return int4_layer(rows, columns)
        values = np.random.default_rng(1).integers(-128, 128, (rows, columns))
        parts: dict[str, Typed] = {
            "weight": ("I8", values.astype(np.int8)),
            "weight_scale": ("F32", np.full((rows, 1), 0.5, np.float32)),
        }
        return parts, values * 0.5

    settings = described("mixed-precision", INT4)
    eight = {"targets": ["re:.*down_proj"], "weights": args(8, "channel"), "format": "int-quantized"}
    settings["config_groups"]["group_1"] = eight
    expected = checkpoint(tmp_path / "m", settings, tensors, make)
    layer = loaded_layer(tmp_path / "m")
    for matrix, module in ((layer.down, DOWN), (layer.q, Q)):
        assert isinstance(matrix, GroupedMatrix)
        np.testing.assert_array_equal(dequantize(matrix), expected[module].astype(np.float32))


def test_the_output_layer_may_be_quantized(tmp_path: Path, tensors: Tensors) -> None:
    parts, expected = int4_layer(*tensors["model.embed_tokens.weight"].shape)
    typed: dict[str, Typed] = {name: ("F32", values) for name, values in tensors.items()}
    typed |= {f"lm_head.{name}": part for name, part in parts.items()}
    folder = write_quantized(tmp_path / "m", described("pack-quantized", INT4, ignore=["re:model.*"]), typed)
    model = load_model(str(folder))
    assert isinstance(model, LoadedModel)
    np.testing.assert_array_equal(dequantize(model.weights.lm_head), expected.astype(np.float32))


@pytest.mark.parametrize("named", ["model.language_model.layers.0.", "language_model.model.layers.0."])
def test_names_inside_of_multimodal_models_have_two_forms(named: str) -> None:
    """Releases of transformers differ in them, between the tensors and the settings of one checkpoint."""
    group = {"targets": [f"re:{named}.*proj"], "weights": INT4}
    schemes = read_schemes(Path("config.json"), {"format": "pack-quantized", "config_groups": {"a": group}})
    for prefix in ("model.language_model.", "language_model.model."):
        assert schemes.of(prefix + "layers.0.mlp.up_proj") is not None
    assert schemes.of("model.vision_tower.layers.0.mlp.up_proj") is None


def test_the_most_specific_target_is_used() -> None:
    def group(target: str, bits: int) -> dict[str, Any]:
        return {"targets": [target], "weights": INT4 | {"num_bits": bits}}

    groups = {"a": group("Linear", 2), "b": group("re:.*up_proj", 3), "c": group(UP, 4)}
    schemes = read_schemes(Path("config.json"), {"format": "pack-quantized", "config_groups": groups})
    found = [schemes.of(module) for module in (DOWN, UP.replace(".0.", ".1."), UP)]
    assert [scheme.bits for scheme in found if scheme is not None] == [2, 3, 4]


def test_settings_may_be_nested(tmp_path: Path, tensors: Tensors) -> None:
    settings = described("pack-quantized", INT4)
    nested = {"quant_method": settings["quant_method"], "quantization_config": settings, "sparsity_config": {}}
    expected = checkpoint(tmp_path / "m", nested, tensors, int4_layer)
    np.testing.assert_array_equal(dequantize(loaded_layer(tmp_path / "m").up), expected[UP].astype(np.float32))


def change(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets `value` for a dotted key of the settings."""

    def apply(settings: dict[str, Any]) -> None:
        *path, last = key.split(".")
        for name in path:
            settings = settings.setdefault(name, {})
        settings[last] = value

    return apply


WEIGHTS = "config_groups.group_0.weights"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", "marlin-24", "format 'marlin-24' is not supported; supported are pack-"),
        ("sparsity_config", {"format": "sparse-24-bitmask"}, "'sparse-24-bitmask' is not supp"),
        ("transform_config", {"config_groups": {"R1": {}}}, "transform_config is not supported"),
        (WEIGHTS + ".strategy", "token", "strategy 'token' is not supported; supported are ten"),
        (WEIGHTS + ".num_bits", 16, "num_bits is 16, expected a whole number from 1 to 8"),
        (WEIGHTS + ".num_bits", True, "num_bits is True, expected a whole number"),
        (WEIGHTS + ".num_bits", 8, r"weight_packed has shape \[64, 8\], expected \[64, 16\]"),
        (WEIGHTS + ".type", "float", "describes 4-bit floats by group, which pack-quantized does not hold"),
        (WEIGHTS + ".type", "complex", "type is 'complex', expected 'int' or 'float'"),
        (WEIGHTS + ".symmetric", None, "symmetric is missing, expected true or false"),
        (WEIGHTS + ".symmetric", False, "weight_zero_point is missing"),
        (WEIGHTS + ".group_size", 0, "group_size is 0, expected the columns of a group"),
        (WEIGHTS + ".group_size", 48, "groups of 48 columns, which do not divide the 64 columns of model"),
        (WEIGHTS + ".group_size", 64, r"weight_scale has shape \[64, 2\], expected \[64, 1\]"),
        (WEIGHTS + ".actorder", 1.5, "actorder is 1.5, expected 'group', 'weight' or null"),
        (WEIGHTS + ".actorder", "group", "weight_g_idx is missing"),
        (WEIGHTS, [], r"weights is \[\], expected an object"),
        ("config_groups.group_0.targets", "Linear", "targets is 'Linear', expected a list of names"),
        ("config_groups.group_0.targets", ["re:("], r"config_groups has '\(', not a regular expression"),
        ("config_groups.group_0.targets", ["LlamaAttention"], "weight_packed is quantized, but no group"),
        ("config_groups", 1, "config_groups is 1, expected an object"),
        ("ignore", [DOWN], "down_proj.weight_packed is quantized, but no group"),
    ],
)
def test_settings_that_are_not_supported_or_lie(
    tmp_path: Path, tensors: Tensors, key: str, value: Any, message: str
) -> None:
    settings = described("pack-quantized", dict(INT4))
    change(key, value)(settings)
    checkpoint(tmp_path / "m", settings, tensors, int4_layer)
    with pytest.raises(ModelError, match=message) as refused:
        loaded_layer(tmp_path / "m")
    assert str(tmp_path / "m") in str(refused.value)


def lying(name: str, dtype: str, lie: Callable[[int, int], np.ndarray]) -> Make:
    def make(rows: int, columns: int) -> Layer:
        parts, expected = int4_layer(rows, columns)
        return parts | {name: (dtype, lie(rows, columns))}, expected

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lying("weight_scale", "F32", lambda r, c: np.full((r, c // 32), np.inf, np.float32)),
            "weight_scale has scales that are not finite numbers: inf at index 0",
        ),
        (
            lying("weight_scale", "I32", lambda r, c: np.ones((r, c // 32), np.int32)),
            "weight_scale has dtype I32, expected F32 or F16 or BF16",
        ),
        (
            lying("weight_packed", "U8", lambda r, c: np.ones((r, c // 2), np.uint8)),
            "weight_packed has dtype U8, expected I32",
        ),
        (
            lying("weight_shape", "I64", lambda r, c: np.array([r, c + 1])),
            r"weight_shape is \[64, 65\], config.json says \[64, 64\]",
        ),
        (
            lying("weight_zero_point", "I8", lambda r, c: np.ones((r, c // 32), np.int8)),
            "weight_zero_point has zero points, although .* symmetric",
        ),
        (
            lying("weight_g_idx", "I32", lambda r, c: np.zeros(c, np.int32)),
            "weight_g_idx has 64 columns in group 0, expected 32",
        ),
        (
            lying("weight_g_idx", "I32", lambda r, c: np.full(c, 7, np.int32)),
            "weight_g_idx has the group 7, expected 0 to 1",
        ),
        *(
            (
                lying("weight_zero_point", dtype, lambda r, c, array=array: np.resize(array, (-(-r // 8), c // 32))),
                "weight_zero_point has zero points, although .* symmetric",
            )
            for dtype, array in (
                ("I32", np.array([0x08888889], np.uint32).view(np.int32)),
                ("F32", np.array([0, 1], np.float32)),
                ("F8_E4M3", np.array([0x80, 1], np.uint8)),
            )
        ),
    ],
)
def test_tensors_that_lie(tmp_path: Path, tensors: Tensors, make: Make, message: str) -> None:
    checkpoint(tmp_path / "m", described("pack-quantized", INT4), tensors, make)
    with pytest.raises(ModelError, match=r"m: tensor model\.layers\.0\.\S+" + message):
        loaded_layer(tmp_path / "m")


@pytest.mark.parametrize(
    ("dtype", "zeros"),
    [
        ("I8", np.zeros((1, 1), np.int8)),
        ("I32", np.array([[0x88888888]], np.uint32).view(np.int32)),
        ("F32", np.array([[-0.0]], np.float32)),
        ("F8_E4M3", np.array([[0x80]], np.uint8)),
    ],
)
def test_zero_points_of_symmetric_weights_may_say_so(
    tmp_path: Path, tensors: Tensors, dtype: str, zeros: np.ndarray
) -> None:
    make = lying("weight_zero_point", dtype, lambda r, c: np.tile(zeros, (-(-r // 8), c // 32)))
    expected = checkpoint(tmp_path / "m", described("pack-quantized", INT4), tensors, make)
    np.testing.assert_array_equal(dequantize(loaded_layer(tmp_path / "m").up), expected[UP].astype(np.float32))


@pytest.mark.parametrize("value", [0.0, np.nan, -1.0])
def test_a_number_that_nothing_reads_refuses_no_model(
    tmp_path: Path, tensors: Tensors, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = warnings_of(unused_scales, monkeypatch)
    make = lying("input_scale", "F32", lambda r, c: np.full(1, value, np.float32))
    expected = checkpoint(tmp_path / "m", described("pack-quantized", INT4), tensors, make)
    np.testing.assert_array_equal(dequantize(loaded_layer(tmp_path / "m").up), expected[UP].astype(np.float32))
    assert len([line for line in logged if "a tensor input_scale is 0 or no" in line]) == 1


def test_the_older_key_of_the_settings(tmp_path: Path, tensors: Tensors) -> None:
    settings = described("pack-quantized", INT4)
    del settings["quant_method"]
    expected = checkpoint(tmp_path / "m", {}, tensors, int4_layer, compression_config=settings)
    np.testing.assert_array_equal(dequantize(loaded_layer(tmp_path / "m").up), expected[UP].astype(np.float32))


def test_a_scale_of_the_tensor_that_makes_weights_infinite(tmp_path: Path, tensors: Tensors) -> None:
    def make(rows: int, columns: int) -> Layer:
        packed, values = float4(np.random.default_rng(1), rows, columns)
        parts: dict[str, Typed] = {
            "weight_packed": ("U8", packed),
            "weight_scale": ("F8_E4M3", np.full((rows, columns // 16), 0x38, np.uint8)),
            "weight_global_scale": ("F32", np.array([1e-40], np.float32)),
        }
        return parts, values

    settings = described("nvfp4-pack-quantized", args(4, "tensor_group", type="float", group_size=16))
    checkpoint(tmp_path / "m", settings, tensors, make)
    with pytest.raises(ModelError, match=r"weight_scale has scales too large, .* not finite numbers: 1\.0 at index 0"):
        loaded_layer(tmp_path / "m")

"""GPTQ checkpoints: each weight is (value - zero) * scale, of values that the test packs bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo_inference.checkpoints.quantized import quantized_reader
from octavo_inference.checkpoints.safetensors import read_checkpoint
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.groups import GroupedMatrix

from .conftest import Typed, linear_modules, write_quantized
from .packed_layers import gptq
from .quantized_modules import MODULE, check_matrix, named, read

Tensors = dict[str, np.ndarray]


class Quantized:
    """A layer of `packed_layers.gptq`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.tensors, self.weights = gptq(*args, **kwargs)

    def typed(self, module: str = MODULE) -> dict[str, Typed]:
        return named(self.tensors, module)


def described(bits: int = 4, group: int = 32, **changes: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": True, "desc_act": False} | changes


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_weights(tmp_path: Path, bits: int, group: int, symmetric: bool, act_order: bool) -> None:
    quantized = Quantized(96, 256, bits, group, symmetric=symmetric, act_order=act_order)
    settings = described(bits, group, sym=symmetric, desc_act=act_order)
    folder = write_quantized(tmp_path / "m", settings, quantized.typed())
    matrix = check_matrix(folder, quantized.weights)
    assert (matrix.order is not None) == (act_order and group != -1)
    assert matrix.grouping.kind == ("int8" if bits == 8 else "int4")
    assert matrix.grouping.minimum == (not symmetric)
    assert matrix.grouping.group == (256 if group == -1 else group)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_zero_points_of_version_2_are_stored_as_they_are(tmp_path: Path, bits: int) -> None:
    quantized = Quantized(64, 64, bits, 32, symmetric=False, v2=True)
    settings = described(bits, sym=False, checkpoint_format="gptq_v2")
    folder = write_quantized(tmp_path / "m", settings, quantized.typed())
    np.testing.assert_array_equal(read(folder, 64, 64).dequantize(), quantized.weights)


def test_a_zero_point_of_0_stored_minus_1_has_become_the_largest(tmp_path: Path) -> None:
    quantized = Quantized(64, 64, 4, 32, symmetric=False)
    quantized.tensors["qzeros"] = ("I32", np.full((2, 8), -1, np.int32))
    folder = write_quantized(tmp_path / "m", described(sym=False), quantized.typed())
    assert read(folder, 64, 64).dequantize().min() == 0


def test_groups_that_do_not_divide_the_columns(tmp_path: Path) -> None:
    for act_order in (False, True):
        quantized = Quantized(32, 160, 4, 128, act_order=act_order)
        folder = write_quantized(tmp_path / "m", described(4, 128, desc_act=act_order), quantized.typed())
        matrix = read(folder, 32, 160)
        assert matrix.grouping.group == 32
        np.testing.assert_array_equal(matrix.dequantize(), quantized.weights)


def test_columns_of_whole_groups(tmp_path: Path) -> None:
    quantized = Quantized(32, 128, 4, 32, symmetric=False)
    folder = write_quantized(tmp_path / "m", described(sym=False), quantized.typed())
    matrix = read(folder, 32, 128)
    np.testing.assert_array_equal(matrix.columns(32, 96).dequantize(), quantized.weights[:, 32:96])


def test_act_order_that_is_none(tmp_path: Path) -> None:
    quantized = Quantized(32, 128, 4, 32)
    folder = write_quantized(tmp_path / "m", described(desc_act=True), quantized.typed())
    assert read(folder, 32, 128).order is None
    del quantized.tensors["g_idx"]
    folder = write_quantized(tmp_path / "m", described(), quantized.typed())
    np.testing.assert_array_equal(read(folder, 32, 128).dequantize(), quantized.weights)


def test_rules_change_modules_and_the_first_counts(tmp_path: Path) -> None:
    dynamic = {
        r"+:.*\.0\.mlp\.up_proj": {"bits": 8, "group_size": 64},
        r".*\.mlp\..*": {"sym": False, "bits": 2},
        r"-:.*\.self_attn\..*": {},
    }
    schemes = {
        "model.layers.0.mlp.up_proj": Quantized(32, 128, 8, 64),
        "model.layers.0.mlp.down_proj": Quantized(32, 128, 2, 32, symmetric=False),
        "lm_head": Quantized(40, 128, 4, 32),
    }
    typed = {name: tensor for module, made in schemes.items() for name, tensor in made.typed(module).items()}
    folder = write_quantized(tmp_path / "m", described(lm_head=True, dynamic=dynamic), typed)
    for module, made in schemes.items():
        np.testing.assert_array_equal(read(folder, *made.weights.shape, module).dequantize(), made.weights)
    excluded = "model.layers.0.self_attn.q_proj"
    reader = quantized_reader(folder, read_checkpoint(folder), contents=True)
    assert reader is not None
    assert reader(excluded, 32, 128) is None
    folder = write_quantized(tmp_path / "m", described(dynamic=dynamic), schemes["lm_head"].typed(excluded))
    with pytest.raises(
        ModelError, match=rf"says that {excluded} is not quantized, the weights have {excluded}.qweight"
    ):
        read(folder, 32, 128, excluded)


def test_auto_round_packs_alike(tmp_path: Path) -> None:
    packings = {
        "auto_round:auto_gptq": False,
        "auto_round:gptq": False,
        "auto": False,
        "auto_round:gptqmodel": True,
        "auto_round": True,
    }
    for packing, v2 in packings.items():
        quantized = Quantized(64, 64, 4, 32, symmetric=False, v2=v2)
        other = Quantized(64, 64, 8, 64, v2=v2)
        settings = described(sym=False, quant_method="auto-round", packing_format=packing, data_type="int")
        settings["extra_config"] = {
            "model.layers.0.mlp.up_proj": {"bits": 8, "group_size": 64, "sym": True},
            r".*\.self_attn\..*": {"bits": 16, "data_type": "float"},
        }
        typed = quantized.typed() | other.typed("model.layers.0.mlp.up_proj")
        folder = write_quantized(tmp_path / "m", settings, typed)
        np.testing.assert_array_equal(read(folder, 64, 64).dequantize(), quantized.weights)
        values = read(folder, 64, 64, "model.layers.0.mlp.up_proj").dequantize()
        np.testing.assert_array_equal(values, other.weights)


@pytest.mark.parametrize("backend", [{}, {"backend": "auto"}, {"backend": "gptq:marlin"}])
def test_auto_round_without_a_packing_stores_zero_points_minus_1(tmp_path: Path, backend: dict[str, str]) -> None:
    quantized = Quantized(64, 64, 4, 32, symmetric=False)
    settings = described(sym=False, quant_method="auto-round") | backend
    folder = write_quantized(tmp_path / "m", settings, quantized.typed())
    np.testing.assert_array_equal(read(folder, 64, 64).dequantize(), quantized.weights)


def test_a_description_in_a_file_of_its_own(tmp_path: Path) -> None:
    quantized = Quantized(64, 64, 4, 32)
    folder = write_quantized(tmp_path / "m", {}, quantized.typed())
    settings = described()
    del settings["quant_method"]
    (folder / "quantize_config.json").write_text(json.dumps(settings))
    np.testing.assert_array_equal(read(folder, 64, 64).dequantize(), quantized.weights)
    (folder / "quantize_config.json").write_text(json.dumps(settings | {"bits": 5}))
    with pytest.raises(UnsupportedModelError, match=r"quantize_config\.json: quantization_config\.bits 5 is not"):
        read(folder, 64, 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 6}, r"config.json: quantization_config.bits 6 is not supported; supported are 2, 3, 4, 8"),
        ({"bits": None}, "quantization_config.bits is missing; supported are 2, 3, 4, 8"),
        ({"group_size": 0}, "group_size is 0, expected a number of columns, or -1 for all"),
        ({"group_size": "32"}, "group_size is '32', expected a number"),
        ({"sym": "yes"}, "sym is 'yes', expected true or false"),
        (
            {"checkpoint_format": "marlin"},
            "checkpoint_format 'marlin' is not supported; supported are 'gptq', 'gptq_v2'",
        ),
        ({"pack_dtype": "int16"}, "pack_dtype 'int16' is not supported"),
        ({"dynamic": {"(": {}}}, r"dynamic has '\(', not a regular expression"),
        ({"dynamic": {"+:x": 3}}, r"dynamic\['\+:x'\] is 3, expected an object"),
        ({"dynamic": {"+:x": {"bits": 7}}}, r"dynamic\['\+:x'\].bits 7 is not supported"),
        ({"dynamic": []}, r"dynamic is \[\], expected an object"),
        ({"modules_in_block_to_quantize": [[1]]}, "expected a list of names"),
        ({"bits": 8}, r"qweight has shape \[8, 64\], expected \[16, 64\]"),
        ({"group_size": 64}, r"scales has shape \[2, 64\], expected \[1, 64\]"),
        ({"quant_method": "quip"}, "quant_method 'quip' is not supported; supported are"),
    ],
)
def test_settings_that_lie(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_quantized(tmp_path / "m", described() | changes, Quantized(64, 64, 4, 32).typed())
    with pytest.raises(ModelError, match=message):
        read(folder, 64, 64, contents=False)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("scales", np.full((2, 64), np.nan, np.float16), "scales has scales that are not finite numbers"),
        ("scales", np.full((2, 64), np.inf, np.float16), "scales has scales that are not finite numbers"),
        ("qzeros", np.zeros((2, 8), np.int32), "qzeros has the zero point 1, expected 8 everywhere as .*sym is true"),
        ("g_idx", np.zeros(64, np.int32), "g_idx does not give each of its groups 32 columns"),
        ("g_idx", np.full(64, -1, np.int32), "g_idx does not give each"),
        ("g_idx", np.arange(64, dtype=np.int32) % 2, "g_idx has groups whose columns are apart, .*desc_act is false"),
    ],
)
def test_contents_that_lie(tmp_path: Path, name: str, value: np.ndarray, message: str) -> None:
    quantized = Quantized(64, 64, 4, 32)
    quantized.tensors[name] = (quantized.tensors[name][0], value)
    folder = write_quantized(tmp_path / "m", described(), quantized.typed())
    with pytest.raises(ModelError, match=rf"m: tensor {MODULE}\.{message}"):
        read(folder, 64, 64)
    read(folder, 64, 64, contents=False)


def test_tensors_that_are_missing_or_do_not_fill_words(tmp_path: Path) -> None:
    quantized = Quantized(64, 64, 4, 32)
    del quantized.tensors["g_idx"]
    folder = write_quantized(tmp_path / "m", described(desc_act=True), quantized.typed())
    with pytest.raises(ModelError, match=rf"tensor {MODULE}\.g_idx is missing, and .*desc_act is true"):
        read(folder, 64, 64)
    with pytest.raises(ModelError, match=rf"{MODULE} has 60 columns, 4 bits of which do not fill words"):
        read(folder, 64, 60)
    del quantized.tensors["qzeros"]
    folder = write_quantized(tmp_path / "m", described(), quantized.typed())
    with pytest.raises(ModelError, match=rf"tensor {MODULE}\.qzeros is missing"):
        read(folder, 64, 64)


def test_models_whose_layers_are_quantized(tmp_path: Path, tensors: Tensors) -> None:
    typed: dict[str, Typed] = {name: ("F32", values) for name, values in tensors.items()}
    made = {}
    for module in linear_modules(tensors)[:-1]:
        rows, columns = typed.pop(module + ".weight")[1].shape
        made[module] = Quantized(rows, columns, 4, 32, act_order=True)
        typed |= made[module].typed(module)
    folder = write_quantized(tmp_path / "m", described(desc_act=True), typed)
    model = load_model(str(folder))
    assert isinstance(model, LoadedModel)
    layer = model.weights.layers[0]
    assert isinstance(layer.k, GroupedMatrix)
    np.testing.assert_array_equal(layer.k.dequantize(), made["model.layers.0.self_attn.k_proj"].weights)
    assert not isinstance(layer.down, GroupedMatrix)

"""Experts of a layer in one tensor, as gpt-oss is published: MXFP4 blocks whose rows of gate and up alternate."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octavo_inference.common.errors import ModelError
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.weights import ExpertWeights, dequantize

from .conftest import HIDDEN, Typed, write_quantized
from .quantized_files import mxfp4_layer

EXPERTS, INNER = 3, 32
MOE = "model.layers.0.mlp."
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "intermediate_size": INNER,
    "sliding_window": 8,
}
METHOD = {"quant_method": "mxfp4"}
Tensors = dict[str, np.ndarray]


def stacked(parts: list[dict[str, tuple[str, np.ndarray]]], key: str) -> np.ndarray:
    return np.stack([part[key][1] for part in parts])


def gpt_oss(tensors: Tensors) -> tuple[dict[str, Typed], list[np.ndarray], list[np.ndarray]]:
    """Tensors with experts in MXFP4, and the weights of each: gate and up alternate, then down."""
    wide, both = zip(*(mxfp4_layer(2 * INNER, HIDDEN) for _ in range(EXPERTS)), strict=True)
    narrow, down = zip(*(mxfp4_layer(HIDDEN, INNER) for _ in range(EXPERTS)), strict=True)
    rng = np.random.default_rng(3)
    dense = {name: values for name, values in tensors.items() if ".mlp." not in name}
    floats = {
        **dense,
        "model.layers.0.self_attn.sinks": np.arange(2, dtype=np.float32),
        MOE + "router.weight": rng.standard_normal((EXPERTS, HIDDEN)).astype(np.float32),
        MOE + "router.bias": np.arange(EXPERTS, dtype=np.float32),
        MOE + "experts.gate_up_proj_bias": rng.standard_normal((EXPERTS, 2 * INNER)).astype(np.float32),
        MOE + "experts.down_proj_bias": rng.standard_normal((EXPERTS, HIDDEN)).astype(np.float32),
    }
    typed: dict[str, Typed] = {name: ("F32", values) for name, values in floats.items()}
    for name, parts in (("gate_up", list(wide)), ("down", list(narrow))):
        for kind in ("blocks", "scales"):
            typed[f"{MOE}experts.{name}_proj_{kind}"] = ("U8", stacked(parts, f"weight_{kind}"))
    return typed, list(both), list(down)


def loaded(folder: Path) -> ExpertWeights:
    model = load_model(str(folder))
    assert isinstance(model, LoadedModel)
    experts = model.weights.layers[0].experts
    assert experts is not None
    return experts


def test_mxfp4(tmp_path: Path, tensors: Tensors) -> None:
    given, both, down = gpt_oss(tensors)
    experts = loaded(write_quantized(tmp_path / "m", METHOD, given, **GPT_OSS))
    for number in range(EXPERTS):
        assert isinstance(experts.gate[number], GroupedMatrix)
        np.testing.assert_array_equal(dequantize(experts.gate[number]), both[number][0::2].astype(np.float32))
        np.testing.assert_array_equal(dequantize(experts.up[number]), both[number][1::2].astype(np.float32))
        np.testing.assert_array_equal(dequantize(experts.down[number]), down[number].astype(np.float32))
    biases = given[MOE + "experts.gate_up_proj_bias"][1]
    assert experts.gate_bias is not None
    assert experts.up_bias is not None
    np.testing.assert_array_equal(experts.gate_bias.data, biases[:, 0::2])
    np.testing.assert_array_equal(experts.up_bias.data, biases[:, 1::2])


def test_blocks_of_another_number_of_experts_are_refused(tmp_path: Path, tensors: Tensors) -> None:
    given, _, _ = gpt_oss(tensors)
    folder = write_quantized(tmp_path / "m", METHOD, given, **GPT_OSS)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_local_experts": 4}))
    with pytest.raises(ModelError, match=r"gate_up_proj_blocks has shape .*, expected"):
        load_model(str(folder))

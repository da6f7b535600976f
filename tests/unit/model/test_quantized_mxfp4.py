"""MXFP4 as gpt-oss is published: blocks and scales of linear layers and of experts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo_inference.checkpoints.quantized.fp4 import mxfp4_experts
from octavo_inference.checkpoints.quantized.source import Source
from octavo_inference.checkpoints.safetensors import read_checkpoint
from octavo_inference.common.errors import ModelError
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.weights import dequantize

from .conftest import Typed, loaded_layer, write_quantized
from .quantized_files import DOWN, Layer, Tensors, checkpoint, exponents, float4, mxfp4_layer

METHOD = {"quant_method": "mxfp4"}
EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"


def test_linear_layers(tmp_path: Path, tensors: Tensors) -> None:
    expected = checkpoint(tmp_path / "m", METHOD, tensors, mxfp4_layer)
    matrix = loaded_layer(tmp_path / "m").down
    assert isinstance(matrix, GroupedMatrix)
    assert (matrix.grouping.kind, matrix.grouping.group) == ("code4", 32)
    np.testing.assert_array_equal(dequantize(matrix), expected[DOWN].astype(np.float32))
    np.testing.assert_array_equal(dequantize(matrix.rows(5, 30)), dequantize(matrix)[5:30])
    np.testing.assert_array_equal(dequantize(matrix.columns(32, 64)), dequantize(matrix)[:, 32:64])


def experts(folder: Path, typed: dict[str, Typed]) -> Source:
    write_quantized(folder, METHOD, {f"{EXPERTS}_{name}": tensor for name, tensor in typed.items()})
    return Source(folder, read_checkpoint(folder), METHOD, True, folder / "config.json")


def test_experts(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    stored = [(*float4(rng, 24, 64), *exponents(rng, 24, 64)) for _ in range(3)]
    blocks = np.stack([packed.reshape(24, 2, 16) for packed, *_ in stored])
    scales = np.stack([bits for _, _, bits, _ in stored])
    source = experts(tmp_path / "m", {"blocks": ("U8", blocks), "scales": ("U8", scales)})
    found = mxfp4_experts(source, EXPERTS, 3, (24, 64))
    for matrix, (_, values, _, scale) in zip(found, stored, strict=True):
        np.testing.assert_array_equal(matrix.dequantize(), (values * scale).astype(np.float32))
        np.testing.assert_array_equal(matrix.rows(3, 9).dequantize(), matrix.dequantize()[3:9])
    with pytest.raises(ModelError, match=r"gate_up_proj_blocks has shape \[3, 24, 2, 16\], expected \[4, 24, 2, 16\]"):
        mxfp4_experts(source, EXPERTS, 4, (24, 64))
    with pytest.raises(ModelError, match=r"gate_up_proj_blocks is mxfp4 of 40 columns, expected a multiple of 32"):
        mxfp4_experts(source, EXPERTS, 3, (24, 40))


def test_an_exponent_that_is_no_number_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    def make(rows: int, columns: int) -> Layer:
        parts, weights = mxfp4_layer(rows, columns)
        bits = parts["weight_scales"][1].copy()
        bits[1, 1] = 255
        return parts | {"weight_scales": ("U8", bits)}, weights

    checkpoint(tmp_path / "m", METHOD, tensors, make)
    with pytest.raises(
        ModelError, match=r"m: tensor model\S+weight_scales has scales that are not finite.* at index 3"
    ):
        loaded_layer(tmp_path / "m")

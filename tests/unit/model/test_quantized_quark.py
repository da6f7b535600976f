"""Quark checkpoints: float8, MXFP4 and int8 by the types of their tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo_inference.common.errors import ModelError
from octavo_inference.models.weights import dequantize

from .conftest import loaded_layer
from .quantized_files import DOWN, Layer, Make, Tensors, checkpoint, float8_layer, int8_layer, mxfp4_layer

METHOD = {"quant_method": "quark", "exclude": ["lm_head"]}


def float4_layer(rows: int, columns: int) -> Layer:
    parts, weights = mxfp4_layer(rows, columns)
    packed = parts["weight_blocks"][1].reshape(rows, columns // 2)
    return {"weight": ("U8", packed), "weight_scale": parts["weight_scales"]}, weights


@pytest.mark.parametrize("make", [float8_layer, float4_layer, int8_layer])
def test_weights_are_those_of_the_definition(tmp_path: Path, tensors: Tensors, make: Make) -> None:
    expected = checkpoint(tmp_path / "m", METHOD, tensors, make)
    matrix = loaded_layer(tmp_path / "m").down
    np.testing.assert_allclose(dequantize(matrix), expected[DOWN], rtol=3e-7)
    np.testing.assert_array_equal(dequantize(matrix.rows(5, 30)), dequantize(matrix)[5:30])


def test_packed_integers_are_refused(tmp_path: Path, tensors: Tensors) -> None:
    def make(rows: int, columns: int) -> Layer:
        return {"weight": ("I32", np.zeros((rows, columns // 8), np.int32))}, np.zeros((rows, columns))

    checkpoint(tmp_path / "m", METHOD, tensors, make)
    with pytest.raises(
        ModelError, match=r"q_proj.weight has dtype I32; supported of quark are float8 \(F8_E4M3\), MXFP4"
    ):
        loaded_layer(tmp_path / "m")

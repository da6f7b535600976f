"""MXFP4 as gpt-oss is published: blocks and scales of linear layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo_inference.common.errors import ModelError
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.weights import dequantize

from .conftest import loaded_layer
from .quantized_files import DOWN, Layer, Tensors, checkpoint, mxfp4_layer

METHOD = {"quant_method": "mxfp4"}


def test_linear_layers(tmp_path: Path, tensors: Tensors) -> None:
    expected = checkpoint(tmp_path / "m", METHOD, tensors, mxfp4_layer)
    matrix = loaded_layer(tmp_path / "m").down
    assert isinstance(matrix, GroupedMatrix)
    assert (matrix.grouping.kind, matrix.grouping.group) == ("code4", 32)
    np.testing.assert_array_equal(dequantize(matrix), expected[DOWN].astype(np.float32))
    np.testing.assert_array_equal(dequantize(matrix.rows(5, 30)), dequantize(matrix)[5:30])
    np.testing.assert_array_equal(dequantize(matrix.columns(32, 64)), dequantize(matrix)[:, 32:64])


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


def test_an_exponent_whose_weights_are_infinite_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    def make(rows: int, columns: int) -> Layer:
        parts, weights = mxfp4_layer(rows, columns)
        bits = parts["weight_scales"][1].copy()
        bits[1, 1] = 254
        return parts | {"weight_scales": ("U8", bits)}, weights

    checkpoint(tmp_path / "m", METHOD, tensors, make)
    with pytest.raises(ModelError, match=r"weight_scales has scales too large, .* not finite numbers: 1\.7.* index 3"):
        loaded_layer(tmp_path / "m")

"""Columns in another order: the same weights, in their format where runs of columns are whole blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo_inference.checkpoints.gguf import GgufFile, GgufTensor
from octavo_inference.checkpoints.gguf_matrix import stored_matrix
from octavo_inference.models.columns import moved_columns
from octavo_inference.models.ggml_groups import GROUPED
from octavo_inference.models.rows import stacked_order, tiled_heads
from octavo_inference.models.weights import Matrix, Tensor, dequantize

from .gguf_blocks import IDS, random_blocks

BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
ORDER, ROWS = np.array([2, 0, 3, 1]), 3


def matrix(name: str, width: int) -> Matrix:
    """Four runs of columns."""
    data = random_blocks(np.random.default_rng(0), name, ROWS, 4 * width)
    source = GgufTensor(Path("m.gguf"), "blk.0.ssm_out.weight", IDS[name], (ROWS, 4 * width), data)
    return stored_matrix(GgufFile(source.path, {}, {}, (), ()), source)


def moved(values: np.ndarray, width: int) -> np.ndarray:
    return np.concatenate([values[:, run * width : (run + 1) * width] for run in ORDER], axis=1)


@pytest.mark.parametrize("name", [*BLOCKS, *GROUPED])
@pytest.mark.parametrize("width", [128, 256])
def test_weights_are_the_same_in_the_new_order(name: str, width: int) -> None:
    stored = matrix(name, width)
    result = moved_columns(stored, ORDER, width)
    np.testing.assert_array_equal(dequantize(result), moved(dequantize(stored), width))
    np.testing.assert_array_equal(dequantize(result.rows(1, 3)), moved(dequantize(stored), width)[1:])


@pytest.mark.parametrize(
    ("name", "width", "kept"), [("Q4_0", 128, "q4_0"), ("Q4_K", 256, "q4_k"), ("Q4_K", 128, "Q4_K")]
)
def test_runs_of_whole_blocks_keep_the_format(name: str, width: int, kept: str) -> None:
    stored = matrix(name, width)
    assert moved_columns(stored, ORDER, width).format == kept
    header_alone = moved_columns(stored, ORDER, width, contents=False)
    assert (header_alone.format, header_alone.shape) == (kept, stored.shape)


def test_floats_in_runs_of_any_width() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 12)
    result = moved_columns(Tensor("f32", (2, 12), values), ORDER, 3)
    np.testing.assert_array_equal(dequantize(result), moved(values, 3))


def test_heads_that_are_tiled_stand_with_their_group_again() -> None:
    # Heads 0, 1, 2 of group 0 are stored at 0, 2, 4.
    assert tiled_heads(2, 6).tolist() == [0, 2, 4, 1, 3, 5]


def test_rows_of_queries_keys_and_values_in_one_tensor() -> None:
    assert stacked_order(None, None, (2, 2, 2)) is None
    order = stacked_order(np.array([1, 0]), None, (2, 1, 2))
    assert order is not None
    assert order.tolist() == [1, 0, 2, 3, 4]

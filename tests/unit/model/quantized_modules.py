"""What tests of packed checkpoints share: one module, written and read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octavo_inference.checkpoints.quantized import quantized_reader
from octavo_inference.checkpoints.safetensors import read_checkpoint
from octavo_inference.models.groups import GroupedMatrix

from .conftest import Typed

MODULE = "model.layers.0.mlp.down_proj"


def named(parts: dict[str, Typed], module: str = MODULE) -> dict[str, Typed]:
    """A module's tensors by their whole names."""
    return {f"{module}.{name}": part for name, part in parts.items()}


def read(folder: Path, rows: int, columns: int, module: str = MODULE, *, contents: bool = True) -> GroupedMatrix:
    """A quantized module of a checkpoint."""
    reader = quantized_reader(folder, read_checkpoint(folder), contents=contents)
    assert reader is not None
    matrix = reader(module, rows, columns)
    assert matrix is not None
    return matrix


def check_matrix(folder: Path, expected: np.ndarray, module: str = MODULE) -> GroupedMatrix:
    """Read a module: whole, some rows, and as known from headers alone."""
    matrix = read(folder, *expected.shape, module)
    np.testing.assert_array_equal(matrix.dequantize(), expected)
    rows = len(expected)
    for start, end in ((0, 1), (5, rows - 3), (rows - 1, rows)):
        np.testing.assert_array_equal(matrix.rows(start, end).dequantize(), expected[start:end])
    inspected = read(folder, *expected.shape, module, contents=False)
    assert (inspected.grouping.kind, inspected.grouping.group) == (matrix.grouping.kind, matrix.grouping.group)
    assert inspected.grouping.minimum == matrix.grouping.minimum
    assert [part.nbytes for part in inspected.stored] == [part.nbytes for part in matrix.stored]
    assert matrix.stored
    assert (inspected.order is None) == (matrix.order is None)
    return matrix

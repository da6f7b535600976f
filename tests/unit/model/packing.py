"""What tests of packed checkpoints share: a bit packer by definition, and a reader of one module."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octavo_inference.checkpoints.quantized import quantized_reader
from octavo_inference.checkpoints.safetensors import read_checkpoint
from octavo_inference.models.groups import GroupedMatrix

MODULE = "model.layers.0.mlp.down_proj"


def pack(values: np.ndarray, bits: int) -> np.ndarray:
    """Values along the first axis as a stream of bits, the first in the lowest, in words of 32."""
    words = np.zeros((values.shape[0] * bits // 32, values.shape[1]), np.uint32)
    for i, row in enumerate(values):
        for bit in range(bits):
            place = i * bits + bit
            words[place // 32] |= (row.astype(np.uint32) >> np.uint32(bit) & np.uint32(1)) << np.uint32(place % 32)
    return words.view(np.int32)


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
    assert inspected.nbytes == matrix.nbytes > 0
    assert (inspected.order is None) == (matrix.order is None)
    return matrix

"""Matrices of a GGUF file: blocks that kernels read as stored, and formats that are read in pieces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.gguf import TYPES, GgufFile, GgufTensor
from octavo_inference.common.errors import ModelError
from octavo_inference.models.ggml_groups import GROUPED
from octavo_inference.models.groups import GroupedMatrix, Groups
from octavo_inference.models.weights import Format, Matrix, Tensor, dequantize

# Formats that kernels read as stored.
_STORED: dict[str, Format] = {
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "Q4_0": "q4_0",
    "Q4_1": "q4_1",
    "Q5_0": "q5_0",
    "Q5_1": "q5_1",
    "Q8_0": "q8_0",
    "Q4_K": "q4_k",
    "Q5_K": "q5_k",
    "Q6_K": "q6_k",
}
_NUMBERS: dict[Format, type[np.generic]] = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}
# Weights that are decoded at once: few enough for a core's cache.
_PIECE = 1 << 17


def stored_matrix(file: GgufFile, tensor: GgufTensor, order: NDArray[np.int64] | None = None) -> Matrix:
    """A tensor as [rows, columns], the matrices of experts below each other.

    Row i is that at order[i]. Raises `ModelError` for a type that holds no weights.
    """
    factor = _factor(file, tensor.name)
    if tensor.type_name in GROUPED:
        return grouped_matrix(tensor, order, 1.0 if factor is None else factor)
    if tensor.type_name not in _STORED:
        raise ModelError(f"{tensor.path}: tensor {tensor.name} has the type {tensor.type_name}, which holds no weights")
    if factor is not None:
        raise ModelError(f"{tensor.path}: tensor {tensor.name} in {tensor.type_name} has a scale tensor beside it")
    data = tensor.data if order is None else tensor.data[order]
    kept = _STORED[tensor.type_name]
    return Tensor(kept, (len(data), tensor.shape[-1]), data.view(_NUMBERS.get(kept, np.uint8)))


def elements(file: GgufFile, tensor: GgufTensor) -> NDArray[np.float32]:
    """All elements of a tensor in a row, such as those of a norm."""
    return dequantize(stored_matrix(file, tensor)).reshape(-1)


def grouped_matrix(tensor: GgufTensor, order: NDArray[np.int64] | None = None, factor: float = 1.0) -> GroupedMatrix:
    """A matrix of all rows of a tensor of `GROUPED`: those of all experts below each other.

    Row i is that at order[i]. All scales are multiplied by `factor`. Reading raises `ModelError` for scales that are
    not finite.
    """
    grouped = GROUPED[tensor.type_name]
    _, width, size = TYPES[tensor.type_id]
    data, columns = tensor.data, tensor.shape[-1]
    groups, step = width // grouped.grouping.group, _PIECE // width

    def read(start: int, end: int) -> Groups:
        rows = data[start:end] if order is None else data[order[start:end]]
        blocks = rows.reshape(-1, size)
        values = np.empty((len(blocks), width), np.uint8)
        scale = np.empty((len(blocks), groups), np.float32)
        minimum = np.empty((len(blocks), groups), np.float32) if grouped.grouping.minimum else None
        with np.errstate(invalid="ignore"):  # infinite scales, refused below
            for at in range(0, len(blocks), step):
                piece = slice(at, at + step)
                values[piece], scale[piece], offset = grouped.decode(blocks[piece])
                if minimum is not None and offset is not None:
                    minimum[piece] = offset
            scale *= np.float32(factor)
            if minimum is not None:
                minimum *= np.float32(factor)
        if not np.isfinite(scale).all() or (minimum is not None and not np.isfinite(minimum).all()):
            raise ModelError(f"{tensor.path}: tensor {tensor.name} has scales that are not finite numbers")
        shaped = None if minimum is None else minimum.reshape(end - start, -1)
        return Groups(values.reshape(end - start, columns), scale.reshape(end - start, -1), shaped)

    return GroupedMatrix(tensor.type_name, (len(data), columns), grouped.grouping, read, (data,))


def _factor(file: GgufFile, name: str) -> float | None:
    """The number by which a matrix is multiplied: NVFP4 files store its second scale as `blk.0.attn_q.scale`."""
    tensor = file.tensors.get(name.removesuffix("weight") + "scale") if name.endswith(".weight") else None
    if tensor is None:
        return None
    if tensor.shape != (1,):
        raise ModelError(f"{tensor.path}: tensor {tensor.name} has shape {tensor.shape}, expected one number")
    (value,) = elements(file, tensor).tolist()
    if not np.isfinite(value):
        raise ModelError(f"{tensor.path}: tensor {tensor.name} is {value}, expected a finite number")
    return float(value)

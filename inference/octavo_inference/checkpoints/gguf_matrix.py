"""GGUF tensors of grouped formats as matrices that are read in pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.gguf import TYPES, GgufTensor
from octavo_inference.common.errors import ModelError
from octavo_inference.models.ggml_groups import GROUPED
from octavo_inference.models.groups import GroupedMatrix, Groups

# Weights that are decoded at once: few enough for a core's cache.
_PIECE = 1 << 17


def grouped_matrix(
    path: Path, tensor: GgufTensor, order: NDArray[np.int64] | None = None, factor: float = 1.0
) -> GroupedMatrix:
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
            raise ModelError(f"{path}: tensor {tensor.name} has scales that are not finite numbers")
        shaped = None if minimum is None else minimum.reshape(end - start, -1)
        return Groups(values.reshape(end - start, columns), scale.reshape(end - start, -1), shaped)

    return GroupedMatrix(tensor.type_name, (len(data), columns), grouped.grouping, read, (data,))

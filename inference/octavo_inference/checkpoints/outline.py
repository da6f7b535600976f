"""Formats and sizes of a model's weights, from the headers of its files: no weight is read."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from octavo_inference.checkpoints.from_gguf import weights_from_gguf
from octavo_inference.checkpoints.from_hf import weights_from_hf
from octavo_inference.checkpoints.gguf import read_gguf
from octavo_inference.checkpoints.safetensors import read_checkpoint
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.weights import Matrix, Weights, layer_matrices

_FLOATS = frozenset({"f32", "bf16", "f16"})
_GROUPS_NAMED = frozenset({"int4", "int8"})


@dataclass(frozen=True, slots=True)
class Outline:
    """`weights` cannot be read. `parameters`: elements of all tensors; `nbytes`: bytes of the files."""

    weights: Weights
    parameters: int
    nbytes: int


def read_outline(source: Path, config: ModelConfig) -> Outline:
    """The outline of a .gguf file or a safetensors folder. Raises `ModelError` for damaged headers."""
    if source.is_file():
        file = read_gguf(source)
        weights = weights_from_gguf(file, config, contents=False)
        parameters = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
        return Outline(weights, parameters, sum(map(len, file.buffers)))
    checkpoint = read_checkpoint(source)
    weights = weights_from_hf(source, checkpoint, config, contents=False)
    tensors = {id(tensor): tensor for tensor in weights.tensors()}  # a tied head is the embedding
    parameters = sum(math.prod(tensor.shape) for tensor in tensors.values())
    return Outline(weights, parameters, sum(map(len, checkpoint.buffers)))


def format_name(weights: Weights) -> str:
    """The formats of the linear layers, those of most elements first: `Q4_K, Q6_K`, `gptq int4 g128`, `bf16`."""
    found = Counter[str]()
    for layer in weights.layers:
        for matrix in layer_matrices(layer):
            found[_name(matrix)] += math.prod(matrix.shape)
    return ", ".join(name for name, _ in found.most_common())


def _name(matrix: Matrix) -> str:
    if not isinstance(matrix, GroupedMatrix):
        # As GGUF spells them; floats as libraries do.
        return matrix.format if matrix.format in _FLOATS else matrix.format.upper()
    grouping = matrix.grouping
    if matrix.format.isupper() or grouping.kind not in _GROUPS_NAMED:
        return matrix.format
    kind = "" if grouping.kind in matrix.format else f" {grouping.kind}"
    return f"{matrix.format}{kind}" + (f" g{grouping.group}" if grouping.group < matrix.shape[1] else "")

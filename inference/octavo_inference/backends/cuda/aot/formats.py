"""Formats of published checkpoints whose kernels are compiled ahead, and weights in them without numbers.

Checkpoints of one row differ in nothing that kernels depend on: symmetric GPTQ and compressed-tensors, for example.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo_inference.backends.cuda.packing import E2M1
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.groups import GroupedMatrix, Grouping, Groups, common_group
from octavo_inference.models.weights import LayerWeights, Matrix, Tensor, Weights, experts_of, layer_of

# Any sixteen numbers: kernels read them from memory.
_TABLE = tuple(float(level) for level in range(16))
_FORMATS: dict[str, Callable[[int], Grouping]] = {
    "int4-128": lambda columns: Grouping("int4", common_group(columns, 128)),
    "int4-128-minimum": lambda columns: Grouping("int4", common_group(columns, 128), minimum=True),
    "int4-64": lambda columns: Grouping("int4", common_group(columns, 64)),
    "int4-64-minimum": lambda columns: Grouping("int4", common_group(columns, 64), minimum=True),
    "int4-32": lambda columns: Grouping("int4", common_group(columns, 32)),
    "int8-128": lambda columns: Grouping("int8", common_group(columns, 128)),
    "int8-64-minimum": lambda columns: Grouping("int8", common_group(columns, 64), minimum=True),
    "int8-32-minimum": lambda columns: Grouping("int8", common_group(columns, 32), minimum=True),
    "nf4": lambda columns: Grouping("code4", common_group(columns, 64), levels=_TABLE),
    "mxfp4": lambda columns: Grouping("code4", common_group(columns, 32), levels=E2M1),
    "nvfp4": lambda columns: Grouping("code4", common_group(columns, 16), levels=E2M1),
    "fp8-rows": lambda columns: Grouping("fp8", columns),
    "fp8-blocks": lambda columns: Grouping("fp8", common_group(columns, 128)),
    "mxfp8": lambda columns: Grouping("fp8", common_group(columns, 32)),
}
FORMATS = tuple(_FORMATS)
"""AWQ and asymmetric GPTQ are int4-128-minimum, symmetric GPTQ int4-128, HQQ int4-64-minimum.

compressed-tensors has int4-32 and int4-128, and HQQ of 8 bits int8-64-minimum."""


def zeros(config: ModelConfig, format_: str | None = None) -> Weights:
    """Zero weights of a model, matrices in bfloat16, those of layers in one of `FORMATS` if given.

    They take no memory until they are copied.
    """

    def dense(rows: int, columns: int) -> Tensor:
        return Tensor("bf16", (rows, columns), np.zeros((rows, columns), np.uint16))

    def matrix(rows: int, columns: int) -> Matrix:
        return dense(rows, columns) if format_ is None else _grouped(_FORMATS[format_](columns), rows, columns)

    def norm(size: int) -> Tensor:
        return Tensor("f32", (size,), np.zeros(size, np.float32))

    def layer(number: int) -> LayerWeights:
        fed = experts_of(config, matrix, dense) if config.part(number).feed_forward == "experts" else None
        return layer_of(config, matrix, norm, fed, number)

    embedding = dense(config.vocab, config.hidden)
    return Weights(embedding, tuple(map(layer, range(config.layers))), norm(config.hidden), embedding)


def _grouped(grouping: Grouping, rows: int, columns: int) -> GroupedMatrix:
    def read(start: int, end: int) -> Groups:
        shape = (end - start, columns // grouping.group)
        minimum = np.zeros(shape, np.float32) if grouping.minimum else None
        return Groups(np.zeros((end - start, columns), np.uint8), np.ones(shape, np.float32), minimum)

    return GroupedMatrix("zeros", (rows, columns), grouping, read)

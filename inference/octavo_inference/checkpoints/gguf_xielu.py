"""The activation of Apertus in GGUF files: its factors are metadata, one of each for a layer or for all."""

from __future__ import annotations

import numpy as np

from octavo_inference.checkpoints.gguf import GgufFile
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.weights import Tensor

_BETA = 0.5


def xielu(file: GgufFile, layer: int, layers: int) -> Tensor:
    """The factors of a layer's xIELU [2], of which files have logarithms of exp(factor) - 1.

    Raises `ModelError` for keys that are missing or too short, `UnsupportedModelError` for another beta than 0.5.
    """
    positive, negative, beta = (
        _number(file, f"xielu.{name}", layer, layers) for name in ("alpha_p", "alpha_n", "beta")
    )
    if beta != _BETA:
        raise UnsupportedModelError(f"{file.path}: xielu.beta of layer {layer} is {beta}: only {_BETA} is supported")
    factors = np.logaddexp(0, np.array([positive, negative], np.float32)) + np.array([0, _BETA], np.float32)
    return Tensor("f32", (2,), factors.astype(np.float32))


def _number(file: GgufFile, key: str, layer: int, layers: int) -> float:
    value = file.metadata.get(key)
    if isinstance(value, memoryview):
        if len(value) < layers:
            raise ModelError(f"{file.path}: {key} has {len(value)} entries for {layers} layers")
        value = value[layer]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"{file.path}: {key} is {value!r}, expected a number or one for each layer")
    return float(value)

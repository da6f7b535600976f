"""Refuses a quantization that would change nothing."""

from __future__ import annotations

from octavo_inference.common.errors import SettingsError
from octavo_inference.config.engine import Quantization
from octavo_inference.models.weights import Weights, layer_matrices
from octavo_protocol.model import no_effect


def require_floats(weights: Weights, quantization: Quantization) -> None:
    """Raise SettingsError if all weights are quantized already."""
    if quantization != "auto" and not has_floats(weights):
        raise SettingsError(no_effect(quantization), "quantization")


def has_floats(weights: Weights) -> bool:
    """Return True if a linear layer is not quantized."""
    return any(matrix.format in {"f32", "bf16", "f16"} for layer in weights.layers for matrix in layer_matrices(layer))

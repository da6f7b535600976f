"""AWQ: scales input channels before rounding, so that the channels with large inputs are rounded more finely.

Lin et al. 2023, https://arxiv.org/abs/2306.00978. A matrix's columns are multiplied by the scales, and what produces
the inputs is divided by them: a norm's weights, or the rows of `up`. The layer computes the same function as before.
The scales are powers of each channel's mean input, with the exponent of the least error of the outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from octavo_inference.models.config import ModelConfig
from octavo_inference.tools.quantize.decoder import Floats, Layer
from octavo_inference.tools.quantize.grid import Grid, round_to_nearest
from octavo_inference.tools.quantize.stages import DOWN, GATE_UP, OUTPUT, QKV, LayerStage, stacked, walk

# What produces the inputs of a stage.
_SOURCES = {"qkv": ("input_norm",), "o": ("v", "v_bias"), "gate_up": ("post_norm",), "down": ("up", "up_bias")}
_STEPS = 20
_SAMPLES = 512
_WINDOWS = 8


@dataclass(frozen=True, slots=True)
class StageInputs:
    """Inputs of a stage: the mean `magnitude` of each channel, and evenly spread `samples` [tokens, channels]."""

    magnitude: Floats
    samples: Floats


def scaled_layer(config: ModelConfig, number: int, layer: Layer, windows: Floats, grids: Mapping[str, Grid]) -> Layer:
    """The same layer with scaled channels, for the grids of its stages by name.

    With grouped queries `o` is left as it is: one row of v then produces the inputs of several channels.
    """
    found: dict[str, StageInputs] = {}
    some = windows[:: -(-len(windows) // _WINDOWS)]

    def collect(stage: LayerStage, inputs: Iterator[Floats]) -> None:
        found[stage.name] = _collect(inputs, max(1, _SAMPLES // len(some)))

    walk(config, number, layer, some, collect)
    result = dict(layer)
    for stage in (QKV, *((OUTPUT,) if config.heads == config.kv_heads else ()), GATE_UP, DOWN):
        if stage.name in grids:
            scale = search(stacked(layer, stage), found[stage.name], grids[stage.name])
            _fold(result, stage, scale)
    return result


def _collect(inputs: Iterator[Floats], each: int) -> StageInputs:
    total, count, samples = np.float32(0), 0, []
    for x in inputs:
        total = total + np.abs(x).sum(axis=0)
        count += len(x)
        samples.append(x[np.linspace(0, len(x) - 1, min(each, len(x)), dtype=np.int64)])
    return StageInputs((np.asarray(total) / count).astype(np.float32), np.concatenate(samples))


def search(weights: Floats, inputs: StageInputs, grid: Grid) -> Floats:
    """Scales of the input channels [columns] for a matrix [rows, columns]. All 1 if no others are better."""
    magnitude = np.maximum(inputs.magnitude, np.float32(1e-4) * inputs.magnitude.max(initial=1e-4))
    best: Floats = np.ones_like(magnitude)
    least = np.inf
    for step in range(_STEPS):
        scale = magnitude ** np.float32(step / _STEPS)
        scale = np.ascontiguousarray(scale / np.sqrt(scale.max() * scale.min()), np.float32)
        error = round_to_nearest(weights * scale, grid).values() / scale - weights
        loss = float(np.square(inputs.samples @ error.T).sum(dtype=np.float64))
        if loss < least:
            best, least = scale, loss
    return best


def _fold(layer: dict[str, Floats], stage: LayerStage, scale: Floats) -> None:
    """Multiply the columns of a stage's matrices by `scale`, and divide what produces their inputs."""
    for name in stage.matrices:
        layer[name] = layer[name] * scale
    for name in _SOURCES[stage.name]:
        if name in layer:
            shape = (-1, *[1] * (layer[name].ndim - 1))
            layer[name] = layer[name] / scale.reshape(shape)

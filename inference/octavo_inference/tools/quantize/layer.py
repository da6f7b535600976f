"""Quantizes one layer: stage by stage, each for the inputs that the stages before it produce once rounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from octavo_inference.models.config import ModelConfig
from octavo_inference.tools.quantize.awq import scaled_layer
from octavo_inference.tools.quantize.decoder import Floats, Layer
from octavo_inference.tools.quantize.gptq import gptq
from octavo_inference.tools.quantize.grid import Grid, Rounded, round_to_nearest
from octavo_inference.tools.quantize.half import half_values
from octavo_inference.tools.quantize.stages import STAGES, LayerStage, stacked, walk

Method = Literal["rtn", "gptq", "awq"]
Grids = Mapping[str, Grid]


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    """`values`: what an engine computes with. `rounded`: its quantized matrices; the others are kept in 16 bits."""

    values: Layer
    rounded: dict[str, Rounded]


def quantize_layer(
    config: ModelConfig,
    number: int,
    layer: Layer,
    windows: Floats,
    grids: Grids,
    method: Method,
    *,
    by_activation: bool = True,
) -> tuple[QuantizedLayer, Floats]:
    """Quantize the stages that have a grid. Returns the layer, and the hidden states after it.

    `windows` [windows, tokens, hidden] are the calibration's hidden states; `rtn` needs none.
    """
    if method == "awq":
        layer = scaled_layer(config, number, layer, windows, grids)
    values = dict(layer)
    rounded: dict[str, Rounded] = {}

    def replace(stage: LayerStage, inputs: Iterator[Floats]) -> None:
        grid = grids.get(stage.name)
        if grid is None:
            values.update({name: half_values(values[name]) for name in stage.matrices})
            return
        weights = stacked(values, stage)
        if method == "gptq":
            found = gptq(weights, _second_moments(inputs), grid, by_activation=by_activation)
        elif method == "awq":
            found = round_to_nearest(weights, grid, _mean_squares(inputs))
        else:
            found = round_to_nearest(weights, grid)
        for name, part in zip(stage.matrices, _split(found, [len(values[n]) for n in stage.matrices]), strict=True):
            rounded[name], values[name] = part, part.values()

    if method == "rtn":
        for stage in STAGES:
            replace(stage, iter(()))
        return QuantizedLayer(values, rounded), windows
    after = walk(config, number, values, windows, replace)
    return QuantizedLayer(values, rounded), after


def _second_moments(inputs: Iterator[Floats]) -> Floats:
    first = next(inputs)
    total, count = first.T @ first, len(first)
    for x in inputs:
        total += x.T @ x
        count += len(x)
    result: Floats = total / np.float32(count)
    return result


def _mean_squares(inputs: Iterator[Floats]) -> Floats:
    means = [np.square(x).mean(axis=0) for x in inputs]
    result: Floats = np.mean(means, axis=0, dtype=np.float32)
    return result


def _split(rounded: Rounded, sizes: list[int]) -> list[Rounded]:
    ends = np.cumsum(sizes)[:-1]
    parts = zip(
        np.split(rounded.codes, ends), np.split(rounded.scales, ends), np.split(rounded.zeros, ends), strict=True
    )
    return [Rounded(rounded.grid, *part) for part in parts]

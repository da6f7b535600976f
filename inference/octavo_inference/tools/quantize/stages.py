"""The four stages of a layer: matrices with the same input, which engines store and multiply together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from octavo_inference.models.config import ModelConfig
from octavo_inference.tools.quantize import decoder
from octavo_inference.tools.quantize.decoder import Floats, Layer


@dataclass(frozen=True, slots=True)
class LayerStage:
    """`matrices` are fields of `LayerWeights`."""

    name: str
    matrices: tuple[str, ...]


QKV = LayerStage("qkv", ("q", "k", "v"))
OUTPUT = LayerStage("o", ("o",))
GATE_UP = LayerStage("gate_up", ("gate", "up"))
DOWN = LayerStage("down", ("down",))
STAGES = (QKV, OUTPUT, GATE_UP, DOWN)


def walk(
    config: ModelConfig,
    number: int,
    layer: Layer,
    windows: Floats,
    then: Callable[[LayerStage, Iterator[Floats]], None],
) -> Floats:
    """Run a layer stage by stage over windows [windows, tokens, hidden]; returns the hidden states after it.

    `then(stage, inputs)` is called before a stage is computed, with the inputs of its matrices, window by window. It
    may replace matrices of `layer`, so that later stages see what an earlier one became.
    """
    result = windows.copy()
    then(QKV, (decoder.attention_input(config, layer, hidden) for hidden in result))
    mixed = [decoder.attend(config, number, layer, decoder.attention_input(config, layer, hidden)) for hidden in result]
    then(OUTPUT, iter(mixed))
    for at, one in enumerate(mixed):
        result[at] = decoder.after_attention(config, layer, result[at], one)
    then(GATE_UP, (decoder.mlp_input(config, layer, hidden) for hidden in result))
    gated = [decoder.gate(config, layer, decoder.mlp_input(config, layer, hidden)) for hidden in result]
    then(DOWN, iter(gated))
    for at, one in enumerate(gated):
        result[at] = decoder.after_mlp(config, layer, result[at], one)
    return result


def stacked(layer: Layer, stage: LayerStage) -> Floats:
    """The stage's matrices above each other, [rows, columns]."""
    return np.concatenate([layer[name] for name in stage.matrices])

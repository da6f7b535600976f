"""A stand-in for a larger model of a small one's family: its answers are like those of the small one, but cost more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from octavo_inference.model_loader import LoadedModel
from octavo_inference.models.weights import LayerWeights, Tensor

_NOISE = 0.02
"""Standard deviation of the weights with which an added layer changes the hidden state."""


def deeper(model: LoadedModel, times: int, noise: float = _NOISE) -> LoadedModel:
    """The model with `times` as many layers.

    The added ones are like its own, but their attention leaves the hidden state as it is, and their MLP adds noise. So
    the answers are mostly those of the model: the more noise, the less often.
    """
    layers, config = model.weights.layers, model.config
    randomness = np.random.default_rng(0)

    def added(layer: LayerWeights) -> LayerWeights:
        if layer.o is None or layer.down is None:
            raise ValueError("a layer without attention or MLP")
        still = np.zeros(layer.o.shape, np.float32)
        noisy = randomness.standard_normal(layer.down.shape, np.float32) * np.float32(noise)
        return replace(layer, o=Tensor("f32", layer.o.shape, still), down=Tensor("f32", layer.down.shape, noisy))

    more = tuple(added(layer) for _ in range(times - 1) for layer in layers)
    weights = replace(model.weights, layers=layers + more)
    config = replace(config, layers=times * config.layers)
    return replace(model, config=config, weights=weights, text=replace(model.text, config=config))

"""Tiny decoders with a mixture of experts of each kind, in random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import Experts, LayerParts
from octavo_inference.models.weights import ExpertWeights, LayerWeights, Matrix, Tensor, Weights

from ..unit.engine.echo import tiny_model  # noqa: TID252 -- tests are no package

HIDDEN, INNER, COUNT = 32, 32, 6
PLAIN = Experts(count=COUNT, chosen=2, intermediate=INNER)
Rows = Callable[[int, int], Matrix]


def mixture_model(name: str = "softmax", matrix: Rows | None = None) -> tuple[ModelConfig, Weights]:
    """A dense layer, then one with experts. `matrix(rows, columns)` makes those of experts."""
    experts = EXPERTS[name]
    config, weights = tiny_model()
    config = replace(config, experts=experts, parts=(LayerParts(), LayerParts(feed_forward="experts")))
    if name == "no gates":
        config = replace(config, gated=False, activation="relu2")
        weights = replace(weights, layers=tuple(replace(layer, gate=None) for layer in weights.layers))
    layers = tuple(
        with_experts(config, layer, number, matrix or floats(number))
        if config.part(number).feed_forward == "experts"
        else layer
        for number, layer in enumerate(weights.layers)
    )
    return config, replace(weights, layers=layers)


def floats(seed: int) -> Rows:
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        return Tensor("f32", (rows, columns), (rng.standard_normal((rows, columns)) * 0.3).astype(np.float32))

    return matrix


def with_experts(config: ModelConfig, layer: LayerWeights, seed: int, matrix: Rows) -> LayerWeights:
    """The layer with experts in the place of its MLP; biases where the activation is clamped."""
    experts, other = config.experts, floats(100 + seed)
    assert experts is not None
    biased, shared = experts.clamp is not None, experts.shared

    def many(rows: int, columns: int) -> tuple[Matrix, ...]:
        return tuple(matrix(rows, columns) for _ in range(experts.count))

    def vector(size: int) -> Tensor:
        return Tensor("f32", (size,), other(1, size).data.reshape(-1))

    def bias(rows: int) -> Tensor | None:
        return other(experts.count, rows) if biased else None

    weights = ExpertWeights(
        router=Tensor("f32", (experts.count, HIDDEN), 5 * other(experts.count, HIDDEN).data),
        gate=many(experts.intermediate, HIDDEN) if config.gated else (),
        up=many(experts.intermediate, HIDDEN),
        down=many(HIDDEN, experts.intermediate),
        router_bias=vector(experts.count) if biased else None,
        correction=vector(experts.count) if experts.groups > 1 else None,
        gate_bias=bias(experts.intermediate),
        up_bias=bias(experts.intermediate),
        down_bias=bias(HIDDEN),
        shared_gate=matrix(shared, HIDDEN) if shared else None,
        shared_up=matrix(shared, HIDDEN) if shared else None,
        shared_down=matrix(HIDDEN, shared) if shared else None,
        shared_router=other(1, HIDDEN) if experts.shared_gate else None,
    )
    return replace(layer, gate=None, up=None, down=None, experts=weights)


EXPERTS = {
    "softmax": PLAIN,
    "not normalized, a gated shared MLP": replace(PLAIN, normalized=False, chosen=3, shared=64, shared_gate=True),
    "groups and correction, a shared MLP": replace(
        PLAIN, scoring="sigmoid", groups=3, chosen_groups=2, group_score="best_two", scale=2.5, shared=32, chosen=3
    ),
    "inputs scaled": replace(PLAIN, scoring="sigmoid", normalized=False, chosen=1, input_scaled=True, shared=32),
    "clamped, with biases": replace(PLAIN, scoring="softmax_of_chosen", clamp=1.5),
    "no gates": PLAIN,
}

"""Random decoders with mixtures of experts, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import Experts, LayerParts
from octavo_inference.models.weights import ExpertWeights, Matrix, Tensor, Weights

from .decoders import random_weights, tensor
from .test_forward import TINY

Of = Callable[[str, int, int], Matrix]


def with_experts(experts: Experts, dense: int = 0, **changes: object) -> ModelConfig:
    """A tiny decoder whose first `dense` layers have an MLP, the others experts."""
    config = replace(TINY, **changes)  # type: ignore[arg-type]
    kinds = [LayerParts(feed_forward="dense" if i < dense else "experts") for i in range(config.layers)]
    return replace(config, experts=experts, parts=tuple(kinds))


def random_mixture(
    config: ModelConfig,
    rng: np.random.Generator,
    of: Of | None = None,
    *,
    biased: bool = False,
    router_biased: bool = False,
    corrected: bool = False,
) -> Weights:
    """Random weights; `of(role, rows, columns)` makes the experts' matrices."""
    experts = config.experts
    assert experts is not None
    hidden, inner = config.hidden, experts.intermediate

    def matrix(role: str, rows: int, columns: int) -> Matrix:
        return tensor(rng, rows, columns) if of is None else of(role, rows, columns)

    def many(role: str, rows: int, columns: int) -> tuple[Matrix, ...]:
        return tuple(matrix(role, rows, columns) for _ in range(experts.count))

    def floats(*shape: int, scale: float = 1.0) -> Tensor:
        return Tensor("f32", shape, (rng.standard_normal(shape) * scale).astype(np.float32))

    def mixture() -> ExpertWeights:
        shared = experts.shared
        return ExpertWeights(
            router=tensor(rng, experts.count, hidden),
            gate=many("gate", inner, hidden),
            up=many("up", inner, hidden),
            down=many("down", hidden, inner),
            router_bias=floats(experts.count) if router_biased else None,
            correction=floats(experts.count, scale=0.3) if corrected else None,
            gate_bias=floats(experts.count, inner) if biased else None,
            up_bias=floats(experts.count, inner) if biased else None,
            down_bias=floats(experts.count, hidden) if biased else None,
            shared_gate=matrix("gate", shared, hidden) if shared else None,
            shared_up=matrix("up", shared, hidden) if shared else None,
            shared_down=matrix("down", hidden, shared) if shared else None,
            shared_router=tensor(rng, 1, hidden) if experts.shared_gate else None,
        )

    weights = random_weights(config, rng)
    layers = tuple(
        layer if part.feed_forward == "dense" else replace(layer, gate=None, up=None, down=None, experts=mixture())
        for layer, part in zip(weights.layers, config.parts, strict=True)
    )
    return replace(weights, layers=layers)

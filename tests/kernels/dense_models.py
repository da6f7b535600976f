"""Tiny decoders with what few families have around their products, in random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import LayerParts
from octavo_inference.models.weights import LayerWeights, Matrix, Tensor, Weights, required

from ..unit.engine.echo import tiny_model  # noqa: TID252 -- tests are no package

_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
_OUTPUT_NORMS = ("attention_output_norm", "mlp_output_norm")


def dense_model(**flags: Any) -> tuple[ModelConfig, Weights]:
    """The small decoder with `flags` of its configuration, and random vectors wherever they give it one.

    `layer_norm` gives all norms a bias, and each head its own weights. Slots that no flag gives are empty.
    """
    config, weights = tiny_model()
    config, rng = replace(config, **flags), np.random.default_rng(4)

    def matrix(rows: int, columns: int) -> Tensor:
        return Tensor("f32", (rows, columns), 0.3 * rng.standard_normal((rows, columns), np.float32))

    def vector(size: int, around: float = 0.0) -> Tensor:
        return Tensor("f32", (size,), around + 0.3 * rng.standard_normal(size, np.float32))

    def normed(names: Sequence[str], size: int, *, exists: bool) -> dict[str, Tensor | None]:
        found: dict[str, Tensor | None] = {name: vector(size, 1.0) if exists else None for name in names}
        if config.layer_norm and exists:
            found |= {f"{name}_bias": vector(size) for name in names}
        return found

    def with_sizes(given: LayerWeights, part: LayerParts) -> LayerWeights:
        """The first key-value heads and inner elements of a layer, as many as it has."""
        keys, inner = (part.kv_heads or 0) * config.head_dim, part.intermediate or 0
        cut = {name: cast("Tensor", getattr(given, name)).rows(0, keys) for name in "kv"}
        cut |= {name: cast("Tensor", getattr(given, name)).rows(0, inner) for name in ("gate", "up")}
        return replace(given, **cut, down=cast("Tensor", given.down).columns(0, inner))

    def rows(given: Matrix | None) -> int:
        return required(given).shape[0]

    def layer(number: int, given: LayerWeights) -> LayerWeights:
        given = with_sizes(given, config.part(number))
        before, queries, keys = config.input_norms, rows(given.q), rows(given.k)
        by_head = config.layer_norm or config.qk_norm == "whole"
        gate = given.gate if config.gated else None
        return replace(
            given,
            gate=gate,
            **normed(["input_norm"], config.hidden, exists=before),
            **normed(["post_norm"], config.hidden, exists=before and not config.shared_norm),
            **normed(_OUTPUT_NORMS, config.hidden, exists=config.output_norms or config.post_residual_norms),
            **normed(["q_norm"], queries if by_head else config.head_dim, exists=config.qk_norm is not None),
            **normed(["k_norm"], keys if by_head else config.head_dim, exists=config.qk_norm is not None),
            **{
                f"{name}_bias": vector(getattr(given, name).shape[0])
                for name in _MATRICES
                if config.mlp_bias and (name != "gate" or config.gated)
            },
            xielu=Tensor("f32", (2,), np.array([0.8, 0.4], np.float32)) if config.activation == "xielu" else None,
        )

    return config, replace(
        weights,
        layers=tuple(layer(number, given) for number, given in enumerate(weights.layers)),
        **normed(["final_norm"], config.hidden, exists=not config.post_residual_norms),
        **normed(["embedding_norm"], config.hidden, exists=config.embedding_norm),
        positions=matrix(config.learned_positions, config.hidden) if config.learned_positions else None,
        head_bias=vector(config.vocab) if config.head_bias else None,
    )


BIASES = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
NO_ROTATION = {"rotated": (False, False)}
PRUNED = (LayerParts(kv_heads=1, intermediate=16), LayerParts())
DENSE_MODELS: dict[str, dict[str, Any]] = {
    "LayerNorm": {"layer_norm": True},
    "norms after the sum": {"input_norms": False, "post_residual_norms": True, "layer_norm": True, **BIASES},
    "output norms alone": {"input_norms": False, "output_norms": True, "qk_norm": "whole"},
    "parallel, one norm": {"parallel": True, "shared_norm": True, "layer_norm": True, "qk_norm": "head"},
    "parallel, two norms": {"parallel": True, "layer_norm": True, "gated": False, "activation": "gelu", **BIASES},
    "norms after the rotation": {"qk_norm": "head", "qk_norm_rotated": True, "rotated": (True, False)},
    "clipped": {"qkv_clip": 0.8, "qk_norm": "whole"},
    "xielu": {"gated": False, "activation": "xielu"},
    "learned positions": {"learned_positions": 32, "head_bias": True, "embedding_scale": 1.5, **NO_ROTATION},
    "ALiBi": {"alibi": 0.7, "embedding_norm": True, "layer_norm": True, "attention_softcap": 3.0, **NO_ROTATION},
    "layers of unlike sizes": {"parts": PRUNED, "qk_norm": "whole", **BIASES},
    "chunks": {"chunks": (8, 8), "rotated": (True, False), "query_temperature": (4.0, 0.5)},
}

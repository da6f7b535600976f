"""Random weights for any decoder without latent attention and state layers; layers of experts get only their norms."""

from __future__ import annotations

import numpy as np

from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import LayerWeights, Tensor, Weights, bf16_bits


def tensor(rng: np.random.Generator, *shape: int) -> Tensor:
    values = (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)
    return Tensor("bf16", shape, bf16_bits(values)) if len(shape) == 2 else Tensor("f32", shape, values * 5 + 1)


def vector(rng: np.random.Generator, size: int) -> Tensor:
    return Tensor("f32", (size,), rng.standard_normal(size).astype(np.float32))


def random_weights(
    config: ModelConfig,
    rng: np.random.Generator,
    *,
    bare_norms: bool = False,
    norm_biases: bool = False,
    norms_by_head: bool = False,
    token_types: bool = False,
) -> Weights:
    """`bare_norms`: norms have no weights; `norms_by_head`: each head has norms of q and k of its own.

    `token_types`: a vector is added to every embedding.
    """

    def norms(present: bool, width: int, *names: str) -> dict[str, Tensor]:
        if not present:
            return {}
        weights = {} if bare_norms else {name: tensor(rng, width) for name in names}
        return weights | ({f"{name}_bias": vector(rng, width) for name in names} if norm_biases else {})

    def biases(present: bool, **widths: int) -> dict[str, Tensor]:
        return {f"{name}_bias": tensor(rng, width) for name, width in widths.items()} if present else {}

    def attention(number: int) -> dict[str, Tensor]:
        part, dim, own = config.part(number), config.head_dim, norms_by_head or config.qk_norm == "whole"
        queries, keys = int(part.heads or 0) * dim, int(part.kv_heads or 0) * dim
        return {
            "q": tensor(rng, queries, config.hidden),
            "k": tensor(rng, keys, config.hidden),
            "v": tensor(rng, keys, config.hidden),
            "o": tensor(rng, config.hidden, queries),
            **({"sinks": vector(rng, int(part.heads or 0))} if config.sinks else {}),
            **norms(config.input_norms, config.hidden, "input_norm"),
            **norms(config.output_norms or config.post_residual_norms, config.hidden, "attention_output_norm"),
            **norms(config.qk_norm is not None, queries if own else dim, "q_norm"),
            **norms(config.qk_norm is not None, keys if own else dim, "k_norm"),
            **biases(config.qkv_bias, q=queries, k=keys, v=keys),
            **biases(config.output_bias, o=config.hidden),
        }

    def mlp(number: int) -> dict[str, Tensor]:
        inner = int(config.part(number).intermediate or 0)
        xielu = Tensor("f32", (2,), np.array([0.9, 0.6], np.float32))
        return {
            **({"gate": tensor(rng, inner, config.hidden)} if config.gated else {}),
            "up": tensor(rng, inner, config.hidden),
            "down": tensor(rng, config.hidden, inner),
            **({"xielu": xielu} if config.activation == "xielu" else {}),
            **biases(config.mlp_bias and config.gated, gate=inner),
            **biases(config.mlp_bias, up=inner, down=config.hidden),
        }

    def layer(number: int) -> LayerWeights:
        part = config.part(number)
        tensors = (attention(number) if part.attention else {}) | (mlp(number) if part.feed_forward == "dense" else {})
        if part.feed_forward != "none":
            # The one norm of parallel layers is with attention, where there is any.
            tensors |= norms(config.input_norms and not config.shared_norm, config.hidden, "post_norm")
            tensors |= norms(config.output_norms or config.post_residual_norms, config.hidden, "mlp_output_norm")
        return LayerWeights(**tensors)  # type: ignore[arg-type]

    embedding = tensor(rng, config.vocab, config.hidden)
    return Weights(
        embedding,
        tuple(map(layer, range(config.layers))),
        lm_head=embedding,
        head_bias=vector(rng, config.vocab) if config.head_bias else None,
        positions=tensor(rng, config.learned_positions, config.hidden) if config.learned_positions else None,
        token_type=vector(rng, config.hidden) if token_types else None,
        **{"final_norm": None} | norms(not config.post_residual_norms, config.hidden, "final_norm"),  # type: ignore[arg-type]
        **norms(config.embedding_norm, config.hidden, "embedding_norm"),  # type: ignore[arg-type]
    )

"""Shapes of decoders with random weights, cut to few layers so that the reference keeps up on a CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bench.gpu.measured_models import QWEN3_06B
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import Experts, LayerParts
from octavo_inference.models.weights import LayerWeights, Tensor, Weights, bf16_bits, experts_of, layer_of

SMOLLM2 = ModelConfig(
    architecture="llama", layers=4, hidden=576, heads=9, kv_heads=3, head_dim=64, intermediate=1536, vocab=49152,
    max_positions=2048, rope_theta=100_000.0, norm_eps=1e-5, tied_embeddings=True, eos_token_ids=(2,),
)  # fmt: skip
QWEN3 = replace(QWEN3_06B, layers=2, max_positions=2048, eos_token_ids=(2,))
QWEN2 = replace(
    SMOLLM2, layers=2, hidden=896, heads=14, kv_heads=2, intermediate=4864, vocab=151_936, rope_theta=1_000_000.0,
    norm_eps=1e-6, qkv_bias=True,
)  # fmt: skip
GEMMA = replace(
    SMOLLM2, architecture="gemma", layers=2, hidden=1152, heads=4, kv_heads=1, head_dim=256, intermediate=6912,
    vocab=65_536, rope_theta=1_000_000.0, local_rope_theta=10_000.0, windows=(64, None), query_scale=256**-0.5,
    attention_softcap=50.0, logit_softcap=30.0, activation="gelu_tanh", embedding_scale=1152**0.5, output_norms=True,
    qk_norm="head",
)  # fmt: skip
MIXTURE = replace(
    QWEN3, architecture="qwen3_moe", experts=Experts(count=32, chosen=4, intermediate=512),
    parts=(LayerParts(), LayerParts(feed_forward="experts")),
)  # fmt: skip
BLOOM = replace(
    SMOLLM2, architecture="bloom", layers=2, layer_norm=True, gated=False, activation="gelu", alibi=1.0,
    embedding_norm=True, learned_positions=2048, rotated=(False, False), parallel=True, head_bias=True,
)  # fmt: skip
OLMO = replace(
    QWEN3, architecture="olmo2", input_norms=False, output_norms=True, qk_norm="whole", qkv_clip=8.0,
    chunks=(64, None), rotated=(True, False), query_temperature=(64.0, 0.1),
)  # fmt: skip
MODELS = {
    "SmolLM2-135M": SMOLLM2,
    "Qwen3-0.6B": QWEN3,
    "Qwen2.5-0.5B": QWEN2,
    "Gemma-like": GEMMA,
    "Qwen3-MoE-like": MIXTURE,
    "Bloom-like": BLOOM,
    "OLMo-like": OLMO,
}


def tiny(config: ModelConfig) -> ModelConfig:
    """The same flags and odd ratios, at sizes for the interpreter."""
    windows = (9, None) if config.windows else ()
    heads = {9: (3, 1), 16: (4, 2), 14: (7, 1), 4: (2, 1)}[config.heads]
    return replace(
        config, layers=2, hidden=48, heads=heads[0], kv_heads=heads[1], head_dim=16, intermediate=80, vocab=211,
        max_positions=128, windows=windows, chunks=(8, None) if config.chunks else (),
        query_scale=config.query_scale and 16**-0.5,
        embedding_scale=48**0.5 if config.embedding_scale != 1.0 else 1.0,
        experts=config.experts and replace(config.experts, count=6, chosen=2, intermediate=32),
    )  # fmt: skip


_NORMS = ("input_norm", "post_norm", "attention_output_norm", "mlp_output_norm")


def random_weights(config: ModelConfig, seed: int = 0) -> Weights:
    """Matrices in bfloat16 that preserve the size of activations, norms near 1, logits of about size 1."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        values = rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(columns**0.5)
        return Tensor("bf16", (rows, columns), bf16_bits(values))

    def norm(size: int) -> Tensor:
        return Tensor("f32", (size,), 1 + 0.1 * rng.standard_normal(size, dtype=np.float32))

    def layer(number: int) -> LayerWeights:
        mixed = config.part(number).feed_forward == "experts"
        made = layer_of(config, matrix, norm, experts_of(config, matrix, matrix) if mixed else None, number)
        changes: dict[str, Any] = {}
        if config.qkv_bias:
            changes |= {f"{name}_bias": bias(getattr(made, name).shape[0]) for name in "qkv"}
        if config.layer_norm:
            changes |= {f"{name}_bias": bias(config.hidden) for name in _NORMS if getattr(made, name) is not None}
        if config.activation == "xielu":
            changes["xielu"] = Tensor("f32", (2,), np.array([0.8, 0.4], np.float32))
        return replace(made, **changes)

    def bias(size: int) -> Tensor:
        return Tensor("f32", (size,), 0.1 * rng.standard_normal(size, dtype=np.float32))

    embedding = matrix(config.vocab, config.hidden)
    return Weights(
        embedding,
        tuple(map(layer, range(config.layers))),
        norm(config.hidden),
        embedding,
        final_norm_bias=bias(config.hidden) if config.layer_norm else None,
        head_bias=bias(config.vocab) if config.head_bias else None,
        positions=matrix(config.learned_positions, config.hidden) if config.learned_positions else None,
        embedding_norm=norm(config.hidden) if config.embedding_norm else None,
    )

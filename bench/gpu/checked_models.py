"""Shapes of decoders with random weights, cut to few layers so that the reference keeps up on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bench.gpu.measured_models import QWEN3_06B
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import (
    Experts,
    GatedDelta,
    LatentAttention,
    LayerParts,
    Mamba2,
    ShortConv,
    StateLayer,
)
from octavo_inference.models.weights import (
    LayerWeights,
    StateWeights,
    Tensor,
    Weights,
    bf16_bits,
    experts_of,
    layer_of,
)

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
_STATE = LayerParts(attention=False, state=True)
_LATENT = LatentAttention(kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
DEEPSEEK = replace(
    QWEN3, architecture="deepseek_v2", qk_norm=None, kv_heads=1, head_dim=_LATENT.key_dim, rotary_dim=_LATENT.rope_dim,
    latent=_LATENT, experts=Experts(count=16, chosen=4, intermediate=704, normalized=False, shared=1408),
    parts=(LayerParts(), LayerParts(feed_forward="experts")),
)  # fmt: skip
GPT_OSS = replace(
    QWEN3, architecture="gpt_oss", qk_norm=None, heads=64, kv_heads=8, head_dim=64, qkv_bias=True, output_bias=True,
    mlp_bias=True, sinks=True, windows=(64, None), parts=(LayerParts(feed_forward="experts"),) * 2,
    experts=Experts(count=16, chosen=4, intermediate=1440, scoring="softmax_of_chosen", clamp=7.0),
)  # fmt: skip
GRANITE = replace(QWEN3, architecture="granitehybrid", parts=(_STATE, LayerParts()), state=Mamba2(32, 64, 128, 1, 4))
QWEN3_NEXT = replace(
    QWEN3, architecture="qwen3_next", head_dim=256, heads=8, kv_heads=2, attention_gate=True, rotary_dim=64,
    parts=(_STATE, LayerParts()), state=GatedDelta(8, 16, 128, 128, 4),
)  # fmt: skip
LFM2 = replace(QWEN3, architecture="lfm2", parts=(_STATE, LayerParts()), state=ShortConv(1024, 3))
MODELS = {
    "SmolLM2-135M": SMOLLM2,
    "Qwen3-0.6B": QWEN3,
    "Qwen2.5-0.5B": QWEN2,
    "Gemma-like": GEMMA,
    "Qwen3-MoE-like": MIXTURE,
    "Bloom-like": BLOOM,
    "OLMo-like": OLMO,
    "DeepSeek-like": DEEPSEEK,
    "gpt-oss-like": GPT_OSS,
    "Granite-hybrid-like": GRANITE,
    "Qwen3-Next-like": QWEN3_NEXT,
    "LFM2-like": LFM2,
}

_TINY_STATES: dict[type, StateLayer] = {
    Mamba2: Mamba2(4, 10, 12, 2, 4),
    GatedDelta: GatedDelta(2, 4, 16, 20, 4),
    ShortConv: ShortConv(48, 3),
}


def tiny(config: ModelConfig) -> ModelConfig:
    """The same flags and odd ratios, at sizes for the interpreter."""
    windows = (9, None) if config.windows else ()
    heads = {9: (3, 1), 16: (4, 2), 14: (7, 1), 4: (2, 1), 64: (8, 1), 8: (4, 2)}[config.heads]
    latent = config.latent and LatentAttention(kv_rank=32, nope_dim=16, rope_dim=16, value_dim=16)
    head_dim = latent.key_dim if latent else 16
    return replace(
        config, layers=2, hidden=48, heads=heads[0], kv_heads=1 if latent else heads[1], head_dim=head_dim,
        intermediate=80, vocab=211, max_positions=128, windows=windows, chunks=(8, None) if config.chunks else (),
        rotary_dim=config.rotary_dim and 16, query_scale=config.query_scale and 16**-0.5,
        embedding_scale=48**0.5 if config.embedding_scale != 1.0 else 1.0,
        experts=config.experts
        and replace(config.experts, count=6, chosen=2, intermediate=32, shared=min(config.experts.shared, 40)),
        latent=latent, state=config.state and _TINY_STATES[type(config.state)],
    )  # fmt: skip


_NORMS = ("input_norm", "post_norm", "attention_output_norm", "mlp_output_norm")


def random_weights(config: ModelConfig, seed: int = 0) -> Weights:
    """Matrices in bfloat16 that preserve the size of activations, norms near 1, logits of about size 1."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        values = rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(columns**0.5)
        return Tensor("bf16", (rows, columns), bf16_bits(values))

    def router(rows: int, columns: int) -> Tensor:
        """Choices that rounding may change have small weights then."""
        values = rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(columns**0.5)
        return Tensor("bf16", (rows, columns), bf16_bits(np.float32(4) * values))

    def norm(size: int) -> Tensor:
        return Tensor("f32", (size,), 1 + 0.1 * rng.standard_normal(size, dtype=np.float32))

    def layer(number: int) -> LayerWeights:
        mixed = config.part(number).feed_forward == "experts"
        made = layer_of(config, matrix, norm, experts_of(config, matrix, router) if mixed else None, number)
        return replace(made, state=made.state and _spread(made.state, rng), **_vectors(config, made, bias))

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


def _vectors(config: ModelConfig, made: LayerWeights, bias: Callable[[int], Tensor]) -> dict[str, Any]:
    """Biases, sinks and other numbers of a layer that `layer_of` does not make."""
    found: dict[str, Any] = {}
    if config.qkv_bias:
        found |= {f"{name}_bias": bias(getattr(made, name).shape[0]) for name in "qkv"}
    if config.output_bias:
        found["o_bias"] = bias(config.hidden)
    if config.sinks:
        found["sinks"] = bias(config.heads)
    if config.layer_norm:
        found |= {f"{name}_bias": bias(config.hidden) for name in _NORMS if getattr(made, name) is not None}
    if config.activation == "xielu":
        found["xielu"] = Tensor("f32", (2,), np.array([0.8, 0.4], np.float32))
    return found


def _spread(state: StateWeights, rng: np.random.Generator) -> StateWeights:
    """Decays between those of one and of many tokens."""
    if state.decay is None:
        return state
    heads = state.decay.shape
    decay, step = np.log(rng.uniform(0.02, 4, heads)), rng.uniform(-3, 1, heads)
    return replace(
        state,
        decay=Tensor("f32", heads, decay.astype(np.float32)),
        step_bias=Tensor("f32", heads, step.astype(np.float32)),
    )

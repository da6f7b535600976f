"""Shapes of models whose kernels are compiled ahead: their `config.json`, reduced to the fewest layers.

A model's kernel variants depend on its heads, their size, its width rounded up to a power of two, and its flags (norms
of Q and K, windows): a few shapes cover many models. A layer of each kind is enough.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import Experts, GatedDelta, LayerParts, Mamba2, ShortConv, StateLayer


def _llama(hidden: int, heads: int, kv_heads: int, intermediate: int, head_dim: int = 128) -> ModelConfig:
    return ModelConfig(
        architecture="llama",
        layers=1,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        vocab=128_256,
        max_positions=131_072,
        rope_theta=500_000.0,
        norm_eps=1e-5,
        tied_embeddings=True,  # read alike, whether or not it is a matrix of its own
        eos_token_ids=(2,),
    )


def _qwen3(hidden: int, heads: int, kv_heads: int, intermediate: int) -> ModelConfig:
    return replace(_llama(hidden, heads, kv_heads, intermediate), architecture="qwen3", vocab=151_936, qk_norm="head")


def _gemma3(hidden: int, heads: int, kv_heads: int, intermediate: int, head_dim: int, window: int) -> ModelConfig:
    return replace(
        _llama(hidden, heads, kv_heads, intermediate, head_dim),
        architecture="gemma3",
        layers=2,
        windows=(window, None),
        local_rope_theta=10_000.0,
        vocab=262_144,
        activation="gelu_tanh",
        embedding_scale=hidden**0.5,
        output_norms=True,
        qk_norm="head",
    )


def _olmo2(hidden: int, heads: int, kv_heads: int, intermediate: int) -> ModelConfig:
    return replace(
        _llama(hidden, heads, kv_heads, intermediate),
        architecture="olmo2",
        vocab=100_352,
        qk_norm="whole",
        input_norms=False,
        output_norms=True,
    )


def _cohere2(hidden: int, heads: int, kv_heads: int, intermediate: int) -> ModelConfig:
    return replace(
        _llama(hidden, heads, kv_heads, intermediate),
        architecture="cohere2",
        layers=2,
        vocab=256_000,
        windows=(4096, None),
        rotated=(True, False),
        layer_norm=True,
        parallel=True,
        shared_norm=True,
        logit_scale=0.25,
    )


_STATE = LayerParts(attention=False, state=True)


def _hybrid(shape: ModelConfig, state: StateLayer, experts: Experts | None = None) -> ModelConfig:
    """A layer of each kind of mixer."""
    parts = tuple(replace(part, feed_forward="experts" if experts else "dense") for part in (_STATE, LayerParts()))
    return replace(shape, layers=2, parts=parts, state=state, experts=experts)


def _mixture(config: ModelConfig, experts: Experts) -> ModelConfig:
    return replace(config, experts=experts, parts=(LayerParts(feed_forward="experts"),))


SHAPES = {
    "llama-3.2-1b": _llama(2048, 32, 8, 8192, head_dim=64),
    "llama-3.2-3b": _llama(3072, 24, 8, 8192),
    "llama-3.1-8b": _llama(4096, 32, 8, 14_336),
    "llama-3.3-70b": _llama(8192, 64, 8, 28_672),
    "qwen2.5-0.5b": _llama(896, 14, 2, 4864, head_dim=64),
    "qwen2.5-1.5b": _llama(1536, 12, 2, 8960),
    "qwen2.5-3b": _llama(2048, 16, 2, 11_008),
    "qwen2.5-7b": _llama(3584, 28, 4, 18_944),
    "qwen2.5-14b": _llama(5120, 40, 8, 13_824),
    "qwen3-0.6b": _qwen3(1024, 16, 8, 3072),
    "qwen3-1.7b": _qwen3(2048, 16, 8, 6144),
    "qwen3-4b": _qwen3(2560, 32, 8, 9728),
    "qwen3-8b": _qwen3(4096, 32, 8, 12_288),
    "qwen3-14b": _qwen3(5120, 40, 8, 17_408),
    "qwen3-32b": _qwen3(5120, 64, 8, 25_600),
    "gemma-3-1b": _gemma3(1152, 4, 1, 6912, 256, 512),
    "gemma-3-4b": _gemma3(2560, 8, 4, 10_240, 256, 1024),
    "gemma-3-12b": _gemma3(3840, 16, 8, 15_360, 256, 1024),
    "gemma-3-27b": _gemma3(5376, 32, 16, 21_504, 128, 1024),
    "olmo-2-7b": _olmo2(4096, 32, 32, 11_008),
    "olmo-2-32b": _olmo2(5120, 40, 8, 27_648),
    "command-r7b": _cohere2(4096, 32, 8, 14_336),
    "command-a": _cohere2(12_288, 96, 8, 36_864),
    "smollm2-135m": _llama(576, 9, 3, 1536, head_dim=64),
    "smollm2-360m": _llama(960, 15, 5, 2560, head_dim=64),
    "granite-4.0-h-micro": _hybrid(
        _llama(2048, 32, 8, 8192, head_dim=64), Mamba2(heads=64, head_dim=64, state=128, groups=1, kernel=4)
    ),
    "granite-4.0-h-small": _hybrid(
        _llama(4096, 32, 8, 1536),
        Mamba2(heads=128, head_dim=64, state=128, groups=1, kernel=4),
        Experts(count=72, chosen=10, intermediate=768, scoring="softmax_of_chosen", shared=1536),
    ),
    "qwen3-next-80b-a3b": _hybrid(
        replace(_llama(2048, 16, 2, 5120, head_dim=256), rotary_dim=64, qk_norm="head", attention_gate=True),
        GatedDelta(key_heads=16, value_heads=32, key_dim=128, value_dim=128, kernel=4),
        Experts(count=512, chosen=10, intermediate=512, shared=512, shared_gate=True),
    ),
    "lfm2-1.2b": _hybrid(
        replace(_llama(2048, 32, 8, 8192, head_dim=64), qk_norm="head"), ShortConv(channels=2048, kernel=3)
    ),
    "smollm2-1.7b": _llama(2048, 32, 32, 8192, head_dim=64),
    "qwen3-30b-a3b": _mixture(_qwen3(2048, 32, 4, 6144), Experts(128, 8, 768)),
    "mixtral-8x7b": _mixture(_llama(4096, 32, 8, 14_336), Experts(8, 2, 14_336)),
}

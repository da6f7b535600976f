"""Tiny models with latent attention, and a decoder in numpy that expands their keys and values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import LatentAttention
from octavo_inference.models.weights import LatentWeights, Matrix, Tensor, Weights, dequantize, layer_of, required

Float32 = NDArray[np.float32]
LATENT = LatentAttention(kv_rank=32, nope_dim=16, rope_dim=16, value_dim=32)


def latent_config(latent: LatentAttention = LATENT, **changes: object) -> ModelConfig:
    """A decoder of two layers; its queries are scaled as YaRN models scale them."""
    config = ModelConfig(
        architecture="deepseek_v2",
        layers=2,
        hidden=64,
        heads=4,
        kv_heads=1,
        head_dim=latent.key_dim,
        intermediate=96,
        vocab=301,
        max_positions=2048,
        rope_theta=10_000.0,
        norm_eps=1e-5,
        tied_embeddings=True,
        eos_token_ids=(0,),
        rotary_dim=latent.rope_dim,
        query_scale=1.3 * latent.key_dim**-0.5,
        latent=latent,
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def latent_weights(config: ModelConfig, rng: np.random.Generator) -> Weights:
    """Random weights in float32."""

    def matrix(rows: int, columns: int) -> Tensor:
        values = rng.standard_normal((rows, columns)) / columns**0.5
        return Tensor("f32", (rows, columns), values.astype(np.float32))

    def norm(size: int) -> Tensor:
        return Tensor("f32", (size,), (1 + 0.3 * rng.standard_normal(size)).astype(np.float32))

    layers = tuple(layer_of(config, matrix, norm) for _ in range(config.layers))
    embedding = matrix(config.vocab, config.hidden)
    return Weights(embedding, layers, norm(config.hidden), embedding)


def latent_oracle(config: ModelConfig, weights: Weights, tokens: list[int]) -> Float32:
    """Logits of every position of one sequence, [len(tokens), vocab]."""
    latent, count = config.latent or LATENT, len(tokens)

    def norm(x: Float32, weight: Tensor | None, eps: float) -> Float32:
        result: Float32 = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * dequantize(required(weight))
        return result

    def linear(x: Float32, matrix: Matrix | None) -> Float32:
        return x @ dequantize(required(matrix)).T

    rope = config.rope(0)
    assert rope is not None
    cos, sin = np.split(rope.table(count)[:, None], 2, axis=-1)

    def rotate(x: Float32) -> Float32:
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attend(x: Float32, w: LatentWeights) -> Float32:
        direct = w.q_up is None
        q = linear(x, w.q) if direct else linear(norm(linear(x, w.q_down), w.q_norm, latent.norm_eps), w.q_up)
        q = q.reshape(count, config.heads, latent.key_dim)
        down = linear(x, w.kv_down)
        compressed = norm(down[:, : latent.kv_rank], w.kv_norm, latent.norm_eps)
        keys = linear(compressed, w.k_up).reshape(count, config.heads, latent.nope_dim)
        values = linear(compressed, w.v_up).reshape(count, config.heads, latent.value_dim)
        shared = rotate(down[:, None, latent.kv_rank :])[:, 0]
        scores = np.einsum("qhd,khd->hqk", q[..., : latent.nope_dim], keys)
        scores += np.einsum("qhd,kd->hqk", rotate(q[..., latent.nope_dim :]), shared)
        scores = np.where(np.tri(count, dtype=bool), scores * config.score_scale, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        mixed: Float32 = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), values).reshape(count, -1)
        return mixed

    x = dequantize(weights.embedding)[tokens]
    for layer in weights.layers:
        assert layer.latent is not None
        x = x + linear(attend(norm(x, layer.input_norm, config.norm_eps), layer.latent), layer.o)
        h = norm(x, layer.post_norm, config.norm_eps)
        gate = linear(h, layer.gate)
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, layer.up), layer.down)
    return linear(norm(x, weights.final_norm, config.norm_eps), weights.lm_head).astype(np.float32)

"""Latent attention in GGUF files: what the metadata say of it, and its tensors. Facts are those of llama.cpp."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Protocol

from octavo_inference.checkpoints.gguf_settings import GgufSettings
from octavo_inference.checkpoints.latent_rows import compressions, expansions, transposed
from octavo_inference.common.errors import ModelError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import LatentAttention
from octavo_inference.models.rope import YarnScaling
from octavo_inference.models.rows import Order
from octavo_inference.models.weights import LatentWeights, Matrix, Tensor

_NAMES = {
    "kv_down": "attn_kv_a_mqa",
    "kv_norm": "attn_kv_a_norm",
    "q": "attn_q",
    "q_down": "attn_q_a",
    "q_norm": "attn_q_a_norm",
    "q_up": "attn_q_b",
}


class Tensors(Protocol):
    """Reads tensors of a file and checks their shapes."""

    @property
    def contents(self) -> bool:
        """Whether the file's contents are there, not only its header."""
        ...

    def has(self, name: str) -> bool:
        """Whether the file has a tensor."""
        ...

    def matrix(self, name: str, rows: int, columns: int, order: Order | None) -> Matrix:
        """A matrix whose row i is that at order[i]."""
        ...

    def stack(self, name: str, count: int, rows: int, columns: int) -> Matrix:
        """A tensor [count, rows, columns] as [count * rows, columns]."""
        ...

    def vector(self, name: str, size: int) -> Tensor:
        """The weights of a norm."""
        ...


def latent_fields(settings: GgufSettings) -> dict[str, Any]:
    """The fields of `ModelConfig` that latent attention sets. Raises `ModelError` for impossible sizes.

    Files with separate expansions (attn_k_b) state the sizes of latents as those of keys and values, and the sizes of
    heads under keys of their own.
    """
    key = settings.count("attention.key_length_mla", settings.count("attention.key_length"))
    narrow = settings.count("embedding_length") // settings.count("attention.head_count")
    rope_dim, kv_rank = settings.count("rope.dimension_count"), settings.count("attention.kv_lora_rank")
    value_dim = settings.count("attention.value_length_mla", settings.count("attention.value_length", narrow))
    if rope_dim % 2 or rope_dim >= key:
        raise ModelError(f"{settings.file.path}: keys of {key} elements, {rope_dim} of which are rotated")
    query_rank = settings.count("attention.q_lora_rank", 0, least=0)
    latent = LatentAttention(kv_rank, key - rope_dim, rope_dim, value_dim, query_rank or None)
    return {
        "latent": latent,
        "kv_heads": 1,
        "head_dim": latent.key_dim,
        "query_scale": latent.key_dim**-0.5,
    }


def with_yarn(config: ModelConfig, settings: GgufSettings) -> ModelConfig:
    """llama.cpp takes YaRN's growth of cosines and sines back: it is in the scale of scores, squared.

    There it is 1 + log_multiplier * ln(factor), by a multiplier of the file's own.
    """
    scaling = config.rope_scaling
    if not isinstance(scaling, YarnScaling):
        return config
    growth = 1 + settings.number("rope.scaling.yarn_log_multiplier", 0.0) * math.log(max(1.0, scaling.factor))
    plain = replace(scaling, magnitude=settings.number("rope.scaling.attn_factor", 1.0))
    return replace(config, rope_scaling=plain, query_scale=config.score_scale * growth**2)


def latent_weights(
    tensors: Tensors, config: ModelConfig, latent: LatentAttention, p: str, *, adjacent: bool
) -> LatentWeights:
    """The tensors with the prefix `p`, without the output projection; `adjacent`: rotary pairs are neighbours."""
    heads = config.heads
    k_up: Matrix
    if tensors.has(p + "attn_k_b.weight"):
        stored = tensors.stack(p + "attn_k_b.weight", heads, latent.kv_rank, latent.nope_dim)
        k_up = transposed(stored, heads, contents=tensors.contents)
        v_up = tensors.stack(p + "attn_v_b.weight", heads, latent.value_dim, latent.kv_rank)
    else:
        rows = heads * (latent.nope_dim + latent.value_dim)
        both = tensors.matrix(p + "attn_kv_b.weight", rows, latent.kv_rank, None)
        k_up, v_up = expansions(both, heads, latent, contents=tensors.contents)
    return compressions(
        config,
        latent,
        lambda name, *shape: tensors.matrix(f"{p}{_NAMES[name]}.weight", *shape),
        lambda name, size: tensors.vector(f"{p}{_NAMES[name]}.weight", size),
        (k_up, v_up),
        adjacent=adjacent,
    )

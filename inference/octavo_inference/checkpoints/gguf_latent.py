"""Latent attention of GGUF files: the architectures deepseek2 and minicpm3."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from octavo_inference.checkpoints.gguf import GgufFile
from octavo_inference.checkpoints.latent_rows import compressed, expansions, queries, transposed
from octavo_inference.common.errors import ModelError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import LatentAttention
from octavo_inference.models.rope import RopeScaling, YarnScaling
from octavo_inference.models.weights import LatentWeights, Matrix, Tensor

_HALF_SPLIT = frozenset({"minicpm3"})
"""Architectures whose rotated pairs are (i, i + dim / 2) in the files; those of others are neighbours."""


class Tensors(Protocol):
    """Reads tensors of a file and checks their shapes."""

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        """The weights of a linear layer."""
        ...

    def stack(self, name: str, count: int, rows: int, columns: int) -> Matrix:
        """A tensor [count, rows, columns] as [count * rows, columns]."""
        ...

    def vector(self, name: str, size: int) -> Tensor:
        """The weights of a norm."""
        ...

    def has(self, name: str) -> bool:
        """Whether the file has a tensor."""
        ...


def read_latent(file: GgufFile, number: Callable[..., float]) -> LatentAttention:
    """The sizes of latent attention; `number` reads a key of the architecture. Raises `ModelError` for impossible ones.

    Files with separate expansions (attn_k_b) state the sizes of a latent as those of keys and values, and the sizes of
    heads under keys of their own.
    """
    key = int(number("attention.key_length_mla", number("attention.key_length")))
    rope_dim, kv_rank = int(number("rope.dimension_count")), int(number("attention.kv_lora_rank"))
    narrow = number("embedding_length") // number("attention.head_count")
    value_dim = int(number("attention.value_length_mla", number("attention.value_length", narrow)))
    query_rank = int(number("attention.q_lora_rank", 0))
    if rope_dim % 2 or not 0 < rope_dim < key or kv_rank <= 0 or value_dim <= 0 or query_rank < 0:
        raise ModelError(
            f"{file.path}: latents of {kv_rank} elements, keys of {key}, {rope_dim} rotated, values of {value_dim}, "
            f"queries from {query_rank}: not the sizes of latent attention"
        )
    return LatentAttention(kv_rank, key - rope_dim, rope_dim, value_dim, query_rank or None)


def latent_scaling(
    scaling: RopeScaling | None, latent: LatentAttention, number: Callable[..., float]
) -> tuple[RopeScaling | None, float]:
    """The rotation's scaling, and the factor on scores.

    llama.cpp takes YaRN's growth of cosines and sines back: scores grow by (1 + log_multiplier * ln(factor)) squared.
    """
    scale = latent.key_dim**-0.5
    if not isinstance(scaling, YarnScaling):
        return scaling, scale
    plain = number("rope.scaling.attn_factor", 1.0)
    growth = 1.0 + number("rope.scaling.yarn_log_multiplier", 0.0) * math.log(max(1.0, scaling.factor))
    return replace(scaling, magnitude=plain), scale * growth**2


def latent_layer(
    tensors: Tensors, config: ModelConfig, latent: LatentAttention, prefix: str, *, contents: bool
) -> LatentWeights:
    """The tensors `prefix`attn_*, such as blk.0.attn_*, without the output projection."""
    interleaved, hidden, heads = config.architecture not in _HALF_SPLIT, config.hidden, config.heads
    rank, p = latent.query_rank, prefix + "attn_"
    up = tensors.matrix(p + ("q" if rank is None else "q_b") + ".weight", heads * latent.key_dim, rank or hidden)
    q = queries(up, config, latent, interleaved=interleaved, contents=contents)
    down = tensors.matrix(p + "kv_a_mqa.weight", latent.cached_dim, hidden)
    if tensors.has(p + "k_b.weight"):
        k_up: Matrix = transposed(
            tensors.stack(p + "k_b.weight", heads, latent.kv_rank, latent.nope_dim), heads, contents=contents
        )
        v_up = tensors.stack(p + "v_b.weight", heads, latent.value_dim, latent.kv_rank)
    else:
        expanded = heads * (latent.nope_dim + latent.value_dim)
        both = tensors.matrix(p + "kv_b.weight", expanded, latent.kv_rank)
        k_up, v_up = expansions(both, config, latent, contents=contents)
    return LatentWeights(
        kv_down=compressed(down, latent, interleaved=interleaved, contents=contents),
        kv_norm=tensors.vector(p + "kv_a_norm.weight", latent.kv_rank),
        k_up=k_up,
        v_up=v_up,
        q=q if rank is None else None,
        q_down=None if rank is None else tensors.matrix(p + "q_a.weight", rank, hidden),
        q_norm=None if rank is None else tensors.vector(p + "q_a_norm.weight", rank),
        q_up=None if rank is None else q,
    )

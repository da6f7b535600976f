"""Latent attention of Hugging Face folders: DeepSeek V2 and V3, and families with the same tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from octavo_inference.checkpoints.latent_rows import compressed, expansions, queries
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import LatentAttention
from octavo_inference.models.rope import yarn_magnitude
from octavo_inference.models.weights import LatentWeights, Matrix, Tensor

_HALF_SPLIT = frozenset({"minicpm3"})
"""Families whose rotated pairs are (i, i + dim / 2) in the files, too; those of others are neighbours."""


class Tensors(Protocol):
    """Reads tensors of a folder and checks their shapes."""

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        """The weights of a linear layer."""
        ...

    def norm(self, name: str, size: int) -> Tensor:
        """The weights of a norm."""
        ...


def read_latent(path: Path, data: dict[str, Any]) -> LatentAttention:
    """The sizes of latent attention in config.json.

    Raises `ModelError` for sizes that are no numbers, `UnsupportedModelError` for biases and half-split files of
    families that have neighbours as pairs.
    """

    def size(key: str, default: Any = None) -> int:
        value = data.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ModelError(f"{path}: {key} is {value!r}, expected a number from 1")
        return value

    if data.get("attention_bias"):
        raise UnsupportedModelError(f"{path}: attention_bias of latent attention is not supported")
    if data.get("rope_interleave", True) is False:
        raise UnsupportedModelError(f"{path}: rope_interleave false is not supported")
    heads, hidden = size("num_attention_heads"), size("hidden_size")
    rope_dim = size("qk_rope_head_dim")
    if rope_dim % 2:
        raise ModelError(f"{path}: qk_rope_head_dim is {rope_dim}, expected an even number")
    return LatentAttention(
        kv_rank=size("kv_lora_rank"),
        nope_dim=size("qk_nope_head_dim"),
        rope_dim=rope_dim,
        value_dim=size("v_head_dim", hidden // heads),
        query_rank=None if data.get("q_lora_rank") is None else size("q_lora_rank"),
    )


def latent_score_scale(data: dict[str, Any], latent: LatentAttention) -> float:
    """Factor on scores: YaRN's growth by `mscale_all_dim`, squared, is in it instead of in cosines and sines."""
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    scale = latent.key_dim**-0.5
    all_dim, factor = rope.get("mscale_all_dim"), rope.get("factor")
    if kind == "default" or not isinstance(all_dim, int | float) or not isinstance(factor, int | float):
        return scale
    return scale * yarn_magnitude(factor, all_dim) ** 2 if all_dim else scale


def latent_layer(
    tensors: Tensors, config: ModelConfig, latent: LatentAttention, prefix: str, *, contents: bool
) -> LatentWeights:
    """The tensors `prefix`*, such as model.layers.0.self_attn.*, without the output projection."""
    interleaved, hidden, width = config.architecture not in _HALF_SPLIT, config.hidden, config.heads * latent.key_dim
    rank = latent.query_rank
    up = tensors.matrix(prefix + ("q_proj" if rank is None else "q_b_proj") + ".weight", width, rank or hidden)
    q = queries(up, config, latent, interleaved=interleaved, contents=contents)
    down = tensors.matrix(prefix + "kv_a_proj_with_mqa.weight", latent.cached_dim, hidden)
    expanded = config.heads * (latent.nope_dim + latent.value_dim)
    k_up, v_up = expansions(
        tensors.matrix(prefix + "kv_b_proj.weight", expanded, latent.kv_rank), config, latent, contents=contents
    )
    return LatentWeights(
        kv_down=compressed(down, latent, interleaved=interleaved, contents=contents),
        kv_norm=tensors.norm(prefix + "kv_a_layernorm.weight", latent.kv_rank),
        k_up=k_up,
        v_up=v_up,
        q=q if rank is None else None,
        q_down=None if rank is None else tensors.matrix(prefix + "q_a_proj.weight", rank, hidden),
        q_norm=None if rank is None else tensors.norm(prefix + "q_a_layernorm.weight", rank),
        q_up=None if rank is None else q,
    )

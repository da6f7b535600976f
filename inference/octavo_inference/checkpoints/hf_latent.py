"""Latent attention in safetensors checkpoints: what config.json says of it, and its tensors."""

from __future__ import annotations

from typing import Any

from octavo_inference.checkpoints.hf_settings import HfSettings
from octavo_inference.checkpoints.hf_tensors import HfTensors
from octavo_inference.checkpoints.latent_rows import compressions, expansions
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import LatentAttention
from octavo_inference.models.rope import yarn_magnitude
from octavo_inference.models.weights import LatentWeights

_NAMES = {
    "kv_down": "kv_a_proj_with_mqa",
    "kv_norm": "kv_a_layernorm",
    "q": "q_proj",
    "q_down": "q_a_proj",
    "q_norm": "q_a_layernorm",
    "q_up": "q_b_proj",
}


def latent_fields(settings: HfSettings) -> dict[str, Any]:
    """The fields of `ModelConfig` that latent attention sets.

    Raises `ModelError` for sizes that are no numbers, `UnsupportedModelError` for biases and half-split files of
    families whose rotary pairs are neighbours.
    """
    settings.refuse("attention_bias")
    if not settings.flag("rope_interleave", default=True):
        raise UnsupportedModelError(f"{settings.path}: rope_interleave false is not supported")
    rope_dim, heads = settings.count("qk_rope_head_dim"), settings.count("num_attention_heads")
    if rope_dim % 2:
        raise ModelError(f"{settings.path}: qk_rope_head_dim is {rope_dim}, expected an even number")
    latent = LatentAttention(
        kv_rank=settings.count("kv_lora_rank"),
        nope_dim=settings.count("qk_nope_head_dim"),
        rope_dim=rope_dim,
        value_dim=settings.count("v_head_dim", settings.count("hidden_size") // heads),
        query_rank=None if settings.get("q_lora_rank") is None else settings.count("q_lora_rank"),
    )
    return {
        "latent": latent,
        "kv_heads": 1,
        "head_dim": latent.key_dim,
        "rotary_dim": rope_dim,
        "query_scale": _score_scale(settings, latent),
    }


def _score_scale(settings: HfSettings, latent: LatentAttention) -> float:
    """YaRN's growth by `mscale_all_dim`, squared, is in the scale of scores instead of in cosines and sines."""
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    all_dim, factor, scale = rope.get("mscale_all_dim"), rope.get("factor"), float(latent.key_dim**-0.5)
    if kind == "default" or not isinstance(all_dim, int | float) or not isinstance(factor, int | float):
        return scale
    return scale * yarn_magnitude(factor, all_dim) ** 2 if all_dim else scale


def latent_weights(
    tensors: HfTensors, config: ModelConfig, latent: LatentAttention, p: str, *, adjacent: bool
) -> LatentWeights:
    """The tensors with the prefix `p`, without the output projection; `adjacent`: rotary pairs are neighbours."""
    rows = config.heads * (latent.nope_dim + latent.value_dim)
    both = tensors.matrix(p + "kv_b_proj.weight", rows, latent.kv_rank)
    return compressions(
        config,
        latent,
        lambda name, *shape: tensors.matrix(f"{p}{_NAMES[name]}.weight", *shape),
        lambda name, size: tensors.norm(f"{p}{_NAMES[name]}.weight", size),
        expansions(both, config.heads, latent, contents=tensors.contents),
        adjacent=adjacent,
    )

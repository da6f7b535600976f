"""Names what a model needs besides the plain decoder, for backends that compute some of it."""

from __future__ import annotations

from octavo_inference.common.errors import UnsupportedModelError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import GatedDelta, LayerParts, Mamba2

_STATES = {Mamba2: "Mamba-2 layers", GatedDelta: "gated delta layers"}


def features(config: ModelConfig) -> frozenset[str]:
    """What the model has that not every backend computes; the names are for people."""
    sizes = {(part.heads, part.kv_heads, part.intermediate) for part in config.parts if part != LayerParts()}
    parts = {(part.attention, part.state, part.feed_forward) for part in config.parts}
    found = {
        "a mixture of experts": config.experts is not None,
        "a clamped activation of experts": config.experts is not None and config.experts.clamp is not None,
        "latent attention": config.latent is not None,
        _STATES.get(type(config.state), "short convolutions"): config.state is not None,
        "layers of unlike sizes": len(sizes) > 1,
        "layers without attention or MLP": any(
            not (attention or state) or feed_forward == "none" for attention, state, feed_forward in parts
        ),
        "attention beside a state layer": any(attention and state for attention, state, _ in parts),
        "chunked attention": any(config.chunks),
        "attention sinks": config.sinks,
        "gated attention": config.attention_gate,
        "ALiBi": config.alibi != 0,
        "learned positions": config.learned_positions > 0,
        "attention in both directions": config.bidirectional,
        "LayerNorm": config.layer_norm,
        "norms after the residual sum": config.post_residual_norms,
        "no norm before attention and MLP": not config.input_norms,
        "a layer without a norm before attention": any(not part.input_norm for part in config.parts),
        "a norm of the embedding": config.embedding_norm,
        "parallel attention and MLP": config.parallel,
        "an MLP without gate": not config.gated,
        f"the activation {config.activation}": config.activation not in {"silu", "gelu_tanh"},
        "norms over all heads": config.qk_norm == "whole",
        "norms after the rotation": config.qk_norm_rotated,
        "clipped queries and keys": config.qkv_clip is not None,
        "a temperature of queries": config.query_temperature is not None,
        "a bias of the head": config.head_bias,
    }
    return frozenset(name for name, present in found.items() if present)


def require_features(config: ModelConfig, known: frozenset[str], backend: str) -> None:
    """Raises `UnsupportedModelError` that names what `backend` does not compute."""
    unknown = sorted(features(config) - known)
    if unknown:
        raise UnsupportedModelError(f"{config.architecture}: {backend} does not compute {', '.join(unknown)}")

"""The families with state layers in GGUF files: a row each, as in `gguf_families`."""

from __future__ import annotations

from octavo_inference.checkpoints.gguf_experts import Fields
from octavo_inference.checkpoints.gguf_experts import experts as mixture
from octavo_inference.checkpoints.gguf_families import GgufFamily, granite
from octavo_inference.checkpoints.gguf_settings import GgufSettings
from octavo_inference.checkpoints.gguf_states import gated_delta, mamba2, parts_of, short_conv
from octavo_inference.common.errors import UnsupportedModelError
from octavo_inference.models.layers import LayerParts


def _biases(settings: GgufSettings) -> Fields:
    """What the first layer cannot tell: it may have no attention, or no MLP."""
    found = {name.rpartition(".")[0].rpartition(".")[2] for name in settings.file.tensors if name.endswith(".bias")}
    return {
        "qkv_bias": "attn_q" in found or "attn_k" in found,
        "output_bias": "attn_output" in found,
        "mlp_bias": "ffn_up" in found,
    }


def _hybrid(settings: GgufSettings) -> Fields:
    return {**_biases(settings), "parts": parts_of(settings), **_inner(settings)}


def _inner(settings: GgufSettings) -> Fields:
    """Inner elements of dense MLPs: those of the first one."""
    sizes = (settings.file.tensors.get(f"blk.{layer}.ffn_up.weight") for layer in range(settings.layers()))
    return {"intermediate": next((tensor.shape[0] for tensor in sizes if tensor is not None), 1)}


def _granite_hybrid(settings: GgufSettings) -> Fields:
    """Granite 4 and Bamba; the first has no rotation, unless all of its layers are attention."""
    shared = settings.count("expert_shared_feed_forward_length", 0, least=0)
    inner = settings.count("feed_forward_length", 1)
    experts = mixture(settings, scoring="softmax_of_chosen", intermediate=inner, shared=shared)
    return {
        **granite(settings),
        **experts,
        **_hybrid(settings),
        "state": mamba2(settings),
        "rotated": () if settings.flag("rope.scaling.finetuned", default=False) else (False,) * settings.layers(),
    }


def _falcon_h1(settings: GgufSettings) -> Fields:
    """Its multipliers are in the weights."""
    return {**_hybrid(settings), "state": mamba2(settings)}


def _nemotron_h(settings: GgufSettings) -> Fields:
    if settings.get("moe_latent_size"):
        raise UnsupportedModelError(
            f"{settings.file.path}: experts on a latent ({settings.architecture}.moe_latent_size) are not supported in "
            f"{settings.architecture} models; supported are experts on the hidden state"
        )
    shared = settings.count("expert_shared_feed_forward_length", 0, least=0)
    groups = settings.count("expert_group_count", 1)
    experts = mixture(
        settings,
        scoring="sigmoid",
        normalized=settings.flag("expert_weights_norm", default=True),
        scale=settings.short("expert_weights_scale", 1.0),
        groups=groups,
        chosen_groups=settings.count("expert_group_used_count", groups),
        group_score="best_two",
        shared=shared,
    )
    return {
        **experts,
        **_hybrid(settings),
        "activation": "relu2",
        "gated": False,
        "rotated": (False,) * settings.layers(),
        "state": mamba2(settings),
    }


def _mamba2(settings: GgufSettings) -> Fields:
    """State layers alone; attention's sizes are those of no layer."""
    return {
        **_biases(settings),
        "heads": 1,
        "kv_heads": 1,
        "intermediate": 1,
        "rotated": (False,) * settings.layers(),
        "parts": (LayerParts(attention=False, state=True, feed_forward="none"),) * settings.layers(),
        "state": mamba2(settings),
    }


def _lfm2(settings: GgufSettings) -> Fields:
    return {**_hybrid(settings), "qk_norm": "head", "state": short_conv(settings)}


def _lfm2_moe(settings: GgufSettings) -> Fields:
    scale = settings.short("expert_weights_scale", 1.0)
    return {**mixture(settings, scoring="sigmoid", normalized=True, scale=scale), **_lfm2(settings)}


def _qwen(settings: GgufSettings) -> Fields:
    """Qwen3-Next and Qwen3.5."""
    inner = settings.get("expert_feed_forward_length", 0)
    shared = settings.count("expert_shared_feed_forward_length", inner or 1)
    return {
        **mixture(settings, normalized=True, shared=shared, shared_gate=True),
        **_hybrid(settings),
        "attention_gate": True,
        "qk_norm": "head",
        "state": gated_delta(settings),
    }


_ONE_NORM = {"post_norm": "attn_norm"}
_QWEN = {"post_norm": "post_attention_norm"}
_LFM2 = {"final_norm": "token_embd_norm"}

HYBRIDS: dict[str, GgufFamily] = {
    "falcon-h1": GgufFamily(_falcon_h1),
    "granitehybrid": GgufFamily(_granite_hybrid, adjacent=True, partial=True, whole=True),
    "lfm2": GgufFamily(_lfm2, _LFM2, theta=1_000_000.0),
    "lfm2moe": GgufFamily(_lfm2_moe, _LFM2, theta=1_000_000.0),
    "mamba2": GgufFamily(_mamba2),
    "nemotron_h": GgufFamily(_nemotron_h, _ONE_NORM),
    "nemotron_h_moe": GgufFamily(_nemotron_h, _ONE_NORM),
    "qwen3next": GgufFamily(_qwen, _QWEN, partial=True),
    "qwen35": GgufFamily(_qwen, _QWEN, partial=True, tiled=True),
    "qwen35moe": GgufFamily(_qwen, _QWEN, partial=True, tiled=True),
}

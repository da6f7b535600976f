"""The families of decoders in GGUF files: a row each, of flags and names. Facts are those of llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from octavo_inference.checkpoints.gguf_experts import SIGMOID, Fields, deepseek_experts, experts
from octavo_inference.checkpoints.gguf_latent import latent_fields
from octavo_inference.checkpoints.gguf_settings import GgufSettings
from octavo_inference.checkpoints.gguf_windows import every_nth, windows
from octavo_inference.common.errors import UnsupportedModelError
from octavo_inference.models.layers import LayerParts

Names = dict[str, str]

# Gemma's 27B models scale queries by hidden size / heads; a GGUF file identifies them only by their layer count.
_WIDE_QUERIES = frozenset({("gemma2", 46), ("gemma3", 62)})
# Layers and vocabulary of the one model with sigmoid scores among the deepseek2 files that do not state them.
_GLM_4_7_LITE = frozenset({(47, 154_880), (48, 154_880)})
_GEMMA2_NORMS = {"attention_output_norm": "post_attention_norm", "mlp_output_norm": "post_ffw_norm"}
_OLMO2 = {"input_norm": "", "post_norm": "", **_GEMMA2_NORMS}


def _same(_: GgufSettings) -> Fields:
    return {}


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """`fields(settings)`: what differs from a plain decoder. `names`: tensors with other names than usual, "" for none.

    `adjacent`: rotary pairs are neighbours, (2i, 2i + 1), because the architecture's are, or because the converter has
    sorted the rows of a half-split one. `partial`: the file may rotate a part of each head. `theta`: the default base.
    `whole`: the converter sorts the rows of whole heads, although a part of them is rotated.
    `tiled`: value heads of a gated delta net are sorted by their place among those of a key head.
    """

    fields: Callable[[GgufSettings], Fields] = _same
    names: Names = field(default_factory=dict)
    adjacent: bool = False
    partial: bool = False
    theta: float = 10_000.0
    whole: bool = False
    tiled: bool = False


def _llama(settings: GgufSettings) -> Fields:
    """Mistral's window, Mixtral's experts."""
    return {"windows": windows(settings), **experts(settings, normalized=True)}


def _phi3(settings: GgufSettings) -> Fields:
    return {"windows": windows(settings)}


def _qwen2(settings: GgufSettings) -> Fields:
    """No window: llama.cpp gives these none, so a file of a model that has one is refused."""
    window, context = settings.get("attention.sliding_window", 0), settings.get("context_length")
    if isinstance(window, int) and isinstance(context, int) and 0 < window < context:
        raise UnsupportedModelError(
            f"{settings.file.path}: {settings.architecture}.attention.sliding_window is {window} of {context} tokens: "
            f"GGUF files of {settings.architecture} models do not say which layers have it; use the safetensors"
        )
    return {}


def _qwen3(settings: GgufSettings) -> Fields:
    return {"qk_norm": "head", **_qwen2(settings)}


def _smollm3(settings: GgufSettings) -> Fields:
    return {"rotated": every_nth(settings, 4), **_qwen2(settings)}


def granite(settings: GgufSettings) -> Fields:
    """Granite's multipliers."""
    return {
        "embedding_scale": settings.short("embedding_scale", 1.0),
        "residual_scale": settings.short("residual_scale", 1.0),
        "logit_scale": 1 / (settings.cap("logit_scale", 1.0) or 1.0),
        **_qwen2(settings),
    }


def _granite_moe(settings: GgufSettings) -> Fields:
    inner = settings.count("feed_forward_length")
    shared = settings.count("expert_shared_feed_forward_length", 0, least=0)
    return {
        **granite(settings),
        **experts(settings, scoring="softmax_of_chosen", intermediate=inner, shared=shared),
    }


def _gemma(settings: GgufSettings) -> Fields:
    return {"activation": "gelu_tanh", "embedding_scale": settings.count("embedding_length") ** 0.5}


def _gemma2(settings: GgufSettings) -> Fields:
    return {
        **_gemma(settings),
        "windows": windows(settings, pattern=2),
        "attention_softcap": settings.cap("attn_logit_softcapping", 50.0),
        "logit_softcap": settings.cap("final_logit_softcapping", 30.0),
        "query_scale": _gemma_scale(settings),
        "output_norms": True,
    }


def _gemma3(settings: GgufSettings) -> Fields:
    return {
        **_gemma(settings),
        "windows": windows(settings, pattern=6),
        "query_scale": _gemma_scale(settings),
        "local_rope_theta": settings.number("rope.freq_base_swa", 10000.0),
        "qk_norm": "head",
        "output_norms": True,
    }


def _gemma_scale(settings: GgufSettings) -> float | None:
    hidden, heads = settings.count("embedding_length"), settings.widest("attention.head_count")
    head_dim = settings.count("attention.key_length", hidden // heads)
    wide = (settings.architecture, settings.layers()) in _WIDE_QUERIES
    return settings.cap("attention.scale", (hidden // heads if wide else head_dim) ** -0.5)


def _command_r(settings: GgufSettings) -> Fields:
    return {
        "layer_norm": True,
        "parallel": True,
        "shared_norm": True,
        "logit_scale": settings.short("logit_scale", 1.0),
        "qk_norm": "head" if "blk.0.attn_q_norm.weight" in settings.file.tensors else None,
    }


def _cohere2(settings: GgufSettings) -> Fields:
    local = windows(settings, pattern=4)
    return {**_command_r(settings), "windows": local, "rotated": tuple(window is not None for window in local)}


def _exaone4(settings: GgufSettings) -> Fields:
    local = windows(settings, pattern=4)
    rotated = tuple(window is not None for window in local)
    return {"input_norms": False, "output_norms": True, "qk_norm": "head", "windows": local, "rotated": rotated}


def _olmo(settings: GgufSettings) -> Fields:
    return {"layer_norm": True, "qkv_clip": settings.cap("attention.clamp_kqv", 0.0)}


def _olmo2(settings: GgufSettings) -> Fields:
    """OLMo 2 and 3; layers with a window are rotated without scaling."""
    base = settings.number("rope.freq_base", 10_000.0)
    return {
        "input_norms": False,
        "output_norms": True,
        "qk_norm": "whole",
        "windows": windows(settings, pattern=4),
        "local_rope_theta": settings.number("rope.freq_base_swa", base),
    }


def _olmoe(settings: GgufSettings) -> Fields:
    inner = settings.count("expert_feed_forward_length", settings.count("feed_forward_length"))
    return {"qk_norm": "whole", **experts(settings, normalized=False, intermediate=inner)}


def _glm4(_: GgufSettings) -> Fields:
    return {"output_norms": True}


def _starcoder2(_: GgufSettings) -> Fields:
    return {"layer_norm": True, "gated": False, "activation": "gelu_tanh"}


def _learned(settings: GgufSettings) -> Fields:
    return {
        **_starcoder2(settings),
        "rotated": (False,) * settings.layers(),
        "learned_positions": settings.count("context_length"),
    }


def _stablelm(settings: GgufSettings) -> Fields:
    parallel = "blk.0.ffn_norm.weight" not in settings.file.tensors
    qk_norm = "head" if "blk.0.attn_q_norm.weight" in settings.file.tensors else None
    return {"layer_norm": True, "parallel": parallel, "shared_norm": parallel, "qk_norm": qk_norm}


def _phi2(_: GgufSettings) -> Fields:
    return {
        "layer_norm": True, "parallel": True, "shared_norm": True, "gated": False, "activation": "gelu_tanh",
        "head_bias": True,
    }  # fmt: skip


def _neox(settings: GgufSettings) -> Fields:
    parallel = settings.flag("use_parallel_residual", default=True)
    return {"layer_norm": True, "gated": False, "activation": "gelu", "parallel": parallel}


def _bloom(settings: GgufSettings) -> Fields:
    return {
        "layer_norm": True, "gated": False, "activation": "gelu_tanh", "alibi": 1.0, "embedding_norm": True,
        "rotated": (False,) * settings.layers(),
    }  # fmt: skip


def _mpt(settings: GgufSettings) -> Fields:
    if settings.number("attention.max_alibi_bias", 8.0) != 8:
        raise UnsupportedModelError(
            f"{settings.file.path}: mpt.attention.max_alibi_bias is "
            f"{settings.get('attention.max_alibi_bias')}, in mpt models 8 is supported"
        )
    return {
        "layer_norm": True, "gated": False, "activation": "gelu", "alibi": 1.0,
        "rotated": (False,) * settings.layers(), "qkv_clip": settings.cap("attention.clamp_kqv", 0.0),
    }  # fmt: skip


def _falcon(settings: GgufSettings) -> Fields:
    shared = "blk.0.attn_norm_2.weight" not in settings.file.tensors
    return {
        "layer_norm": True, "gated": False, "activation": "gelu", "parallel": True, "shared_norm": shared,
    }  # fmt: skip


def _nemotron(_: GgufSettings) -> Fields:
    return {"layer_norm": True, "gated": False, "activation": "relu2"}


def _apertus(_: GgufSettings) -> Fields:
    return {"qk_norm": "head", "gated": False, "activation": "xielu"}


def _arcee(_: GgufSettings) -> Fields:
    return {"gated": False, "activation": "relu2"}


def _minicpm(settings: GgufSettings) -> Fields:
    hidden, layers = settings.count("embedding_length"), settings.layers()
    return {
        "embedding_scale": settings.short("embedding_scale", 12.0),
        "residual_scale": settings.short("residual_scale", 1.4 / layers**0.5),
        "logit_scale": 1 / settings.short("logit_scale", hidden / 256),
    }


def _hunyuan(_: GgufSettings) -> Fields:
    return {"qk_norm": "head", "qk_norm_rotated": True}


def _deci(settings: GgufSettings) -> Fields:
    heads, keys, inner = (
        settings.per_layer(key) for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
    )
    if heads is None or keys is None or inner is None:
        return {}
    linear = next((layer for layer, (q, k) in enumerate(zip(heads, keys, strict=True)) if q and not k), None)
    if linear is not None:
        raise UnsupportedModelError(
            f"{settings.file.path}: layer {linear} has a matrix in the place of attention "
            "(deci.attention.head_count_kv is 0), which is not supported in deci models; supported are layers with "
            "attention, or without it"
        )
    parts = tuple(
        LayerParts(
            attention=of_k > 0,
            feed_forward="dense" if width else "none",
            heads=of_q or None,
            kv_heads=of_k or None,
            intermediate=width or None,
        )
        for of_q, of_k, width in zip(heads, keys, inner, strict=True)
    )
    return {"parts": parts}


def _qwen2_moe(settings: GgufSettings) -> Fields:
    inner = settings.count("feed_forward_length")
    shared = settings.count("expert_shared_feed_forward_length", inner)
    return {**_qwen2(settings), **experts(settings, normalized=False, shared=shared, shared_gate=True)}


def _qwen3_moe(settings: GgufSettings) -> Fields:
    return {**_qwen3(settings), **experts(settings, normalized=True)}


def _glm4_moe(settings: GgufSettings) -> Fields:
    qk_norm = "head" if "blk.0.attn_q_norm.weight" in settings.file.tensors else None
    return {"qk_norm": qk_norm, **deepseek_experts(settings)}


def _dots1(settings: GgufSettings) -> Fields:
    return {"qk_norm": "head", "windows": windows(settings, pattern=0), **deepseek_experts(settings)}


def _ernie_moe(settings: GgufSettings) -> Fields:
    shared = settings.count("expert_shared_feed_forward_length", 0, least=0)
    return experts(settings, normalized=True, shared=shared)


def _minimax_m2(settings: GgufSettings) -> Fields:
    return {"qk_norm": "whole", **experts(settings, scoring="sigmoid", normalized=True)}


def _gpt_oss(settings: GgufSettings) -> Fields:
    return {
        "sinks": True,
        "windows": windows(settings, pattern=2),
        **experts(settings, scoring="softmax_of_chosen", clamp=7.0),
    }


def _llama4(settings: GgufSettings) -> Fields:
    """What llama.cpp knows of the family and files do not say: chunks of 8,192 and their pattern, temperatures."""
    inner, rotated = settings.count("expert_feed_forward_length"), every_nth(settings, 4)
    normed = settings.count("expert_count") != 128
    return {
        "rotated": rotated,
        "chunks": tuple(settings.count("attention.chunk_size", 8192) if each else None for each in rotated),
        "qk_norm": "head" if normed else None,
        "qk_norm_rotated": normed,
        "query_temperature": (8192.0, 0.1),
        **experts(settings, scoring="sigmoid", normalized=False, input_scaled=True, shared=inner),
    }


def _deepseek2(settings: GgufSettings) -> Fields:
    if settings.get("attention.temperature_scale"):
        raise UnsupportedModelError(
            f"{settings.file.path}: deepseek2.attention.temperature_scale: a temperature of queries that grows with "
            "the position is not supported in deepseek2 models"
        )
    if not settings.get("expert_count"):
        return latent_fields(settings)
    embedding = settings.file.tensors.get("token_embd.weight")
    size = (settings.layers(), 0 if embedding is None else embedding.shape[0])
    return {**latent_fields(settings), **deepseek_experts(settings, gating=SIGMOID if size in _GLM_4_7_LITE else 1)}


def _minicpm3(settings: GgufSettings) -> Fields:
    """Scales are llama.cpp's constants: files do not have them."""
    hidden, layers = settings.count("embedding_length"), settings.layers()
    scales = {"embedding_scale": 12.0, "residual_scale": 1.4 / layers**0.5, "logit_scale": 256 / hidden}
    return {**scales, **latent_fields(settings)}


FAMILIES: dict[str, GgufFamily] = {
    "llama": GgufFamily(_llama, adjacent=True),
    "qwen2": GgufFamily(_qwen2),
    "qwen3": GgufFamily(_qwen3),
    "smollm3": GgufFamily(_smollm3, adjacent=True),
    "granite": GgufFamily(granite, adjacent=True),
    "phi3": GgufFamily(_phi3, partial=True),
    "gemma": GgufFamily(_gemma),
    "gemma2": GgufFamily(_gemma2, _GEMMA2_NORMS),
    "gemma3": GgufFamily(_gemma3, _GEMMA2_NORMS, theta=1_000_000.0),
    "apertus": GgufFamily(_apertus),
    "arcee": GgufFamily(_arcee, adjacent=True),
    "bloom": GgufFamily(_bloom),
    "command-r": GgufFamily(_command_r, adjacent=True),
    "cohere2": GgufFamily(_cohere2, adjacent=True),
    "deepseek2": GgufFamily(_deepseek2, adjacent=True, partial=True),
    "minicpm3": GgufFamily(_minicpm3, partial=True),
    "deci": GgufFamily(_deci, adjacent=True),
    "ernie4_5": GgufFamily(adjacent=True),
    "exaone": GgufFamily(),
    "exaone4": GgufFamily(_exaone4, _OLMO2),
    "falcon": GgufFamily(_falcon, {"input_norm": "attn_norm_2", "post_norm": "attn_norm"}),
    "chatglm": GgufFamily(adjacent=True, partial=True),
    "glm4": GgufFamily(_glm4, _GEMMA2_NORMS, adjacent=True, partial=True),
    "gpt2": GgufFamily(_learned),
    "gptneox": GgufFamily(_neox, partial=True),
    "hunyuan-dense": GgufFamily(_hunyuan),
    "minicpm": GgufFamily(_minicpm, adjacent=True),
    "mpt": GgufFamily(_mpt),
    "nemotron": GgufFamily(_nemotron, partial=True),
    "olmo": GgufFamily(_olmo, {"input_norm": "", "post_norm": "", "final_norm": ""}, adjacent=True),
    "olmo2": GgufFamily(_olmo2, _OLMO2),
    "phi2": GgufFamily(_phi2, partial=True),
    "seed_oss": GgufFamily(names={"post_norm": "post_attention_norm"}),
    "stablelm": GgufFamily(_stablelm, partial=True),
    "starcoder": GgufFamily(_learned),
    "starcoder2": GgufFamily(_starcoder2),
    "dots1": GgufFamily(_dots1),
    "ernie4_5-moe": GgufFamily(_ernie_moe, adjacent=True),
    "glm4moe": GgufFamily(_glm4_moe, {"post_norm": "post_attention_norm"}, partial=True),
    "gpt-oss": GgufFamily(_gpt_oss, {"post_norm": "post_attention_norm"}),
    "granitemoe": GgufFamily(_granite_moe, adjacent=True),
    "llama4": GgufFamily(_llama4, adjacent=True),
    "minimax-m2": GgufFamily(_minimax_m2, partial=True),
    "olmoe": GgufFamily(_olmoe),
    "qwen2moe": GgufFamily(_qwen2_moe),
    "qwen3moe": GgufFamily(_qwen3_moe),
}

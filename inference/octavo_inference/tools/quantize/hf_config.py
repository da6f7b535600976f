"""A decoder's configuration as config.json of transformers, for weights that came from a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo_inference.common.errors import ModelError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.rope import LinearScaling, Llama3Scaling, LongScaling, YarnScaling

Json = dict[str, Any]


def config_to_hf(config: ModelConfig) -> Json:
    """config.json that `config_from_hf` reads as the same configuration. ModelError where a family cannot state it."""
    if config.architecture not in FAMILIES:
        raise ModelError(
            f"architecture {config.architecture!r} has no config.json here ({', '.join(FAMILIES)} have): quantize its "
            "safetensors folder"
        )
    bos = {} if config.bos_token_id is None else {"bos_token_id": config.bos_token_id}
    return {
        **FAMILIES[config.architecture](config),
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": _scaling(config),
        "tie_word_embeddings": config.tied_embeddings,
        "eos_token_id": list(config.eos_token_ids),
        **bos,
    }


def _llama(config: ModelConfig) -> Json:
    if config.windows:
        if config.qkv_bias or config.output_bias or config.mlp_bias:
            raise ModelError("a Llama with a sliding window and biases has no class of transformers")
        return {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "hidden_act": "silu",
            "sliding_window": config.windows[0],
        }
    return _with_biases("LlamaForCausalLM", "llama", config)


def _with_biases(name: str, kind: str, config: ModelConfig) -> Json:
    """A class whose one flag gives biases to q, k, v and o."""
    if config.qkv_bias != config.output_bias:
        raise ModelError(f"{name} has biases of q, k, v and o or of none of them; this model has some")
    return {
        "architectures": [name],
        "model_type": kind,
        "hidden_act": "silu",
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
    }


def _qwen2(_: ModelConfig) -> Json:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "use_sliding_window": False,
    }


def _qwen3(config: ModelConfig) -> Json:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": config.qkv_bias,
        "use_sliding_window": False,
    }


def _smollm3(config: ModelConfig) -> Json:
    return {
        **_with_biases("SmolLM3ForCausalLM", "smollm3", config),
        "use_sliding_window": False,
        "no_rope_layers": [int(rotated) for rotated in config.rotated],
    }


def _granite(config: ModelConfig) -> Json:
    return {
        **_with_biases("GraniteForCausalLM", "granite", config),
        "embedding_multiplier": config.embedding_scale,
        "residual_multiplier": config.residual_scale,
        "attention_multiplier": config.score_scale,
        "logits_scaling": 1 / config.logit_scale,
    }


def _phi3(config: ModelConfig) -> Json:
    scaling = config.rope_scaling
    original = scaling.original_max_position if isinstance(scaling, LongScaling) else config.max_positions
    rotary = config.rotary_dim or config.head_dim
    return {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "hidden_act": "silu",
        "partial_rotary_factor": rotary / config.head_dim,
        "original_max_position_embeddings": original,
        "sliding_window": config.windows[0] if config.windows else None,
    }


def _gemma2(config: ModelConfig) -> Json:
    return {
        **_gemma("Gemma2ForCausalLM", "gemma2", config),
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.logit_softcap,
    }


def _gemma3(config: ModelConfig) -> Json:
    return {
        **_gemma("Gemma3ForCausalLM", "gemma3_text", config),
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.logit_softcap,
        "rope_local_base_freq": config.local_rope_theta,
    }


def _gemma(name: str, kind: str, config: ModelConfig) -> Json:
    windows = {window for window in config.windows if window}
    kinds = ["sliding_attention" if window else "full_attention" for window in config.windows]
    return {
        "architectures": [name],
        "model_type": kind,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(config.score_scale**-2, 3),
        "sliding_window": max(windows, default=None),
        **({"layer_types": kinds} if windows else {}),
    }


FAMILIES: dict[str, Callable[[ModelConfig], Json]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "smollm3": _smollm3,
    "granite": _granite,
    "phi3": _phi3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
}


def _scaling(config: ModelConfig) -> Json | None:
    scaling = config.rope_scaling
    if scaling is None:
        return None
    if isinstance(scaling, Llama3Scaling):
        return {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position,
        }
    if isinstance(scaling, LinearScaling):
        return {"rope_type": "linear", "factor": scaling.factor}
    if isinstance(scaling, YarnScaling):
        return {
            "rope_type": "yarn",
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.original_max_position,
            "attention_factor": scaling.magnitude,
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "truncate": scaling.truncate,
        }
    if isinstance(scaling, LongScaling):
        return {
            "rope_type": "longrope",
            "short_factor": list(scaling.short),
            "long_factor": list(scaling.long),
            "original_max_position_embeddings": scaling.original_max_position,
            "attention_factor": scaling.magnitude,
        }
    raise ModelError(f"the rotary scaling {type(scaling).__name__} has no config.json here")

"""Hugging Face folders (config.json + safetensors) to the canonical description and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from octavo_inference.errors import ModelError, UnsupportedModelError
from octavo_inference.model.config import ModelConfig
from octavo_inference.model.jsonfile import read_json
from octavo_inference.model.rope import Llama3Scaling
from octavo_inference.model.safetensors import Checkpoint, RawTensor
from octavo_inference.model.weights import LayerWeights, Tensor, Weights, bf16_values, exact_half

ARCHITECTURES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}


def optional_json(path: Path) -> dict[str, Any]:
    """A JSON object, {} when there is no such file."""
    return read_json(path, dict[str, Any], "a JSON object") if path.exists() else {}


def config_from_hf(folder: Path, checkpoint: Checkpoint, digest: str) -> ModelConfig:
    """Sizes and flags of the decoder. Raises `ModelError` for an architecture or feature not supported."""
    path = folder / "config.json"
    data = optional_json(path)
    names = data.get("architectures") or [None]
    if names[0] not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{path}: architecture {names[0]!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )

    def number(key: str, default: float | None = None) -> float:
        value = data.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{path}: {key} is {value!r}, expected a number")
        return value

    architecture = ARCHITECTURES[names[0]]
    _refuse_features(path, data, architecture)
    heads, hidden = int(number("num_attention_heads")), int(number("hidden_size"))
    if heads <= 0 or hidden <= 0:
        raise ModelError(f"{path}: {heads} heads of a hidden size of {hidden}")
    # transformers 5 writes rope_parameters, 4 and before rope_theta and rope_scaling.
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    bos = data.get("bos_token_id")
    return ModelConfig(
        architecture=architecture,
        layers=int(number("num_hidden_layers")),
        hidden=hidden,
        heads=heads,
        kv_heads=int(number("num_key_value_heads", heads)),
        head_dim=int(number("head_dim", hidden // heads)),
        intermediate=int(number("intermediate_size")),
        vocab=int(number("vocab_size")),
        max_positions=int(number("max_position_embeddings")),
        rope_theta=float(rope.get("rope_theta") or number("rope_theta", 10000.0)),
        norm_eps=number("rms_norm_eps", 1e-6),
        tied_embeddings="lm_head.weight" not in checkpoint.tensors,
        eos_token_ids=_eos(folder, data),
        bos_token_id=bos if isinstance(bos, int) else None,
        rope_scaling=_rope_scaling(path, rope),
        qkv_bias="model.layers.0.self_attn.q_proj.bias" in checkpoint.tensors,
        digest=digest,
    )


def weights_from_hf(folder: Path, checkpoint: Checkpoint, config: ModelConfig) -> Weights:
    """Canonical weights: views of the files for f32 and bf16, exact conversions of f16."""

    def take(name: str, shape: tuple[int, ...]) -> RawTensor:
        raw = checkpoint.tensors.get(name)
        if raw is None:
            raise ModelError(f"{folder}: tensor {name} is missing")
        if raw.shape != shape:
            raise ModelError(f"{folder}: tensor {name} has shape {raw.shape}, config.json says {shape}")
        if raw.dtype not in ("F32", "BF16", "F16"):
            raise ModelError(f"{folder}: tensor {name} has dtype {raw.dtype}, supported are F32, BF16 and F16")
        return raw

    def matrix(name: str, rows: int, columns: int) -> Tensor:
        raw = take(name, (rows, columns))
        if raw.dtype == "F16":
            return exact_half(raw.data.view(np.float16).reshape(raw.shape))
        if raw.dtype == "BF16":
            return Tensor("bf16", raw.shape, raw.data.view(np.uint16).reshape(raw.shape))
        return Tensor("f32", raw.shape, raw.data.view(np.float32).reshape(raw.shape))

    def vector(name: str, size: int) -> Tensor:
        raw = take(name, (size,))
        if raw.dtype == "BF16":
            return Tensor("f32", (size,), bf16_values(raw.data.view(np.uint16)))
        return Tensor(
            "f32", (size,), raw.data.view(np.float16 if raw.dtype == "F16" else np.float32).astype(np.float32)
        )

    hidden, q_width, kv_width = config.hidden, config.heads * config.head_dim, config.kv_heads * config.head_dim
    layers = []
    for layer in range(config.layers):
        p = f"model.layers.{layer}."
        bias = config.qkv_bias
        layers.append(
            LayerWeights(
                input_norm=vector(p + "input_layernorm.weight", hidden),
                q=matrix(p + "self_attn.q_proj.weight", q_width, hidden),
                k=matrix(p + "self_attn.k_proj.weight", kv_width, hidden),
                v=matrix(p + "self_attn.v_proj.weight", kv_width, hidden),
                o=matrix(p + "self_attn.o_proj.weight", hidden, q_width),
                post_norm=vector(p + "post_attention_layernorm.weight", hidden),
                gate=matrix(p + "mlp.gate_proj.weight", config.intermediate, hidden),
                up=matrix(p + "mlp.up_proj.weight", config.intermediate, hidden),
                down=matrix(p + "mlp.down_proj.weight", hidden, config.intermediate),
                q_bias=vector(p + "self_attn.q_proj.bias", q_width) if bias else None,
                k_bias=vector(p + "self_attn.k_proj.bias", kv_width) if bias else None,
                v_bias=vector(p + "self_attn.v_proj.bias", kv_width) if bias else None,
            )
        )
    embedding = matrix("model.embed_tokens.weight", config.vocab, hidden)
    head = embedding if config.tied_embeddings else matrix("lm_head.weight", config.vocab, hidden)
    return Weights(embedding, tuple(layers), vector("model.norm.weight", hidden), head)


def _refuse_features(path: Path, data: dict[str, Any], architecture: str) -> None:
    if data.get("quantization_config"):
        method = data["quantization_config"].get("quant_method")
        raise ModelError(
            f"{path}: quantisation {method!r} is not supported; use bf16, f16 or f32 weights or a GGUF file"
        )
    if data.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f"{path}: hidden_act {data['hidden_act']!r} is not supported (silu is)")
    for key in ("attention_bias", "mlp_bias"):
        if architecture == "llama" and data.get(key):
            raise UnsupportedModelError(f"{path}: {key} is not supported for {data['architectures'][0]}")
    window, context = data.get("sliding_window"), data.get("max_position_embeddings")
    used = data.get("use_sliding_window", architecture != "qwen2")
    if used and isinstance(window, int) and isinstance(context, int) and window < context:
        raise UnsupportedModelError(f"{path}: sliding-window attention ({window} of {context} tokens) is not supported")
    if data.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(f"{path}: partial_rotary_factor {data['partial_rotary_factor']} is not supported")


def _rope_scaling(path: Path, rope: dict[str, Any]) -> Llama3Scaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise UnsupportedModelError(f"{path}: rope scaling {kind!r} is not supported (llama3 is)")
    try:
        return Llama3Scaling(
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_max_position=int(rope["original_max_position_embeddings"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: rope scaling llama3 is incomplete: {error}") from error


def _eos(folder: Path, data: dict[str, Any]) -> tuple[int, ...]:
    """All end-of-sequence ids: generation_config.json knows of more than config.json (Llama 3's <|eot_id|>)."""
    ids: list[int] = []
    for value in (data.get("eos_token_id"), optional_json(folder / "generation_config.json").get("eos_token_id")):
        ids += value if isinstance(value, list) else [value] if isinstance(value, int) else []
    return tuple(dict.fromkeys(ids))

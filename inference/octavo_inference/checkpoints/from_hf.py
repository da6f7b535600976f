"""Loads Hugging Face folders (config.json + safetensors) into the canonical configuration and weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.hf_rope import read_rope
from octavo_inference.checkpoints.jsonfile import optional_json
from octavo_inference.checkpoints.quantized import QuantizedReader, quantized_reader
from octavo_inference.checkpoints.safetensors import Checkpoint, RawTensor
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.config import Activation, ModelConfig
from octavo_inference.models.weights import LayerWeights, Matrix, Tensor, Weights, bf16_values

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "SmolLM3ForCausalLM": "smollm3",
    "GraniteForCausalLM": "granite",
    "Phi3ForCausalLM": "phi3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
}
_GEMMA = frozenset({"gemma2", "gemma3"})
_THETA = {"gemma3": 1_000_000.0, "smollm3": 2_000_000.0}
_ACTIVATIONS: dict[object, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
# Defaults of keys that the config of a language model inside a multimodal one may omit.
_TEXT_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
}
# Tensor name prefixes of a language model: stand-alone, and inside multimodal checkpoints, new and old.
_PREFIXES = ("model.", "model.language_model.", "language_model.model.")


def config_from_hf(folder: Path, checkpoint: Checkpoint, digest: str) -> ModelConfig:
    """The decoder's configuration. Raises `ModelError`; `UnsupportedModelError` for unsupported features."""
    path = folder / "config.json"
    data = optional_json(path)
    names = data.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{path}: architecture {name!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    if isinstance(data.get("text_config"), dict):
        data = _TEXT_DEFAULTS | data | data["text_config"]

    def number(key: str, default: float | None = None) -> float:
        value = data.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{path}: {key} is {value!r}, expected a number")
        return value

    def positive(key: str, default: float | None = None) -> float | None:
        """A factor: None for null, `default` for a missing key."""
        value = number(key, default) if data.get(key, default) is not None else None
        if value is not None and value <= 0:
            raise ModelError(f"{path}: {key} is {value}, expected more than 0")
        return value

    family = ARCHITECTURES[name]
    gemma = family in _GEMMA
    _refuse_features(path, data)
    quantized_reader(folder, checkpoint, contents=False)  # refuses unknown methods
    heads, hidden = int(number("num_attention_heads")), int(number("hidden_size"))
    if heads <= 0 or hidden <= 0:
        raise ModelError(f"{path}: {heads} heads of a hidden size of {hidden}")
    layers, head_dim = int(number("num_hidden_layers")), int(number("head_dim", hidden // heads))
    if not 0 < layers <= len(checkpoint.tensors):
        raise ModelError(f"{path}: num_hidden_layers is {layers}, the weights have {len(checkpoint.tensors)} tensors")
    rope = read_rope(path, data, head_dim, theta=_THETA.get(family, 10_000.0), partial=family == "phi3")
    if gemma:
        query_scale = number("query_pre_attn_scalar", 256) ** -0.5
    else:
        query_scale = positive("attention_multiplier") or head_dim**-0.5
    bos = data.get("bos_token_id")
    layer = language_prefix(checkpoint) + "layers.0."
    return ModelConfig(
        architecture=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(number("num_key_value_heads", heads)),
        head_dim=head_dim,
        intermediate=int(number("intermediate_size")),
        vocab=int(number("vocab_size")),
        max_positions=int(number("max_position_embeddings")),
        rope_theta=rope.theta,
        norm_eps=number("rms_norm_eps", 1e-6),
        tied_embeddings=not any(name.startswith("lm_head.") for name in checkpoint.tensors),
        eos_token_ids=eos_token_ids(folder, data),
        bos_token_id=bos if isinstance(bos, int) else None,
        rope_scaling=rope.scaling,
        rotary_dim=rope.dim,
        local_rope_theta=(rope.local_theta or 10_000.0) if family == "gemma3" else None,
        rotated=_rotated(path, data, layers) if family == "smollm3" else (),
        windows=_windows(path, data, family, layers),
        query_scale=query_scale,
        attention_softcap=positive("attn_logit_softcapping", 50.0 if family == "gemma2" else None),
        logit_softcap=positive("final_logit_softcapping", 30.0 if family == "gemma2" else None),
        activation=_activation(path, data),
        embedding_scale=hidden**0.5 if gemma else number("embedding_multiplier", 1.0),
        residual_scale=number("residual_multiplier", 1.0),
        logit_scale=1 / (positive("logits_scaling", 1.0) or 1.0),
        qkv_bias=layer + "self_attn.q_proj.bias" in checkpoint.tensors,
        output_bias=layer + "self_attn.o_proj.bias" in checkpoint.tensors,
        mlp_bias=layer + "mlp.gate_proj.bias" in checkpoint.tensors,
        qk_norm="head" if family in {"qwen3", "gemma3"} else None,
        output_norms=gemma,
        digest=digest,
    )


def weights_from_hf(folder: Path, checkpoint: Checkpoint, config: ModelConfig, *, contents: bool = True) -> Weights:
    """Canonical weights: matrices of floats are views of the files, quantized ones are read from them in pieces.

    Raises `ModelError` for tensors that do not fit config.json. Without `contents` only headers are known, not what the
    files hold: weights then have their formats and sizes, and cannot be read.
    """
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    fused = {"qkv_proj": (queries, keys, keys), "gate_up_proj": (config.intermediate, config.intermediate)}
    quantized = quantized_reader(folder, checkpoint, contents=contents, fused=fused)
    # Gemma stores the difference from 1.
    tensors = _Tensors(folder, checkpoint, quantized, norm_offset=1.0 if config.architecture in _GEMMA else 0.0)
    prefix, hidden = language_prefix(checkpoint), config.hidden
    layers = tuple(_layer(tensors, config, f"{prefix}layers.{layer}.") for layer in range(config.layers))
    embedding = tensors.table(prefix + "embed_tokens.weight", config.vocab, hidden)
    head: Matrix = embedding if config.tied_embeddings else tensors.matrix("lm_head.weight", config.vocab, hidden)
    return Weights(embedding, layers, tensors.norm(prefix + "norm.weight", hidden), head)


@dataclass(frozen=True, slots=True)
class _Tensors:
    """Reads tensors and checks their shapes against config.json. `norm_offset` is added to norm weights."""

    folder: Path
    checkpoint: Checkpoint
    quantized: QuantizedReader | None
    norm_offset: float

    def take(self, name: str, shape: tuple[int, ...]) -> RawTensor:
        raw = self.checkpoint.tensors.get(name)
        if raw is None:
            raise ModelError(f"{self.folder}: tensor {name} is missing{self._instead_of(name)}")
        if raw.shape != shape:
            raise ModelError(f"{self.folder}: tensor {name} has shape {raw.shape}, config.json says {shape}")
        if raw.dtype not in ("F32", "BF16", "F16"):
            raise ModelError(f"{self.folder}: tensor {name} has dtype {raw.dtype}, supported are F32, BF16 and F16")
        return raw

    def _instead_of(self, name: str) -> str:
        """The quantized tensors of a module whose floats are missing, such as those of an embedding."""
        module = name.removesuffix("weight")
        found = sorted(other for other in self.checkpoint.tensors if other.startswith(module))
        return f"; the checkpoint has {found[0]}, and supported there are F32, BF16 and F16" if found else ""

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        """The weights of a linear layer, which may be quantized."""
        found = None if self.quantized is None else self.quantized(name.removesuffix(".weight"), rows, columns)
        return found or self.table(name, rows, columns)

    def table(self, name: str, rows: int, columns: int) -> Tensor:
        """A matrix of floats."""
        raw = self.take(name, (rows, columns))
        if raw.dtype == "F16":
            return Tensor("f16", raw.shape, raw.data.view(np.float16).reshape(raw.shape))
        if raw.dtype == "BF16":
            return Tensor("bf16", raw.shape, raw.data.view(np.uint16).reshape(raw.shape))
        return Tensor("f32", raw.shape, raw.data.view(np.float32).reshape(raw.shape))

    def vector(self, name: str, size: int) -> Tensor:
        return Tensor("f32", (size,), self.values(name, size))

    def norm(self, name: str, size: int) -> Tensor:
        return Tensor("f32", (size,), self.values(name, size) + np.float32(self.norm_offset))

    def values(self, name: str, size: int) -> NDArray[np.float32]:
        raw = self.take(name, (size,))
        if raw.dtype == "BF16":
            return bf16_values(raw.data.view(np.uint16))
        return raw.data.view(np.float16 if raw.dtype == "F16" else np.float32).astype(np.float32)


def _layer(tensors: _Tensors, config: ModelConfig, p: str) -> LayerWeights:
    hidden, ffn, dim = config.hidden, config.intermediate, config.head_dim
    q_width, kv_width = config.heads * dim, config.kv_heads * dim
    # Phi-3 stacks q, k and v in one tensor, and gate and up in another. Quantized ones have other names than `weight`.
    if any(name.startswith(p + "self_attn.qkv_proj.") for name in tensors.checkpoint.tensors):
        q, k, v = tensors.matrix(p + "self_attn.qkv_proj.weight", q_width + 2 * kv_width, hidden).split(
            q_width, kv_width, kv_width
        )
        gate, up = tensors.matrix(p + "mlp.gate_up_proj.weight", 2 * ffn, hidden).split(ffn, ffn)
    else:
        q = tensors.matrix(p + "self_attn.q_proj.weight", q_width, hidden)
        k = tensors.matrix(p + "self_attn.k_proj.weight", kv_width, hidden)
        v = tensors.matrix(p + "self_attn.v_proj.weight", kv_width, hidden)
        gate, up = (tensors.matrix(f"{p}mlp.{name}_proj.weight", ffn, hidden) for name in ("gate", "up"))

    def optional(present: bool, read: Callable[[str, int], Tensor], name: str, size: int) -> Tensor | None:
        return read(p + name, size) if present else None

    vector, norm = tensors.vector, tensors.norm
    # Gemma, which also has norms after attention and MLP, names the norm before the MLP differently.
    before_mlp = "pre_feedforward" if config.output_norms else "post_attention"
    return LayerWeights(
        input_norm=norm(p + "input_layernorm.weight", hidden),
        q=q,
        k=k,
        v=v,
        o=tensors.matrix(p + "self_attn.o_proj.weight", hidden, q_width),
        post_norm=norm(f"{p}{before_mlp}_layernorm.weight", hidden),
        gate=gate,
        up=up,
        down=tensors.matrix(p + "mlp.down_proj.weight", hidden, ffn),
        q_bias=optional(config.qkv_bias, vector, "self_attn.q_proj.bias", q_width),
        k_bias=optional(config.qkv_bias, vector, "self_attn.k_proj.bias", kv_width),
        v_bias=optional(config.qkv_bias, vector, "self_attn.v_proj.bias", kv_width),
        o_bias=optional(config.output_bias, vector, "self_attn.o_proj.bias", hidden),
        gate_bias=optional(config.mlp_bias, vector, "mlp.gate_proj.bias", ffn),
        up_bias=optional(config.mlp_bias, vector, "mlp.up_proj.bias", ffn),
        down_bias=optional(config.mlp_bias, vector, "mlp.down_proj.bias", hidden),
        q_norm=optional(config.qk_norm is not None, norm, "self_attn.q_norm.weight", dim),
        k_norm=optional(config.qk_norm is not None, norm, "self_attn.k_norm.weight", dim),
        attention_output_norm=optional(config.output_norms, norm, "post_attention_layernorm.weight", hidden),
        mlp_output_norm=optional(config.output_norms, norm, "post_feedforward_layernorm.weight", hidden),
    )


def eos_token_ids(folder: Path, data: dict[str, Any]) -> tuple[int, ...]:
    """All end-of-sequence ids: generation_config.json may list more than config.json (Llama 3's <|eot_id|>)."""
    ids: list[int] = []
    for value in (data.get("eos_token_id"), optional_json(folder / "generation_config.json").get("eos_token_id")):
        given = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(token, int) for token in given):
            raise ModelError(f"{folder}: eos_token_id is {value!r}, expected a token id or a list of them")
        ids += given
    return tuple(dict.fromkeys(ids))


def language_prefix(checkpoint: Checkpoint) -> str:
    """Prefix of the language model's tensor names."""
    return next((p for p in _PREFIXES if p + "embed_tokens.weight" in checkpoint.tensors), _PREFIXES[0])


def _refuse_features(path: Path, data: dict[str, Any]) -> None:
    if data.get("use_bidirectional_attention"):
        raise UnsupportedModelError(f"{path}: use_bidirectional_attention is not supported")


def _activation(path: Path, data: dict[str, Any]) -> Activation:
    key = "hidden_activation" if data.get("hidden_activation") else "hidden_act"
    name = data.get(key) or "silu"
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"{path}: {key} {name!r} is not supported ({', '.join(map(str, _ACTIVATIONS))} are)"
        )
    return _ACTIVATIONS[name]


def _windows(path: Path, data: dict[str, Any], family: str, layers: int) -> tuple[int | None, ...]:
    """Each layer's window: from `layer_types`, or by the family's rule for older files without it."""
    if family in {"llama", "granite"} or data.get("sliding_window") is None:
        return ()
    if not data.get("use_sliding_window", family not in {"qwen2", "qwen3", "smollm3"}):
        return ()
    window = _count(path, data, "sliding_window", 0)
    kinds = data.get("layer_types")
    if kinds is None:
        kinds = ["sliding_attention" if local else "full_attention" for local in _local(path, data, family, layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ModelError(f"{path}: layer_types does not have one entry for each of the {layers} layers")
    unknown = {str(kind) for kind in kinds} - {"sliding_attention", "full_attention"}
    if unknown:
        raise UnsupportedModelError(f"{path}: layers of the type {', '.join(sorted(unknown))} are not supported")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _local(path: Path, data: dict[str, Any], family: str, layers: int) -> list[bool]:
    if family in {"qwen2", "qwen3"}:
        return [layer >= _count(path, data, "max_window_layers", 28, least=0) for layer in range(layers)]
    if family == "smollm3":
        return [not rotated for rotated in _rotated(path, data, layers)]
    if family not in _GEMMA:
        return [True] * layers
    every = _count(path, data, "sliding_window_pattern", 2 if family == "gemma2" else 6)
    return [(layer + 1) % every != 0 for layer in range(layers)]


def _rotated(path: Path, data: dict[str, Any], layers: int) -> tuple[bool, ...]:
    """SmolLM3: `no_rope_layers` has a 1 for layers with rotary positions; by default every fourth has none."""
    marks = data.get("no_rope_layers")
    if marks is None:
        every = _count(path, data, "no_rope_layer_interval", 4)
        return tuple((layer + 1) % every != 0 for layer in range(layers))
    if not isinstance(marks, list) or len(marks) < layers:
        raise ModelError(f"{path}: no_rope_layers does not have one entry for each of the {layers} layers")
    return tuple(bool(mark) for mark in marks[:layers])


def _count(path: Path, data: dict[str, Any], key: str, default: int, *, least: int = 1) -> int:
    value = data.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ModelError(f"{path}: {key} is {value!r}, expected a number from {least}")
    return value

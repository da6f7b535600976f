"""GGUF metadata and tensor names to the canonical description and weights."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from octavo_inference.errors import ModelError
from octavo_inference.model.config import ModelConfig
from octavo_inference.model.gguf import GgufFile, GgufTensor
from octavo_inference.model.rope import Llama3Scaling
from octavo_inference.model.weights import Format, LayerWeights, Tensor, Weights, bf16_bits, exact_half

log = logging.getLogger(__name__)

ARCHITECTURES = ("llama", "qwen2")
_FORMATS: dict[str, Format] = {"F32": "f32", "BF16": "bf16", "Q4_0": "q4_0", "Q4_1": "q4_1", "Q8_0": "q8_0"}
# Llama 3's scaling constants: GGUF keeps only the resulting factors, never these.
_LOW_FREQUENCY, _HIGH_FREQUENCY, _ORIGINAL_POSITIONS = 1.0, 4.0, 8192


def config_from_gguf(file: GgufFile, digest: str) -> ModelConfig:
    """Sizes and flags of the decoder. Raises `ModelError` for an architecture or feature not supported."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"{file.path}: architecture {architecture!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )

    def number(key: str, default: float | None = None) -> float:
        value = file.metadata.get(f"{architecture}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{file.path}: {architecture}.{key} is {value!r}, expected a number")
        return value

    hidden, heads = int(number("embedding_length")), int(number("attention.head_count"))
    if heads <= 0 or hidden <= 0:
        raise ModelError(f"{file.path}: {heads} heads of a hidden size of {hidden}")
    head_dim = int(number("attention.key_length", hidden // heads))
    _refuse_features(file, str(architecture), head_dim)
    embedding = _tensor(file, "token_embd.weight")
    theta = number("rope.freq_base", 10000.0)
    eos = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    bos = file.metadata.get("tokenizer.ggml.bos_token_id")
    return ModelConfig(
        architecture=str(architecture),
        layers=int(number("block_count")),
        hidden=hidden,
        heads=heads,
        kv_heads=int(number("attention.head_count_kv", heads)),
        head_dim=head_dim,
        intermediate=int(number("feed_forward_length")),
        vocab=embedding.shape[0],
        max_positions=int(number("context_length")),
        rope_theta=theta,
        # The file holds a float32: 1e-5 is stored as 9.99999974e-06.
        norm_eps=float(np.format_float_positional(np.float32(number("attention.layer_norm_rms_epsilon")), unique=True)),
        tied_embeddings="output.weight" not in file.tensors,
        eos_token_ids=tuple(dict.fromkeys(token for token in eos if isinstance(token, int))),
        bos_token_id=bos if isinstance(bos, int) else None,
        rope_scaling=_rope_scaling(file, head_dim, theta),
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        digest=digest,
    )


def weights_from_gguf(file: GgufFile, config: ModelConfig) -> Weights:
    """Canonical weights; matrices stay views of the file except q and k of `llama`, whose rows are put in order."""
    converted: dict[str, int] = {}

    def matrix(name: str, rows: int, columns: int, heads: int = 0) -> Tensor:
        source = _tensor(file, name, (rows, columns))
        if source.type_name not in _FORMATS:
            converted[source.type_name] = converted.get(source.type_name, 0) + 1
        # llama.cpp stores q and k of this architecture for neighbouring rotary pairs.
        order = half_split_rows(heads, config.head_dim) if heads and config.architecture == "llama" else None
        return _matrix(source, order)

    def vector(name: str, size: int) -> Tensor:
        source = _tensor(file, name, (size,))
        return Tensor("f32", (size,), _dequantize_any(source).reshape(size))

    hidden, kv_width = config.hidden, config.kv_heads * config.head_dim
    layers = []
    for layer in range(config.layers):
        p = f"blk.{layer}."
        bias = config.qkv_bias
        layers.append(
            LayerWeights(
                input_norm=vector(p + "attn_norm.weight", hidden),
                q=matrix(p + "attn_q.weight", config.heads * config.head_dim, hidden, config.heads),
                k=matrix(p + "attn_k.weight", kv_width, hidden, config.kv_heads),
                v=matrix(p + "attn_v.weight", kv_width, hidden),
                o=matrix(p + "attn_output.weight", hidden, config.heads * config.head_dim),
                post_norm=vector(p + "ffn_norm.weight", hidden),
                gate=matrix(p + "ffn_gate.weight", config.intermediate, hidden),
                up=matrix(p + "ffn_up.weight", config.intermediate, hidden),
                down=matrix(p + "ffn_down.weight", hidden, config.intermediate),
                q_bias=vector(p + "attn_q.bias", config.heads * config.head_dim) if bias else None,
                k_bias=vector(p + "attn_k.bias", kv_width) if bias else None,
                v_bias=vector(p + "attn_v.bias", kv_width) if bias else None,
            )
        )
    embedding = matrix("token_embd.weight", config.vocab, hidden)
    head = embedding if config.tied_embeddings else matrix("output.weight", config.vocab, hidden)
    if converted:
        listed = ", ".join(f"{count} × {name}" for name, count in sorted(converted.items()))
        log.info("%s: converted to bfloat16: %s (kept as they are: %s)", file.path, listed, ", ".join(_FORMATS))
    return Weights(embedding, tuple(layers), vector("output_norm.weight", hidden), head)


def half_split_rows(heads: int, head_dim: int) -> NDArray[np.int64]:
    """Row order that undoes llama.cpp's permutation: from rotary pairs (2i, 2i+1) to (i, i + head_dim/2)."""
    return np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


def _tensor(file: GgufFile, name: str, shape: tuple[int, ...] | None = None) -> GgufTensor:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise ModelError(f"{file.path}: tensor {name} is missing")
    if shape is not None and tensor.shape != shape:
        raise ModelError(f"{file.path}: tensor {name} has shape {tensor.shape}, the metadata says {shape}")
    return tensor


def _matrix(source: GgufTensor, order: NDArray[np.int64] | None) -> Tensor:
    data = source.data if order is None else source.data[order]
    kept = _FORMATS.get(source.type_name)
    if kept == "f32":
        return Tensor("f32", source.shape, data.view(np.float32))
    if kept == "bf16":
        return Tensor("bf16", source.shape, data.view(np.uint16))
    if kept is not None:
        return Tensor(kept, source.shape, data)
    if source.type_name == "F16":
        return exact_half(data.view(np.float16))
    values = _dequantize_any(GgufTensor(source.name, source.type_id, source.shape, data))
    return Tensor("bf16", source.shape, bf16_bits(values.reshape(source.shape)))


def _dequantize_any(source: GgufTensor) -> NDArray[np.float32]:
    if source.type_name == "F32":
        return source.data.view(np.float32)
    from gguf import GGMLQuantizationType  # noqa: PLC0415 -- 0.3 s to import, rarely needed
    from gguf.quants import dequantize  # noqa: PLC0415

    values: NDArray[np.float32] = dequantize(source.data, GGMLQuantizationType(source.type_id))
    return values


def _refuse_features(file: GgufFile, architecture: str, head_dim: int) -> None:
    metadata = file.metadata
    if metadata.get(f"{architecture}.expert_count"):
        raise ModelError(f"{file.path}: mixture-of-experts models are not supported")
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        raise ModelError(f"{file.path}: rope scaling {scaling!r} is not supported (Llama 3's rope_freqs is)")
    rotary = metadata.get(f"{architecture}.rope.dimension_count", head_dim)
    if rotary != head_dim:
        raise ModelError(f"{file.path}: rotary dimensions {rotary} of heads of {head_dim}: partial rotation")
    window, context = (metadata.get(f"{architecture}.{key}") for key in ("attention.sliding_window", "context_length"))
    if isinstance(window, int) and isinstance(context, int) and 0 < window < context:
        raise ModelError(f"{file.path}: sliding-window attention ({window} of {context} tokens) is not supported")


def _rope_scaling(file: GgufFile, head_dim: int, theta: float) -> Llama3Scaling | None:
    """Llama 3's scaling recovered from `rope_freqs.weight`, the per-frequency divisors llama.cpp stores."""
    if "rope_freqs.weight" not in file.tensors:
        return None
    divisors = _dequantize_any(_tensor(file, "rope_freqs.weight", (head_dim // 2,))).reshape(-1)
    scaling = Llama3Scaling(float(divisors.max()), _LOW_FREQUENCY, _HIGH_FREQUENCY, _ORIGINAL_POSITIONS)
    plain = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    if not np.allclose(plain / scaling.apply(plain, 0), divisors, rtol=1e-3):
        raise ModelError(f"{file.path}: rope_freqs.weight is not Llama 3's rope scaling")
    return scaling

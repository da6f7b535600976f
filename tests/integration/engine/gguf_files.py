"""Models of transformers as GGUF files, by the rules of llama.cpp's convert_hf_to_gguf.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

Kind = gguf.GGMLQuantizationType

# The architecture in GGUF of each kind of decoder that has one.
GGUF = {
    "llama": "llama",
    "llama-linear": "llama",
    "llama-biases": "llama",
    "mistral": "llama",
    "mistral-nemo": "llama",
    "qwen2": "qwen2",
    "qwen2-yarn": "qwen2",
    "qwen3": "qwen3",
    "smollm3": "smollm3",
    "granite": "granite",
    "phi3": "phi3",
    "phi3-short": "phi3",
    "phi3-long": "phi3",
    "phi4-mini": "phi3",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "gemma3-scaled": "gemma3",
}
_PERMUTED = {"llama", "smollm3", "granite"}
_GEMMA = {"gemma2", "gemma3"}


def write_gguf(path: Path, model: Any, architecture: str, kind: Kind = Kind.F32) -> Path:
    """Matrices in the format `kind`, vectors in float32, and the metadata that the converter writes."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if getattr(config, "head_dim", None):
        writer.add_key_length(dim)
        writer.add_value_length(dim)
    _rope(writer, architecture, config, dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture in _GEMMA:
        # The converter leaves this to the number of layers, which tiny models do not have.
        writer.add_attention_scale(config.query_pre_attn_scalar**-0.5)
    if architecture == "gemma3" and config.num_hidden_layers < 6:
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if architecture == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b", "ab", *(f"t{i}" for i in range(3, config.vocab_size))])
    writer.add_token_types([1] * config.vocab_size)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    _tensors(writer, architecture, model, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _rope(writer: gguf.GGUFWriter, architecture: str, config: Any, dim: int) -> None:
    rope = config.rope_parameters
    if "sliding_attention" in rope:
        writer.add_key_value(
            "gemma3.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"], gguf.GGUFValueType.FLOAT32
        )
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if architecture in {"llama", "phi3", "granite", "smollm3"}:
        writer.add_rope_dimension_count(int(dim * rope.get("partial_rotary_factor", 1.0)))
    kind = rope["rope_type"]
    if kind in {"linear", "yarn"}:
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "longrope":
        original = config.original_max_position_embeddings
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors((1 + np.log(scale) / np.log(original)) ** 0.5)
        for name in ("short", "long"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], np.float32))


def _tensors(writer: gguf.GGUFWriter, architecture: str, model: Any, kind: Kind) -> None:
    config = model.config
    names = gguf.get_tensor_name_map(
        next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), config.num_hidden_layers
    )
    tensors = dict(model.state_dict())
    if config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    for name, tensor in tensors.items():
        values = tensor.numpy()
        if architecture in _GEMMA and name.endswith("norm.weight"):
            values = values + 1
        if architecture in _PERMUTED and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = _permute(values, heads)
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        values = np.ascontiguousarray(values)
        if values.ndim == 2 and kind is not Kind.F32:
            writer.add_tensor(target, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, values)


def _permute(values: np.ndarray, heads: int) -> np.ndarray:
    return values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def round_weights(model: Any, kind: Kind) -> None:
    """Give a model the values that its matrices have in a format."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            values = gguf.quants.quantize(parameter.detach().numpy(), kind)
            parameter.data.copy_(torch.from_numpy(gguf.quants.dequantize(values, kind)))

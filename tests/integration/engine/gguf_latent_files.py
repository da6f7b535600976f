"""Models with latent attention as GGUF files, by the rules of llama.cpp's convert_hf_to_gguf.py, old and new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from .gguf_files import Kind
from .gguf_more_files import add_key, converted, expert_keys

GGUF_LATENT = {
    "deepseek_v2": "deepseek2",
    "deepseek_v2-lite": "deepseek2",
    "deepseek_v3": "deepseek2",
    "minicpm3": "minicpm3",
    "youtu": "deepseek2",
    "deepseek_v2-experts": "deepseek2",
    "deepseek_v2-groups": "deepseek2",
    "deepseek_v3-experts": "deepseek2",
    "glm4_moe_lite": "deepseek2",
}


def write_latent_gguf(path: Path, model: Any, architecture: str, kind: Kind = Kind.F32, *, separate: bool) -> Path:
    """Matrices in the format `kind`, vectors in float32. `separate`: k_b, transposed, and v_b instead of kv_b."""
    config = model.config
    key = config.qk_nope_head_dim + config.qk_rope_head_dim
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    if separate:
        writer.add_head_count_kv(1)
        writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
        writer.add_value_length(config.kv_lora_rank)
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(config.v_head_dim)
    else:
        writer.add_head_count_kv(config.num_attention_heads)
        writer.add_key_length(key)
        writer.add_value_length(config.v_head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if config.num_hidden_layers > getattr(config, "first_k_dense_replace", 0) and hasattr(config, "n_routed_experts"):
        for name, value in expert_keys(config, architecture).items():
            add_key(writer, f"{architecture}.{name}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b", "ab", *(f"t{i}" for i in range(3, config.vocab_size))])
    writer.add_token_types([1] * config.vocab_size)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    _tensors(writer, architecture, model, kind, separate=separate)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(writer: gguf.GGUFWriter, architecture: str, model: Any, kind: Kind, *, separate: bool) -> None:
    config = model.config
    names = gguf.get_tensor_name_map(
        next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), config.num_hidden_layers
    )
    tensors = dict(model.state_dict())
    if config.tie_word_embeddings:
        del tensors["lm_head.weight"]

    def add(target: str, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values)
        if values.ndim > 1 and kind is not Kind.F32 and values.shape[-1] % 32 == 0:
            writer.add_tensor(target, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, values)

    for name, tensor in tensors.items():
        if "embed_scale" in name:
            continue
        for known, values in converted(name, tensor.numpy(), architecture, config).items():
            target = names.get_name(known, try_suffixes=(".weight", ".bias")) or known
            assert target.startswith(("blk.", "token_embd", "output")), name
            if separate and "kv_b_proj" in name:
                by_head = values.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
                keys, both = np.split(by_head, [config.qk_nope_head_dim], axis=1)
                add(target.replace("kv_b", "k_b"), keys.swapaxes(1, 2))
                add(target.replace("kv_b", "v_b"), both)
            else:
                add(target, values)

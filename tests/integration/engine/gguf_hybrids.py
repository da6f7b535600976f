"""Models with state layers of transformers as GGUF files, by the rules of llama.cpp's converter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from .gguf_files import _permute

GGUF = {
    "bamba": "granitehybrid",
    "falcon_h1": "falcon-h1",
    "falcon_h1-no-norm": "falcon-h1",
    "granitehybrid": "granitehybrid",
    "granitehybrid-dense": "granitehybrid",
    "lfm2": "lfm2",
    "lfm2moe": "lfm2moe",
    "mamba2": "mamba2",
    "nemotron_h-unlimited": "nemotron_h_moe",
    "qwen3_next-sparse": "qwen3next",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
}
Array = np.ndarray


def write_hybrid(path: Path, model: Any, architecture: str, *, old: bool = False) -> Path:
    """All tensors in float32, and the metadata that the converter writes; `old`: Qwen3-Next with one input tensor."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(getattr(config, "max_position_embeddings", 2**20))
    writer.add_embedding_length(config.hidden_size)
    _sizes(writer, architecture, config)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b", "ab", *(f"t{i}" for i in range(3, config.vocab_size))])
    writer.add_token_types([1] * config.vocab_size)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    for name, values in _tensors(model, architecture, old=old).items():
        writer.add_tensor(name, np.ascontiguousarray(values.astype(np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _attention_layers(config: Any) -> list[bool]:
    if config.model_type == "bamba":
        return [layer in config.attn_layer_indices for layer in range(config.num_hidden_layers)]
    kinds = getattr(config, "layer_types", None) or config.layers_block_type
    return [kind in {"attention", "full_attention"} for kind in kinds]


def _sizes(writer: gguf.GGUFWriter, architecture: str, config: Any) -> None:
    epsilons = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon")
    epsilon = next(getattr(config, key) for key in epsilons if hasattr(config, key))
    if architecture == "nemotron_h_moe":
        writer.add_layer_norm_eps(epsilon)
    else:
        writer.add_layer_norm_rms_eps(epsilon)
    _state_sizes(writer, architecture, config)
    if architecture == "mamba2":
        writer.add_head_count(0)
        writer.add_feed_forward_length(0)
        return
    heads, keys = config.num_attention_heads, config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_head_count(heads)
    if architecture == "falcon-h1" or architecture.startswith("qwen"):
        writer.add_head_count_kv(keys)
    else:
        writer.add_head_count_kv([keys if has else 0 for has in _attention_layers(config)])
    if dim * heads != config.hidden_size or architecture in {"falcon-h1", "nemotron_h_moe"}:
        writer.add_key_length(dim)
        writer.add_value_length(dim)
    if rope := getattr(config, "rope_parameters", None):
        writer.add_rope_freq_base(rope["rope_theta"])
        if architecture not in {"falcon-h1", "lfm2", "lfm2moe"}:
            writer.add_rope_dimension_count(int(dim * rope.get("partial_rotary_factor", 1.0)))
    if config.model_type == "bamba":
        writer.add_rope_scaling_finetuned(True)
    elif architecture == "granitehybrid":
        writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    _feed_forward_sizes(writer, architecture, config)


def _feed_forward_sizes(writer: gguf.GGUFWriter, architecture: str, config: Any) -> None:
    inner = getattr(config, "intermediate_size", 0)
    if architecture == "lfm2":
        inner = int(2 * inner / 3)
        inner = -(-inner // config.block_multiple_of) * config.block_multiple_of
    if architecture == "nemotron_h_moe":
        writer.add_feed_forward_length([config.moe_intermediate_size * (k == "moe") for k in config.layers_block_type])
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)
    else:
        writer.add_feed_forward_length(inner)
    counts = ("num_local_experts", "num_experts", "n_routed_experts")
    count = next((getattr(config, key) for key in counts if getattr(config, key, None)), 0)
    if not count:
        return
    writer.add_expert_count(count)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if architecture != "granitehybrid":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    shared = ("shared_intermediate_size", "moe_shared_expert_intermediate_size", "shared_expert_intermediate_size")
    for key in shared:
        if getattr(config, key, None):
            writer.add_expert_shared_feed_forward_length(getattr(config, key))


def _state_sizes(writer: gguf.GGUFWriter, architecture: str, config: Any) -> None:
    if architecture.startswith("lfm2"):
        writer.add_shortconv_l_cache(config.conv_L_cache)
        return
    keys = {
        "mamba2": ("conv_kernel", "head_dim", "state_size", "num_heads", "n_groups"),
        "nemotron_h_moe": ("conv_kernel", "mamba_head_dim", "ssm_state_size", "mamba_num_heads", "n_groups"),
        "falcon-h1": ("mamba_d_conv", "mamba_d_head", "mamba_d_state", "mamba_n_heads", "mamba_n_groups"),
    }
    keys["granitehybrid"] = keys["falcon-h1"]
    delta = ("conv_kernel_dim", "value_head_dim", "key_head_dim", "num_value_heads", "num_key_heads")
    names = keys.get(architecture, tuple(f"linear_{name}" for name in delta))
    kernel, dim, state, heads, groups = (getattr(config, name) for name in names)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(heads * dim)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(groups)


def _tensors(model: Any, architecture: str, *, old: bool) -> dict[str, Array]:
    config = model.config
    names = gguf.get_tensor_name_map(
        next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), config.num_hidden_layers
    )
    state = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    if architecture == "falcon-h1":
        _fold(state, config)
    found: dict[str, Array] = {}
    for name, values in state.items():
        known = name.replace("model.", "backbone.") if architecture == "nemotron_h_moe" else name
        if old and "in_proj_qkvz" in name:
            found[f"blk.{name.split('.layers.', 1)[1].split('.', 1)[0]}.ssm_in.weight"] = values
            continue
        for target, changed in _converted(known, values, architecture, config).items():
            stored = names.get_name(target, try_suffixes=(".weight", ".bias")) or target
            assert stored.startswith(("blk.", "token_embd", "output")), (name, target)
            found[stored] = changed
    return found


def _fold(state: dict[str, Array], config: Any) -> None:
    """Falcon-H1's multipliers."""
    shared, inner = config.mamba_n_groups * config.mamba_d_state, config.mamba_d_ssm
    each = np.repeat(config.ssm_multipliers, [inner, inner, shared, shared, config.mamba_n_heads])
    factors = {
        "down_proj": config.mlp_multipliers[1], "gate_proj": config.mlp_multipliers[0],
        "k_proj": config.key_multiplier * config.attention_in_multiplier, "q_proj": config.attention_in_multiplier,
        "v_proj": config.attention_in_multiplier, "o_proj": config.attention_out_multiplier,
        "out_proj": config.ssm_out_multiplier, "in_proj": (config.ssm_in_multiplier * each)[:, None],
        "lm_head": config.lm_head_multiplier, "embed_tokens": config.embedding_multiplier,
    }  # fmt: skip
    for name, values in state.items():
        factor = next((value for key, value in factors.items() if f".{key}." in f".{name}"), None)
        if factor is not None:
            state[name] = values * factor


def _converted(name: str, values: Array, architecture: str, config: Any) -> dict[str, Array]:
    """Tensors of a file, by names that the package maps or by their own."""
    qwen = architecture.startswith("qwen")
    layer = f"blk.{name.split('.layers.', 1)[1].split('.', 1)[0]}." if ".layers." in name else ""
    if qwen and name.endswith("norm.weight") and "linear_attn.norm" not in name:
        values = values + 1
    if architecture == "granitehybrid" and ("q_proj" in name or "k_proj" in name):
        values = _permute(values, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
    if architecture in {"qwen35", "qwen35moe"} and "linear_attn." in name:
        values = _tiled(name, values, config)
    found = _state_tensors(name, values, config, qwen=qwen) or _mlp_tensors(name, values, architecture, config)
    return {layer + target: changed for target, changed in found.items()} or {name: values}


def _state_tensors(name: str, values: Array, config: Any, *, qwen: bool) -> dict[str, Array]:
    last = name.rpartition(".")[2]
    vectors = {
        "A_log": ("ssm_a", -np.exp(values) if last == "A_log" else values),
        "D": ("ssm_d", values),
        "dt_bias": ("ssm_dt.bias", values),
    }
    if last in vectors:
        target, changed = vectors[last]
        return {target: changed if qwen or last == "dt_bias" else changed.reshape(-1, 1)}
    if "conv1d.weight" in name:
        return {"ssm_conv1d.weight": values[:, 0]}
    if "conv.conv.weight" in name:
        return {"shortconv.conv.weight": values[:, 0]}
    if name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        return {"ssm_norm.weight": values.reshape(2, -1)}  # two groups
    if "in_proj_qkvz" in name:
        per_key = config.linear_num_value_heads // config.linear_num_key_heads * config.linear_value_head_dim
        dim = config.linear_key_head_dim
        q, k, v, z = _parts(values, config.linear_num_key_heads, (dim, dim, per_key, per_key))
        return {"attn_qkv.weight": np.concatenate([q, k, v]), "attn_gate.weight": z}
    return {}


def _mlp_tensors(name: str, values: Array, architecture: str, config: Any) -> dict[str, Array]:
    renamed = {
        "e_score_correction_bias": "exp_probs_b.bias",
        "expert_bias": "exp_probs_b.bias",
        "pre_ff_layernorm.weight": "ffn_norm" if architecture == "falcon-h1" else "ffn_norm.weight",
        "mixer.gate.weight": "ffn_gate_inp.weight",
        "block_sparse_moe.router.weight": "ffn_gate_inp.weight",
    }
    for ending, target in renamed.items():
        if name.endswith(ending):
            return {target: values}
    if name.endswith("shared_expert_gate.weight"):
        return {"ffn_gate_inp_shexp.weight": values[0]}
    kind = "_shexp" if getattr(config, "num_local_experts", 0) else ""
    if "shared_mlp.output_linear" in name:
        return {f"ffn_down{kind}.weight": values}
    if values.ndim == 3 and ("down" in name or "output_linear" in name):  # experts
        return {"ffn_down_exps.weight": values}
    if values.ndim == 3 and architecture == "nemotron_h_moe":
        return {"ffn_up_exps.weight": values}
    if values.ndim == 3 or "shared_mlp.input_linear" in name:
        gate, up = np.split(values, 2, axis=-2)
        kind = "_exps" if values.ndim == 3 else kind
        return {f"ffn_gate{kind}.weight": gate, f"ffn_up{kind}.weight": up}
    return {}


def _parts(values: Array, groups: int, sizes: tuple[int, ...]) -> list[Array]:
    by_group = values.reshape(groups, -1, values.shape[1])
    return [part.reshape(-1, values.shape[1]) for part in np.split(by_group, np.cumsum(sizes)[:-1], axis=1)]


def _tiled(name: str, values: Array, config: Any) -> Array:
    """Value heads in the order of their place among those of a key head, then by key head."""
    keys, heads, dim = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim

    def sort(rows: Array, size: int) -> Array:
        return rows.reshape(keys, heads // keys, size, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)

    queries = 2 * keys * config.linear_key_head_dim
    if "in_proj_qkv." in name or "conv1d" in name:
        return np.concatenate([values[:queries], sort(values[queries:], dim)])
    if "in_proj_z" in name:
        return sort(values, dim)
    if "out_proj" in name:
        return sort(values.T, dim).T
    return values if "norm" in name else sort(values, 1)

"""More models of transformers as GGUF files: dense decoders and mixtures, by the rules of llama.cpp's converter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from .gguf_files import _permute

Array = np.ndarray
Tensors = dict[str, Array]
Metadata = dict[str, Any]

# The architecture in GGUF of each family that has one. Sequential Falcon, GPT-J and OPT have none.
GGUF_DENSE = {
    "gemma": "gemma",
    "apertus": "apertus",
    "arcee": "arcee",
    "bloom": "bloom",
    "bloom-12-heads": "bloom",
    "cohere": "command-r",
    "cohere-norms": "command-r",
    "cohere2": "cohere2",
    "ernie4_5": "ernie4_5",
    "exaone4": "exaone4",
    "exaone4-full": "exaone4",
    "falcon": "falcon",
    "falcon-new": "falcon",
    "gpt2": "gpt2",
    "gptneox": "gptneox",
    "gptneox-sequential": "gptneox",
    "glm": "chatglm",
    "glm4": "glm4",
    "hunyuan": "hunyuan-dense",
    "mpt": "mpt",
    "nemotron": "nemotron",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "olmo3-yarn": "olmo2",
    "phi2": "phi2",
    "seed_oss": "seed_oss",
    "stablelm": "stablelm",
    "stablelm-2": "stablelm",
    "starcoder": "starcoder",
    "starcoder2": "starcoder2",
}
GGUF_OTHERS = {"DeciLM": "deci", "MiniCPM": "minicpm"}
GGUF_MIXTURES = {
    "mixtral": "llama",
    "qwen2_moe-sparse": "qwen2moe",
    "qwen3_moe-sparse": "qwen3moe",
    "olmoe": "olmoe",
    "granitemoe": "granitemoe",
    "granitemoe-shared": "granitemoe",
    "dots1": "dots1",
    "ernie4_5_moe": "ernie4_5-moe",
    "glm4_moe": "glm4moe",
    "gpt_oss": "gpt-oss",
    "llama4": "llama4",
    "minimax_m2": "minimax-m2",
}
_PERMUTED = {"llama", "arcee", "deci", "granitemoe", "minicpm", "olmo"}
_NORMS_FROM_ONE = {"gemma", "nemotron"}
# What the architecture means, and files do not state.
_NO_KV_HEADS = {"bloom", "gpt2", "gptneox", "mpt"}
_MULTI_QUERY = {"starcoder"}
_NO_BASE = {"falcon", "gemma", "gptneox", "phi2", "stablelm"}
_ROTARY_PART = {"chatglm", "glm4", "glm4moe", "gptneox", "nemotron", "phi2", "stablelm"}
_SIGMOID = 2
# How the package's names miss those of transformers.
_RENAMED = {
    "word_embeddings_layernorm": "token_embd_norm",
    "e_score_correction_bias": "exp_probs_b.bias",
    "block_sparse_moe.router.weight": "ffn_gate_inp.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "experts.down_proj_bias": "ffn_down_exps.bias",
    "self_attn.sinks": "attn_sinks.weight",
    "shared_mlp.output_linear.weight": "ffn_down_shexp.weight",
}


def write_more_gguf(path: Path, model: Any, architecture: str, *, merged: bool = False) -> Path:
    """Tensors in float32, and the metadata that the converter writes; `merged`: experts' gate and up in one tensor."""
    writer, tensors = gguf.GGUFWriter(path, architecture), _tensors(model, architecture, merged=merged)
    for key, value in _metadata(model.config, architecture, tensors).items():
        add_key(writer, f"{architecture}.{key}", value)
    tensors |= _divisors(model.config)
    if architecture == "apertus":
        for name in ("alpha_n", "alpha_p", "beta", "eps"):
            add_key(writer, f"xielu.{name}", [getattr(x.mlp.act_fn, name).item() for x in model.model.layers])
    vocab = model.config.vocab_size
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b", "ab", *(f"t{i}" for i in range(3, vocab))])
    writer.add_token_types([1] * vocab)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32}
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_key_value(key, value, kinds[type(value)])


def _metadata(config: Any, architecture: str, tensors: Tensors) -> Metadata:
    heads, hidden = config.num_attention_heads, config.hidden_size
    dim = getattr(config, "head_dim", None) or hidden // heads
    found: Metadata = {
        "block_count": config.num_hidden_layers,
        "context_length": getattr(config, "max_position_embeddings", 128),
        "embedding_length": hidden,
        "feed_forward_length": _inner(config, tensors),
        "attention.head_count": heads,
    }
    if architecture not in _NO_KV_HEADS:
        found["attention.head_count_kv"] = _kv_heads(config, architecture)
    if architecture == "deci":
        found |= _pruned(config, tensors)
    if dim != hidden // heads and architecture != "chatglm":
        found |= {"attention.key_length": dim, "attention.value_length": dim}
    found |= _rope(config, architecture, dim)
    if hasattr(config, "rms_norm_eps"):
        found["attention.layer_norm_rms_epsilon"] = config.rms_norm_eps
    else:
        names = ("layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
        given = next((getattr(config, name) for name in names if hasattr(config, name)), 1e-5)  # OLMo's constant
        found["attention.layer_norm_epsilon"] = given
    if architecture == "glm4moe":  # a layer that predicts a further token, and that models of transformers leave out
        found |= {"block_count": config.num_hidden_layers + 1, "nextn_predict_layers": 1}
    return found | _special(config, architecture) | expert_keys(config, architecture)


def _rope(config: Any, architecture: str, dim: int) -> Metadata:
    rope = getattr(config, "rope_parameters", None)
    if rope is None or architecture == "falcon":
        return {}
    found: Metadata = {}
    if "sliding_attention" in rope:
        found["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    if architecture not in _NO_BASE:
        found["rope.freq_base"] = float(rope["rope_theta"])
    if architecture in _ROTARY_PART:
        found["rope.dimension_count"] = int(dim * rope.get("partial_rotary_factor", 1.0))
    if rope["rope_type"] == "yarn":
        found |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(rope["factor"]),
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        }
    return found


def _divisors(config: Any) -> Tensors:
    """Llama 3's scaling: a divisor for each pair."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "llama3":
        return {}
    dim = config.hidden_size // config.num_attention_heads
    lengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    turns = rope["original_max_position_embeddings"] / lengths
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": (1 / (kept + (1 - kept) / rope["factor"])).astype(np.float32)}


def _inner(config: Any, tensors: Tensors) -> int:
    """Rows of the first dense MLP, or the one size that a mixture has."""
    up = next((tensors[f"blk.{i}.ffn_up.weight"] for i in range(4) if f"blk.{i}.ffn_up.weight" in tensors), None)
    if up is None:
        return int(config.intermediate_size)
    return len(up) if "blk.0.ffn_gate.weight" in tensors else int(tensors["blk.0.ffn_down.weight"].shape[1])


def _pruned(config: Any, tensors: Tensors) -> Metadata:
    """Sizes of each layer, 0 for what it does not have."""
    dim = config.hidden_size // config.num_attention_heads

    def rows(name: str) -> list[int]:
        each = (tensors.get(f"blk.{layer}.{name}.weight", ()) for layer in range(config.num_hidden_layers))
        return [len(matrix) for matrix in each]

    return {
        "attention.head_count": [count // dim for count in rows("attn_q")],
        "attention.head_count_kv": [count // dim for count in rows("attn_k")],
        "feed_forward_length": rows("ffn_up"),
    }


def _kv_heads(config: Any, architecture: str) -> int:
    if architecture == "falcon":
        return int(config.num_kv_heads) if config.new_decoder_architecture else 1
    return 1 if architecture in _MULTI_QUERY else int(config.num_key_value_heads)


def _special(config: Any, architecture: str) -> Metadata:
    """What one architecture alone has."""
    window = getattr(config, "sliding_window", None)
    local = {"attention.sliding_window": window} if window else {}
    if window and architecture in {"exaone4", "olmo2"}:
        local["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config.layer_types]
    if architecture in {"command-r", "cohere2"}:
        return {"logit_scale": config.logit_scale, "rope.scaling.type": "none", **local}
    if architecture in {"exaone4", "gpt-oss", "olmo2"}:
        return local
    if architecture in {"granitemoe", "minicpm"}:
        return {
            "attention.scale": config.attention_multiplier,
            "embedding_scale": config.embedding_multiplier,
            "residual_scale": config.residual_multiplier,
            "logit_scale": config.logits_scaling,
        }
    found: dict[str, Metadata] = {
        "gptneox": {"use_parallel_residual": getattr(config, "use_parallel_residual", True)},
        "mpt": {"attention.max_alibi_bias": 8.0},
        "olmo": {"attention.clamp_kqv": getattr(config, "clip_qkv", None)},
        "stablelm": {"use_parallel_residual": getattr(config, "use_parallel_residual", True)},
    }
    return found.get(architecture, {})


def expert_keys(config: Any, architecture: str) -> Metadata:
    """The keys of a mixture."""
    counts = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    count = next((getattr(config, name) for name in counts if getattr(config, name, None)), 0)
    if not count:
        return {}
    found: Metadata = {
        "expert_count": count,
        "expert_used_count": getattr(config, "num_experts_per_tok", None) or config.moe_k,
    }
    if architecture == "deepseek2":
        found |= {
            "expert_shared_count": config.n_shared_experts,
            "expert_weights_scale": float(config.routed_scaling_factor),
        }
        if config.topk_group and config.n_group > 1:
            found |= {"expert_group_count": config.n_group, "expert_group_used_count": config.topk_group}
        if config.model_type != "deepseek_v2":
            found |= {"expert_gating_func": _SIGMOID, "expert_weights_norm": config.norm_topk_prob}
    if architecture in {"dots1", "glm4moe"}:
        found |= {
            "expert_group_count": config.n_group,
            "expert_group_used_count": config.topk_group,
            "expert_gating_func": _SIGMOID,
            "expert_shared_count": config.n_shared_experts,
            "expert_weights_norm": config.norm_topk_prob,
            "expert_weights_scale": float(config.routed_scaling_factor),
        }
    inner = {
        "gpt-oss": "intermediate_size",
        "llama4": "intermediate_size",
        "minimax-m2": "intermediate_size",
    }.get(architecture, "moe_intermediate_size")
    if hasattr(config, inner):
        found["expert_feed_forward_length"] = getattr(config, inner)
    shared = {"ernie4_5-moe": "moe_intermediate_size", "granitemoe": "shared_intermediate_size"}
    name = shared.get(architecture, "shared_expert_intermediate_size")
    if getattr(config, name, None):
        found["expert_shared_feed_forward_length"] = getattr(config, name)
    return found


def _tensors(model: Any, architecture: str, *, merged: bool) -> Tensors:
    config = model.config
    names = gguf.get_tensor_name_map(
        next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), config.num_hidden_layers
    )
    state = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    found: Tensors = {}
    for name, values in _stacked_norms(state, config).items():
        for target, changed in converted(name, values, architecture, config, merged=merged).items():
            stored = names.get_name(target, try_suffixes=(".weight", ".bias")) or target
            assert stored.startswith(("blk.", "token_embd", "position_embd", "output")), (name, target)
            found[stored] = changed
    return found


def _stacked_norms(state: Tensors, config: Any) -> Tensors:
    """StableLM 2 has a norm for each head."""
    found: Tensors = {}
    for name, values in state.items():
        match = re.fullmatch(r"(.*[qk]_layernorm)\.norms\.(\d+)\.weight", name)
        if match is None:
            found[name] = values
        elif match[2] == "0":
            heads = config.num_attention_heads if "q_layernorm" in name else config.num_key_value_heads
            found[f"{match[1]}.weight"] = np.stack([state[f"{match[1]}.norms.{i}.weight"] for i in range(heads)])
    return found


def converted(name: str, values: Array, architecture: str, config: Any, *, merged: bool = False) -> Tensors:
    """The tensors that one of transformers becomes, by names that the package maps or by their own."""
    match = re.search(r"\.(?:h|layers|blocks)\.(\d+)\.", name)
    layer = f"blk.{match[1]}." if match else ""
    if "act_fn" in name:
        return {}
    if "experts.gate_up_proj" in name:
        return _gate_and_up(layer, values, architecture, merged=merged, bias=name.endswith("bias"))
    if name.endswith("experts.down_proj") and architecture in {"gpt-oss", "llama4"}:
        values = values.swapaxes(1, 2)
    if "shared_mlp.input_linear" in name:
        gate, up = np.split(values, 2)
        return {layer + "ffn_gate_shexp.weight": gate, layer + "ffn_up_shexp.weight": up}
    if architecture == "gpt2" and values.ndim == 2 and ".h." in name:
        values = values.T
    if architecture in _NORMS_FROM_ONE and re.search(r"norm\d?\.weight$", name):
        values = values + 1
    if architecture in _PERMUTED and re.search(r"\.[qk]_proj\.", name):
        values = _permute(values, len(values) * config.num_attention_heads // config.hidden_size)
    if "query_key_value" in name:
        values = _sorted_qkv(values, architecture, config)
    for ending, target in _RENAMED.items():
        if name.endswith(ending):
            return {layer + target: values}
        if ending in name and not layer:
            return {f"{target}.{name.rpartition('.')[2]}": values}
    return {name.replace("transformer.", "") if architecture == "bloom" else name: values}


def _gate_and_up(layer: str, values: Array, architecture: str, *, merged: bool, bias: bool) -> Tensors:
    """[experts, 2 * inner, hidden]; Llama 4 and gpt-oss have the last two the other way round, gpt-oss in pairs."""
    if architecture in {"gpt-oss", "llama4"} and not bias:
        values = values.swapaxes(1, 2)
    gate, up = (values[:, ::2], values[:, 1::2]) if architecture == "gpt-oss" else np.split(values, 2, axis=1)
    if merged:
        return {layer + "ffn_gate_up_exps.weight": np.concatenate([gate, up], axis=1)}
    ending = "bias" if bias else "weight"
    return {f"{layer}ffn_gate_exps.{ending}": gate, f"{layer}ffn_up_exps.{ending}": up}


def _sorted_qkv(values: Array, architecture: str, config: Any) -> Array:
    """Groups of queries, a key and a value: all queries first, then all keys, then all values."""
    groups = _kv_heads(config, architecture) if architecture == "falcon" else config.num_attention_heads
    each = config.num_attention_heads // groups
    dim = config.hidden_size // config.num_attention_heads
    by_group = values.reshape(groups, each + 2, dim, *values.shape[1:])
    parts = np.split(by_group, [each, each + 1], axis=1)
    return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])

"""Write SmolLM2's weights, dequantised to bf16, as the folder of safetensors that peers read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.weights import Tensor, dequantize

LAYER_NAMES = {
    "input_norm": "input_layernorm",
    "post_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def as_transformers(model: LoadedModel) -> LlamaForCausalLM:
    """The same weights in fp32 as a transformers model."""
    config, weights = model.config, model.weights
    state = {
        "model.embed_tokens.weight": _torch(weights.embedding),
        "model.norm.weight": _torch(weights.final_norm),
        "lm_head.weight": _torch(weights.lm_head),
    }
    for i, layer in enumerate(weights.layers):
        for mine, theirs in LAYER_NAMES.items():
            state[f"model.layers.{i}.{theirs}.weight"] = _torch(getattr(layer, mine))
    peer = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_positions,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=config.tied_embeddings,
            bos_token_id=config.bos_token_id,
            eos_token_id=list(config.eos_token_ids),
        )
    )
    peer.load_state_dict(state)
    return peer


def export(model: LoadedModel, folder: Path) -> Path:
    """Write the folder once; later calls find it."""
    if (folder / "model.safetensors").exists():
        return folder
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    as_transformers(model).to(torch.bfloat16).save_pretrained(partial)
    model.text.tokenizer.save(str(partial / "tokenizer.json"))
    (partial / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}\n')
    partial.rename(folder)
    return folder


def smollm2(cache: Path) -> Path:
    """The bf16 folder of SmolLM2-135M-Instruct below `cache`."""
    model = load_model("smollm2")
    assert isinstance(model, LoadedModel)  # noqa: S101 (a GGUF file)
    return export(model, cache / "smollm2-bf16")


def _torch(tensor: Tensor) -> torch.Tensor:
    return torch.from_numpy(np.array(dequantize(tensor), np.float32))

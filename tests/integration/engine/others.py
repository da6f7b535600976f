"""Families whose code transformers does not have, as its models of the same arithmetic in other names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP

from .families import FAMILIES, build, save

HIDDEN, HEADS, LAYERS = 64, 4, 4


class _Nothing(nn.Module):
    """In place of an MLP or, with a second result, of attention."""

    def __init__(self, attention: bool) -> None:
        super().__init__()
        self._attention = attention

    def forward(self, hidden_states: Any, *_: Any, **__: Any) -> Any:
        zeros = torch.zeros_like(hidden_states)
        return (zeros, None) if self._attention else zeros


def llama_nemotron(folder: Path) -> Any:
    """Layers with their own numbers of key-value heads and inner elements, without attention, and without an MLP."""
    group = {"n_heads_in_group": 2}
    blocks = [
        {"attention": group, "ffn": {"ffn_mult": 6.0}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 12.0}},
        {"attention": {"n_heads_in_group": 1}, "ffn": {"no_op": True}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 12.0}},
    ]
    family = FAMILIES["llama"]
    model = build(family)
    for number, (layer, block) in enumerate(zip(model.model.layers, blocks, strict=True)):
        config = family.config()
        config._attn_implementation = model.config._attn_implementation
        config.num_key_value_heads = HEADS // block["attention"].get("n_heads_in_group", 1)
        config.intermediate_size = int(2 * block["ffn"].get("ffn_mult", 0.0) * HIDDEN / 3)
        no_attention, no_mlp = block["attention"].get("no_op"), block["ffn"].get("no_op")
        layer.self_attn = _Nothing(True) if no_attention else _random(LlamaAttention(config, number))
        layer.mlp = _Nothing(False) if no_mlp else _random(LlamaMLP(config))
        if no_attention:
            layer.input_layernorm = nn.Identity()
        if no_mlp:
            layer.post_attention_layernorm = nn.Identity()
    _save(model, folder, "DeciLMForCausalLM", model_type="nemotron-nas", block_configs=blocks)
    return model


def minicpm(folder: Path) -> Any:
    """Granite's multipliers by other rules."""
    scales = {
        "embedding_multiplier": 12.0,
        "residual_multiplier": 1.4 / LAYERS**0.5,
        "attention_multiplier": (HIDDEN // HEADS) ** -0.5,
        "logits_scaling": HIDDEN / 256,
    }
    family = replace(FAMILIES["granite"], changes=scales)
    model = build(family)
    names = {"model_type": "minicpm", "scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256}
    _save(model, folder, "MiniCPMForCausalLM", **names)
    return model


def _random(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
    return module.eval()


def _save(model: Any, folder: Path, architecture: str, **changes: Any) -> None:
    """The weights under the same names, and a configuration in the words of the other family."""
    save(model, folder)
    path = folder / "config.json"
    known = json.loads(path.read_text())
    for name in ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"):
        known.pop(name, None)
    path.write_text(json.dumps(known | {"architectures": [architecture]} | changes))
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")


# By class: saves a tiny model to a folder, and returns the model that computes the same.
OTHERS: dict[str, Callable[[Path], Any]] = {"DeciLM": llama_nemotron, "MiniCPM": minicpm}

"""Names of tensors in safetensors checkpoints, by the fields of `LayerWeights` and `Weights`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

LayerNames = Mapping[str, str]
"""Modules of a layer: the weights of field f are the tensor `{prefix}{names[f]}.weight`, its biases `.bias`.

`qkv` and `gate_up` name stacked modules, which are read where they exist. A family without a module has no entry.
"""


def layer_names(*without: str, **changes: str) -> LayerNames:
    """Llama's names with `changes`, and `without` some."""
    return MappingProxyType({key: name for key, name in (LLAMA | changes).items() if key not in without})


@dataclass(frozen=True, slots=True)
class ModelNames:
    """Modules outside of layers: `{prefix}{embedding}.weight`; `prefixes` are tried in order, the head has none."""

    prefixes: tuple[str, ...] = ("model.", "model.language_model.", "language_model.model.", "")
    layers: str = "layers."
    embedding: str = "embed_tokens"
    final_norm: str | None = "norm"
    head: str = "lm_head"
    positions: str | None = None
    embedding_norm: str | None = None
    type_table: str | None = None


LLAMA = {
    "input_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "qkv": "self_attn.qkv_proj",
    "o": "self_attn.o_proj",
    "post_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "gate_up": "mlp.gate_up_proj",
    "down": "mlp.down_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}
_OUTPUT_NORMS = {
    "attention_output_norm": "post_attention_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
}
PLAIN_MODEL = ModelNames()
GEMMA2 = layer_names(post_norm="pre_feedforward_layernorm", **_OUTPUT_NORMS)
OLMO = layer_names("input_norm", "post_norm")
OLMO2 = layer_names("input_norm", "post_norm", **_OUTPUT_NORMS)
GLM4 = layer_names(attention_output_norm="post_self_attn_layernorm", mlp_output_norm="post_mlp_layernorm")
UNGATED = layer_names("gate", "gate_up")
STARCODER2 = layer_names("gate", "gate_up", up="mlp.c_fc", down="mlp.c_proj")
PHI = layer_names("gate", "gate_up", "post_norm", o="self_attn.dense", up="mlp.fc1", down="mlp.fc2")
APERTUS = layer_names("gate", "gate_up", input_norm="attention_layernorm", post_norm="feedforward_layernorm")
HUNYUAN = layer_names(q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm")
LLAMA4 = layer_names(gate="feed_forward.gate_proj", up="feed_forward.up_proj", down="feed_forward.down_proj")
GPT2 = layer_names(
    "gate", "gate_up", input_norm="ln_1", post_norm="ln_2", qkv="attn.c_attn", o="attn.c_proj",
    up="mlp.c_fc", down="mlp.c_proj",
)  # fmt: skip
GPTJ = layer_names(
    "gate", "gate_up", "post_norm", input_norm="ln_1", q="attn.q_proj", k="attn.k_proj", v="attn.v_proj",
    o="attn.out_proj", up="mlp.fc_in", down="mlp.fc_out",
)  # fmt: skip
OPT = layer_names(
    "gate", "gate_up", input_norm="self_attn_layer_norm", post_norm="final_layer_norm", o="self_attn.out_proj",
    up="fc1", down="fc2",
)  # fmt: skip
NEOX = layer_names(
    "gate", "gate_up", qkv="attention.query_key_value", o="attention.dense", up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)  # fmt: skip
BLOOM = layer_names(
    "gate", "gate_up", qkv="self_attention.query_key_value", o="self_attention.dense", up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)  # fmt: skip


def names_of_falcon(names: LayerNames) -> LayerNames:
    """Falcon's layers with norms of their own for attention and MLP."""
    return MappingProxyType({**names, "input_norm": "ln_attn", "post_norm": "ln_mlp"})


MPT = layer_names(
    "gate", "gate_up", input_norm="norm_1", post_norm="norm_2", qkv="attn.Wqkv", o="attn.out_proj", up="ffn.up_proj",
    down="ffn.down_proj",
)  # fmt: skip

_TRANSFORMER = ("transformer.", "")
GPT2_MODEL = ModelNames(_TRANSFORMER, "h.", "wte", "ln_f", positions="wpe")
GPTJ_MODEL = ModelNames(_TRANSFORMER, "h.", "wte", "ln_f")
NEOX_MODEL = ModelNames(("gpt_neox.",), embedding="embed_in", final_norm="final_layer_norm", head="embed_out")
BLOOM_MODEL = ModelNames(_TRANSFORMER, "h.", "word_embeddings", "ln_f", embedding_norm="word_embeddings_layernorm")
FALCON_MODEL = ModelNames(_TRANSFORMER, "h.", "word_embeddings", "ln_f")
MPT_MODEL = ModelNames(_TRANSFORMER, "blocks.", "wte", "norm_f")
OPT_MODEL = ModelNames(("model.decoder.", "decoder."), final_norm="final_layer_norm", positions="embed_positions")
PHI_MODEL = ModelNames(final_norm="final_layernorm")
BERT = layer_names(
    "gate", "gate_up", "qkv", "input_norm", "post_norm", q="attention.self.query", k="attention.self.key",
    v="attention.self.value", o="attention.output.dense", attention_output_norm="attention.output.LayerNorm",
    up="intermediate.dense", down="output.dense", mlp_output_norm="output.LayerNorm",
)  # fmt: skip
BERT_MODEL = ModelNames(
    ("", "bert.", "roberta."),
    "encoder.layer.",
    "embeddings.word_embeddings",
    None,
    positions="embeddings.position_embeddings",
    embedding_norm="embeddings.LayerNorm",
    type_table="embeddings.token_type_embeddings",
)
MODERN_BERT = layer_names(
    input_norm="attn_norm", qkv="attn.Wqkv", o="attn.Wo", post_norm="mlp_norm", gate_up="mlp.Wi", down="mlp.Wo"
)
MODERN_BERT_MODEL = ModelNames(
    ("model.", ""), embedding="embeddings.tok_embeddings", final_norm="final_norm", embedding_norm="embeddings.norm"
)
NO_FINAL_WEIGHTS = ModelNames(final_norm=None)

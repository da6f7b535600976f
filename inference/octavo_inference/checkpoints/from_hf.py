"""Loads Hugging Face folders (config.json + safetensors) into the canonical configuration and weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.hf_encoders import ENCODERS
from octavo_inference.checkpoints.hf_experts import expert_weights
from octavo_inference.checkpoints.hf_families import FAMILIES as PLAIN
from octavo_inference.checkpoints.hf_families import Factors, HfFamily
from octavo_inference.checkpoints.hf_hybrids import HYBRIDS
from octavo_inference.checkpoints.hf_latent import latent_weights
from octavo_inference.checkpoints.hf_names import names_of_falcon
from octavo_inference.checkpoints.hf_rope import read_rope
from octavo_inference.checkpoints.hf_settings import HfSettings
from octavo_inference.checkpoints.hf_states import state_weights
from octavo_inference.checkpoints.hf_tensors import HfTensors
from octavo_inference.checkpoints.jsonfile import optional_json
from octavo_inference.checkpoints.quantized import quantized_reader
from octavo_inference.checkpoints.safetensors import Checkpoint
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.rows import delta_rows, grouped_rows, half_split_rows, scaled
from octavo_inference.models.weights import LayerWeights, Matrix, Tensor, Weights, dequantize, part_tensors

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
FAMILIES = PLAIN | HYBRIDS | ENCODERS
_XIELU_BETA = 0.5  # of the models that there are


def config_from_hf(folder: Path, checkpoint: Checkpoint, digest: str) -> ModelConfig:
    """The model's configuration. Raises `ModelError`; `UnsupportedModelError` for unsupported features."""
    path = folder / "config.json"
    data = optional_json(path)
    family = family_of(path, data)
    if isinstance(data.get("text_config"), dict):
        defaults = _TEXT_DEFAULTS if family.name == "gemma3" else {}
        data = defaults | data | data["text_config"]
    kinds = data.get("layers_block_type")
    if isinstance(kinds, list):
        data.setdefault("num_hidden_layers", len(kinds))
    settings = HfSettings(path, data)
    if family.task == "generate":
        settings.refuse("use_bidirectional_attention")
    quantized_reader(folder, checkpoint, contents=False)  # refuses unknown methods
    # A model of state layers alone has no attention heads.
    heads, hidden = int(settings.number("num_attention_heads", 1)), int(settings.number("hidden_size"))
    if heads <= 0 or hidden <= 0:
        raise ModelError(f"{path}: {heads} heads of a hidden size of {hidden}")
    layers, head_dim = int(settings.number("num_hidden_layers")), int(settings.number("head_dim", hidden // heads))
    if not 0 < layers <= len(checkpoint.tensors):
        raise ModelError(f"{path}: num_hidden_layers is {layers}, the weights have {len(checkpoint.tensors)} tensors")
    rotated = int(settings.number("qk_rope_head_dim", head_dim))  # of latent attention
    rope = read_rope(path, data, rotated, theta=family.theta, share=family.rotary_share)
    bos = data.get("bos_token_id")
    fields = family.fields(settings)
    prefix = language_prefix(checkpoint, family)
    tensors = HfTensors(folder, checkpoint, None)
    layer = f"{prefix}{family.model.layers}0."
    common: dict[str, Any] = {
        "architecture": family.name,
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": int(settings.number("num_key_value_heads", heads)),
        "head_dim": head_dim,
        "vocab": int(settings.number("vocab_size")),
        "rope_theta": rope.theta,
        "norm_eps": settings.number("rms_norm_eps", 1e-6),
        "tied_embeddings": family.task != "generate" or not tensors.has(_head_name(tensors, family)),
        "eos_token_ids": eos_token_ids(folder, data),
        "bos_token_id": bos if isinstance(bos, int) else None,
        "rope_scaling": rope.scaling,
        "rotary_dim": rope.dim,
        "local_rope_theta": rope.local_theta or (10_000.0 if family.name in {"gemma3", "modernbert"} else None),
        "qkv_bias": any(layer + family.layer[n] + ".bias" in checkpoint.tensors for n in ("q", "qkv")),
        "output_bias": layer + family.layer["o"] + ".bias" in checkpoint.tensors,
        "mlp_bias": layer + family.layer["up"] + ".bias" in checkpoint.tensors,
        "task": family.task,
        "digest": digest,
    }
    if "intermediate" not in fields:
        common["intermediate"] = int(settings.number("intermediate_size"))
    if "max_positions" not in fields:
        common["max_positions"] = int(settings.number("max_position_embeddings"))
    if "activation" not in fields:
        common["activation"] = settings.activation()
    config = ModelConfig(**common | fields)
    return replace(config, query_scale=config.score_scale)


def weights_from_hf(folder: Path, checkpoint: Checkpoint, config: ModelConfig, *, contents: bool = True) -> Weights:
    """Canonical weights: matrices of floats are views of the files, quantized ones are read from them in pieces.

    Raises `ModelError` for tensors that do not fit config.json. Without `contents` only headers are known, not what the
    files hold: weights then have their formats and sizes, and cannot be read.
    """
    path = folder / "config.json"
    family = family_of(path, optional_json(path))
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    fused = {"qkv_proj": (queries, keys, keys), "gate_up_proj": (config.intermediate, config.intermediate)}
    quantized = quantized_reader(folder, checkpoint, contents=contents, fused=fused)
    tensors = HfTensors(folder, checkpoint, quantized, family.norm_offset, family.transposed, contents)
    prefix, names, hidden = language_prefix(checkpoint, family), family.model, config.hidden
    factors = {} if family.factors is None else family.factors(HfSettings(path, optional_json(path)))
    layers = tuple(
        LayerReader(tensors, config, family, number, f"{prefix}{names.layers}{number}.", factors).read()
        for number in range(config.layers)
    )
    embedding = tensors.table(f"{prefix}{names.embedding}.weight", config.vocab, hidden)
    head_name = _head_name(tensors, family)
    head: Matrix = embedding if config.tied_embeddings else tensors.matrix(f"{head_name}.weight", config.vocab, hidden)
    given: dict[str, Any] = {}
    if names.embedding_norm is not None:
        given["embedding_norm"] = tensors.norm(f"{prefix}{names.embedding_norm}.weight", hidden)
        given["embedding_norm_bias"] = tensors.optional(f"{prefix}{names.embedding_norm}.bias", hidden)
    if names.positions is not None:
        skipped = family.first_position(HfSettings(path, optional_json(path)))
        table = tensors.table(f"{prefix}{names.positions}.weight", config.learned_positions + skipped, hidden)
        given["positions"] = table.rows(skipped, table.shape[0])
    if names.type_table is not None:
        types = HfSettings(path, optional_json(path)).count("type_vocab_size", 2)
        table = tensors.table(f"{prefix}{names.type_table}.weight", types, hidden)
        given["token_type"] = _row(table, 0)
        given["second_token_type"] = _row(table, 1) if types > 1 else None
    final = None if names.final_norm is None else prefix + names.final_norm
    return Weights(
        embedding,
        layers,
        None if final is None else tensors.norm(f"{final}.weight", hidden),
        head,
        final_norm_bias=None if final is None else tensors.optional(f"{final}.bias", hidden),
        head_bias=tensors.vector(f"{head_name}.bias", config.vocab) if config.head_bias else None,
        **given,
    )


class LayerReader:
    """Reads one layer, whose tensors begin with `prefix`."""

    def __init__(
        self,
        tensors: HfTensors,
        config: ModelConfig,
        family: HfFamily,
        number: int,
        prefix: str,
        factors: Factors,
    ) -> None:
        self._tensors, self._config, self._family, self._prefix = tensors, config, family, prefix
        self._factors = factors
        self._names = family.layer
        if family.name == "falcon" and tensors.has(prefix + "ln_attn"):
            self._names = names_of_falcon(self._names)
        part = config.part(number)
        self._part = part
        self._heads, self._kv_heads = int(part.heads or 0), int(part.kv_heads or 0)

    def read(self) -> LayerWeights:
        """The layer's weights."""
        fields: dict[str, Any] = {}
        for name in ("input_norm", "post_norm", "attention_output_norm", "mlp_output_norm"):
            if self._exists(name):
                fields[name] = self._tensors.norm(self._name(name) + ".weight", self._config.hidden)
                fields[f"{name}_bias"] = self._tensors.optional(self._name(name) + ".bias", self._config.hidden)
        if self._part.attention:
            fields |= self._attention()
        if self._part.state:
            fields["state"] = state_weights(self._tensors, self._config, self._prefix + self._family.state)
        if self._part.feed_forward == "dense":
            fields |= self._mlp(int(self._part.intermediate or 0))
        elif self._part.feed_forward == "experts" and self._family.experts is not None:
            fields["experts"] = expert_weights(self._tensors, self._config, self._family.experts, self._prefix)
        return self._scaled(LayerWeights(**fields))

    def _scaled(self, layer: LayerWeights) -> LayerWeights:
        """The weights times the family's factors."""
        contents = self._tensors.contents
        changed: dict[str, Any] = {}
        state: dict[str, Any] = {}
        for name, tensor in part_tensors(layer):
            if name in self._factors:
                found = scaled(tensor, self._factors[name], contents=contents)
                if name == "state.inputs.0":  # the only one
                    state["inputs"] = (found,)
                else:
                    group = state if name.startswith("state.") else changed
                    group[name.rpartition(".")[2]] = found
        if layer.state is not None and state:
            changed["state"] = replace(layer.state, **state)
        return replace(layer, **changed) if changed else layer

    def _name(self, field: str) -> str:
        return self._prefix + self._names[field]

    def _exists(self, norm: str) -> bool:
        """Whether the layer has a norm: a part that it does not have, has none."""
        if norm not in self._names or (norm == "post_norm" and self._config.shared_norm):
            return False
        if norm == "input_norm" and not self._part.input_norm:
            return False
        mixes = self._part.attention or self._part.state
        needed = mixes if norm.startswith(("input", "attention")) else self._part.feed_forward != "none"
        # Blocks of one part have one norm, of one name for all kinds.
        alone = self._names.get("input_norm") == self._names.get("post_norm")
        return needed or (not alone and self._tensors.has(self._name(norm)))

    def _attention(self) -> dict[str, Any]:
        config, tensors, dim = self._config, self._tensors, self._config.head_dim
        q_width, kv_width = self._heads * dim, self._kv_heads * dim
        fields: dict[str, Any] = {}
        if config.latent is not None:
            prefix = self._prefix + "self_attn."
            found = latent_weights(tensors, config, config.latent, prefix, adjacent=self._family.adjacent)
            output = tensors.matrix(self._name("o") + ".weight", config.hidden, self._heads * config.value_dim)
            return {"latent": found, "o": output}
        if "qkv" in self._names and tensors.has(self._name("qkv")):
            rows = q_width + 2 * kv_width
            order = self._stacked_order()
            whole = tensors.matrix(self._name("qkv") + ".weight", rows, config.hidden, order)
            fields["q"], fields["k"], fields["v"] = whole.split(q_width, kv_width, kv_width)
            bias = tensors.optional(self._name("qkv") + ".bias", rows, order)
            if bias is not None:
                fields["q_bias"], fields["k_bias"], fields["v_bias"] = bias.split(q_width, kv_width, kv_width)
        else:
            if config.attention_gate:
                fields["q"], fields["attention_gate"] = self._gated_queries(q_width)
            for name, width, order in (
                *([] if config.attention_gate else [("q", q_width, self._pairs(self._heads))]),
                ("k", kv_width, self._pairs(self._kv_heads)),
                ("v", kv_width, None),
            ):
                fields[name] = tensors.matrix(self._name(name) + ".weight", width, config.hidden, order)
                fields[f"{name}_bias"] = tensors.optional(self._name(name) + ".bias", width, order)
        fields["o"] = tensors.matrix(self._name("o") + ".weight", config.hidden, q_width)
        fields["o_bias"] = tensors.optional(self._name("o") + ".bias", config.hidden)
        if config.qk_norm is not None:
            fields["q_norm"], fields["k_norm"] = self._head_norm("q_norm", q_width), self._head_norm("k_norm", kv_width)
        if config.sinks:
            fields["sinks"] = tensors.vector(self._prefix + "self_attn.sinks", self._heads)
        return fields

    def _gated_queries(self, width: int) -> tuple[Matrix, Matrix]:
        """Queries and the gate of attention's output: of each head, both are in one matrix."""
        order = delta_rows(self._heads, self._config.head_dim, self._config.head_dim)
        whole = self._tensors.matrix(self._name("q") + ".weight", 2 * width, self._config.hidden, order)
        queries, gate = whole.split(width, width)
        return queries, gate

    def _head_norm(self, field: str, width: int) -> Tensor | None:
        """The norm of q or k: [head_dim], or as wide as all heads; None where it has no weights (Llama 4)."""
        tensors, name, dim = self._tensors, self._name(field), self._config.head_dim
        if self._family.name == "llama4":
            return None
        if self._family.name == "stablelm":
            name = f"{self._prefix}self_attn.{field[0]}_layernorm.norms."
            each = [tensors.norm(f"{name}{head}.weight", dim).data for head in range(width // dim)]
            return Tensor("f32", (width,), np.concatenate(each))
        if self._config.qk_norm == "head" and self._family.name == "cohere":
            stored = tensors.table(name + ".weight", width // dim, dim)
            order = self._pairs(width // dim)
            values = tensors.numbers(stored)
            return Tensor("f32", (width,), values if order is None else values[order])
        return tensors.norm(name + ".weight", width if self._config.qk_norm == "whole" else dim)

    def _pairs(self, heads: int) -> NDArray[np.int64] | None:
        """The order of the rows of q or k, None for that of the file."""
        if not self._family.adjacent:
            return None
        return half_split_rows(heads, self._config.head_dim, self._config.rotary_dim)

    def _stacked_order(self) -> NDArray[np.int64] | None:
        """The order of the rows of a stacked qkv."""
        dim, groups = self._config.head_dim, self._kv_heads
        if self._family.stacking == "parts" or groups == 1:
            return None
        return grouped_rows(groups, (self._heads // groups, 1, 1), dim)

    def _mlp(self, inner: int) -> dict[str, Any]:
        config, tensors, hidden = self._config, self._tensors, self._config.hidden
        fields: dict[str, Any] = {}
        if config.gated and "gate_up" in self._names and tensors.has(self._name("gate_up")):
            whole = tensors.matrix(self._name("gate_up") + ".weight", 2 * inner, hidden)
            fields["gate"], fields["up"] = whole.split(inner, inner)
        else:
            for name in ("gate", "up") if config.gated else ("up",):
                fields[name] = tensors.matrix(self._name(name) + ".weight", inner, hidden)
                fields[f"{name}_bias"] = tensors.optional(self._name(name) + ".bias", inner)
        fields["down"] = tensors.matrix(self._name("down") + ".weight", hidden, inner)
        fields["down_bias"] = tensors.optional(self._name("down") + ".bias", hidden)
        if config.activation == "xielu":
            fields["xielu"] = self._xielu()
        return fields

    def _xielu(self) -> Tensor:
        """The factors of xIELU, of which files have logarithms of exp(factor) - 1."""
        tensors, prefix = self._tensors, f"{self._prefix}mlp.act_fn."
        beta = float(tensors.number(prefix + "beta", default=_XIELU_BETA))
        if tensors.contents and beta != _XIELU_BETA:
            raise UnsupportedModelError(f"{prefix}beta is {beta}: only {_XIELU_BETA} is supported")
        positive, negative = (np.logaddexp(0, tensors.values(prefix + name, 1)) for name in ("alpha_p", "alpha_n"))
        return Tensor("f32", (2,), np.concatenate([positive, beta + negative]).astype(np.float32))


def eos_token_ids(folder: Path, data: dict[str, Any]) -> tuple[int, ...]:
    """All end-of-sequence ids: generation_config.json may list more than config.json (Llama 3's <|eot_id|>)."""
    ids: list[int] = []
    for value in (data.get("eos_token_id"), optional_json(folder / "generation_config.json").get("eos_token_id")):
        given = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(token, int) for token in given):
            raise ModelError(f"{folder}: eos_token_id is {value!r}, expected a token id or a list of them")
        ids += given
    return tuple(dict.fromkeys(ids))


def language_prefix(checkpoint: Checkpoint, family: HfFamily) -> str:
    """Prefix of the language model's tensor names: of a model that stands alone, or is part of a multimodal one."""
    names = family.model
    return next((p for p in names.prefixes if f"{p}{names.embedding}.weight" in checkpoint.tensors), names.prefixes[0])


def _row(table: Tensor, row: int) -> Tensor:
    """A row of a matrix, as a vector in float32."""
    return Tensor("f32", table.shape[1:], dequantize(table.rows(row, row + 1)).reshape(-1))


def family_of(path: Path, data: dict[str, Any]) -> HfFamily:
    """The family that config.json names. Raises `UnsupportedModelError` for another one."""
    names = data.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str) or name not in FAMILIES:
        raise UnsupportedModelError(
            f"{path}: architecture {name!r} is not supported; supported are {', '.join(FAMILIES)}"
        )
    return FAMILIES[name]


def _head_name(tensors: HfTensors, family: HfFamily) -> str:
    """The module of the head; transformers also writes the usual name for families with one of their own."""
    return family.model.head if tensors.has(family.model.head) else "lm_head"

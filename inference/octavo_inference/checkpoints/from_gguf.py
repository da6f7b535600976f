"""Loads GGUF files: metadata and tensors into the canonical configuration and weights."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.gguf import GgufFile, GgufTensor
from octavo_inference.checkpoints.gguf_experts import MIXTURES
from octavo_inference.checkpoints.gguf_families import FAMILIES as PLAIN
from octavo_inference.checkpoints.gguf_families import GgufFamily
from octavo_inference.checkpoints.gguf_header import Strings
from octavo_inference.checkpoints.gguf_hybrids import HYBRIDS
from octavo_inference.checkpoints.gguf_latent import latent_weights, with_yarn
from octavo_inference.checkpoints.gguf_matrix import elements, stored_matrix
from octavo_inference.checkpoints.gguf_rope import read_scaling
from octavo_inference.checkpoints.gguf_settings import GgufSettings, shortest
from octavo_inference.checkpoints.gguf_states import state_weights
from octavo_inference.checkpoints.gguf_xielu import xielu
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.rows import delta_rows, half_split_rows, stacked_order
from octavo_inference.models.weights import ExpertWeights, LayerWeights, Matrix, Tensor, Weights, bf16_bits

log = logging.getLogger(__name__)

FAMILIES = PLAIN | HYBRIDS
# Weights that are converted at once.
_PIECE = 1 << 22
# End-of-turn tokens, for files older than the key eot_token_id.
_END_OF_TURN = frozenset({"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"})
_NAMES = {
    "input_norm": "attn_norm",
    "post_norm": "ffn_norm",
    "final_norm": "output_norm",
    "attention_output_norm": "",
    "mlp_output_norm": "",
}


def config_from_gguf(file: GgufFile, digest: str) -> ModelConfig:
    """The decoder's configuration. Raises `ModelError` for an unsupported architecture or feature."""
    architecture = _architecture(file)
    family, settings = FAMILIES[architecture], GgufSettings(file, architecture)

    def divisors(name: str) -> NDArray[np.float32] | None:
        if name not in file.tensors:
            return None
        values = elements(file, _tensor(file, name, (rotary // 2,)))
        if not (values > 0).all():
            raise ModelError(f"{file.path}: {name} has entries that are not positive")
        return values

    hidden, heads = int(settings.number("embedding_length")), settings.widest("attention.head_count")
    if architecture == "mamba2":  # has no attention
        heads = 1
    if heads <= 0 or hidden <= 0:
        raise ModelError(f"{file.path}: {heads} heads of a hidden size of {hidden}")
    layers, head_dim = settings.layers(), int(settings.number("attention.key_length", hidden // heads))
    if not 0 < layers <= len(file.tensors):
        raise ModelError(f"{file.path}: block_count is {layers}, the file has {len(file.tensors)} tensors")
    rotary = int(settings.number("rope.dimension_count", head_dim))
    _check_rotation(file, architecture, head_dim, rotary)
    embedding = _tensor(file, "token_embd.weight")
    theta = settings.number("rope.freq_base", family.theta)
    if theta <= 1:
        raise ModelError(f"{file.path}: {architecture}.rope.freq_base is {theta}, expected more than 1")
    bos = file.metadata.get("tokenizer.ggml.bos_token_id")
    eps = settings.get("attention.layer_norm_rms_epsilon", settings.get("attention.layer_norm_epsilon"))
    common: dict[str, Any] = {
        "architecture": architecture,
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": settings.widest("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate": settings.widest("feed_forward_length", 0),
        "vocab": embedding.shape[0],
        "max_positions": int(settings.number("context_length")),
        "rope_theta": theta,
        "norm_eps": shortest(settings.number("attention.layer_norm_rms_epsilon", eps)),
        "tied_embeddings": "output.weight" not in file.tensors,
        "eos_token_ids": _eos(file),
        "bos_token_id": bos if isinstance(bos, int) else None,
        "rope_scaling": read_scaling(file, settings.number, divisors, theta, rotary),
        "rotary_dim": rotary,
        "attention_softcap": settings.cap("attn_logit_softcapping", 0.0),
        "logit_softcap": settings.cap("final_logit_softcapping", 0.0),
        "query_scale": settings.cap("attention.scale", head_dim**-0.5),
        "qkv_bias": any(f"blk.0.attn_{name}.bias" in file.tensors for name in ("q", "qkv")),
        "output_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "digest": digest,
    }
    config = ModelConfig(**common | family.fields(settings))
    if config.latent is not None:
        config = with_yarn(config, settings)
    if settings.get("expert_count") and config.experts is None:
        known = ", ".join(MIXTURES)
        raise UnsupportedModelError(
            f"{file.path}: a mixture of experts (expert_count) is not supported in {architecture} models; supported are"
            f" those of {known}"
        )
    return config


def weights_from_gguf(file: GgufFile, config: ModelConfig, *, contents: bool = True) -> Weights:
    """Canonical weights; matrices are views of the file or read in pieces, q and k with their rows reordered.

    Raises `ModelError` for tensors that do not fit the metadata. Without `contents` only the header is known, not what
    the file holds: weights then have their formats and sizes, and cannot be read.
    """
    family = FAMILIES[config.architecture]
    tensors = _Tensors(file, config, family, contents)
    layers = tuple(_Layer(tensors, layer).read() for layer in range(config.layers))
    embedding = tensors.matrix("token_embd.weight", config.vocab, config.hidden)
    head = embedding if config.tied_embeddings else tensors.matrix("output.weight", config.vocab, config.hidden)
    given: dict[str, Any] = {}
    if config.embedding_norm:
        given["embedding_norm"] = tensors.vector("token_embd_norm.weight", config.hidden)
        given["embedding_norm_bias"] = tensors.optional("token_embd_norm.bias", config.hidden)
    if config.learned_positions:
        stored = tensors.matrix("position_embd.weight", config.learned_positions, config.hidden)
        given["positions"] = tensors.table("position_embd.weight", stored)
    norm = tensors.name("final_norm")
    return Weights(
        tensors.table("token_embd.weight", embedding),
        layers,
        tensors.vector(f"{norm}.weight", config.hidden) if norm else None,
        head,
        final_norm_bias=tensors.optional(f"{norm}.bias", config.hidden),
        head_bias=tensors.vector("output.bias", config.vocab) if config.head_bias else None,
        **given,
    )


@dataclass(frozen=True, slots=True)
class _Tensors:
    """Reads tensors and checks their shapes against the metadata."""

    file: GgufFile
    config: ModelConfig
    family: GgufFamily
    contents: bool

    def name(self, field: str) -> str:
        """The tensor of a norm, "" if the family has none."""
        return self.family.names.get(field, _NAMES[field])

    def matrix(self, name: str, rows: int, columns: int, order: NDArray[np.int64] | None = None) -> Matrix:
        """A matrix of which row i is that at order[i]."""
        source = _tensor(self.file, name, (rows, columns))
        # Sorted rows of blocks are a copy, which nothing can be read from without contents.
        return stored_matrix(self.file, source, order if self.contents else None)

    def stack(self, name: str, count: int, rows: int, columns: int) -> Matrix:
        """A tensor [count, rows, columns] as [count * rows, columns]."""
        return stored_matrix(self.file, _tensor(self.file, name, (count, rows, columns)))

    def has(self, name: str) -> bool:
        """Whether the file has a tensor."""
        return name in self.file.tensors

    def table(self, name: str, matrix: Matrix) -> Tensor:
        """The embedding, of which kernels read rows: in bfloat16 if its format is read in pieces."""
        if isinstance(matrix, Tensor):
            return matrix
        rows, columns = matrix.shape
        if not self.contents:
            return Tensor("bf16", matrix.shape, np.broadcast_to(np.zeros(1, np.uint16), matrix.shape))
        log.info("%s: %s is converted from %s to bfloat16", self.file.path, name, matrix.format)
        bits = np.empty(matrix.shape, np.uint16)
        step = max(1, _PIECE // columns)
        for start in range(0, rows, step):
            end = min(start + step, rows)
            bits[start:end] = bf16_bits(matrix.read(start, end).dequantize(matrix.grouping))
        return Tensor("bf16", matrix.shape, bits)

    def vector(self, name: str, size: int, order: NDArray[np.int64] | None = None) -> Tensor:
        """A vector, which files may have as a matrix of one row."""
        stored = _tensor(self.file, name)
        if stored.shape != (1, size):
            _tensor(self.file, name, (size,))
        values = elements(self.file, stored)
        return Tensor("f32", (size,), values if order is None else values[order])

    def optional(self, name: str, size: int, order: NDArray[np.int64] | None = None) -> Tensor | None:
        return self.vector(name, size, order) if name in self.file.tensors else None

    def order(self, heads: int) -> NDArray[np.int64] | None:
        """The order of the rows of q or k, of so many heads; None if they are stored in that of backends."""
        if not self.family.adjacent:
            return None
        rotated = self.config.head_dim if self.family.whole else self.config.rotary_dim
        return half_split_rows(heads, self.config.head_dim, rotated)


class _Layer:
    """Reads one layer."""

    def __init__(self, tensors: _Tensors, number: int) -> None:
        self._tensors, self._config, self._number, self._prefix = tensors, tensors.config, number, f"blk.{number}."
        self._part = tensors.config.part(number)

    def read(self) -> LayerWeights:
        """The layer's weights."""
        fields: dict[str, Any] = {}
        for norm in ("input_norm", "post_norm", "attention_output_norm", "mlp_output_norm"):
            fields |= self._norm(norm)
        if self._part.attention:
            fields |= self._attention()
        if self._part.state:
            tensors = self._tensors
            fields["state"] = state_weights(
                tensors.file,
                self._config,
                self._prefix,
                tensors.matrix,
                tiled=tensors.family.tiled,
                contents=tensors.contents,
            )
        if self._part.feed_forward == "dense":
            fields |= self._mlp(int(self._part.intermediate or 0))
        elif self._part.feed_forward == "experts":
            fields["experts"] = self._experts()
        return LayerWeights(**fields)

    def _norm(self, field: str) -> dict[str, Tensor | None]:
        tensors, config = self._tensors, self._config
        name = tensors.name(field)
        if field == "input_norm" and config.shared_norm and tensors.config.architecture == "falcon":
            name = "attn_norm"
        if not name or (field == "post_norm" and config.shared_norm):
            return {}
        mixes = field in {"input_norm", "attention_output_norm"}
        mixers = self._part.attention or self._part.state
        if not (mixers if mixes else self._part.feed_forward != "none"):
            return {}
        full = self._prefix + name
        # Falcon-H1 files have blk.0.ffn_norm without an ending.
        stored = full if tensors.has(full) else full + ".weight"
        return {
            field: tensors.vector(stored, config.hidden),
            f"{field}_bias": tensors.optional(full + ".bias", config.hidden),
        }

    def _attention(self) -> dict[str, Any]:
        tensors, config, p, dim = self._tensors, self._config, self._prefix, self._config.head_dim
        if config.latent is not None:
            found = latent_weights(tensors, config, config.latent, p, adjacent=tensors.family.adjacent)
            output = tensors.matrix(p + "attn_output.weight", config.hidden, config.heads * config.value_dim)
            return {"latent": found, "o": output}
        heads, kv_heads = int(self._part.heads or 0), int(self._part.kv_heads or 0)
        q_width, kv_width, hidden = heads * dim, kv_heads * dim, config.hidden
        fields: dict[str, Any] = {}
        # A gated query: of each head its query, then its gate.
        q_rows, q_order = q_width, tensors.order(heads)
        if config.attention_gate:
            q_rows, q_order = 2 * q_width, delta_rows(heads, dim, dim)
        k_order = tensors.order(kv_heads)
        # All of q, all of k, all of v: converters sort those of other families.
        if p + "attn_qkv.weight" in tensors.file.tensors:
            widths, order = (q_rows, kv_width, kv_width), stacked_order(q_order, k_order, (q_rows, kv_width, kv_width))
            fused = tensors.matrix(p + "attn_qkv.weight", sum(widths), hidden, order)
            fields |= zip("qkv", fused.split(*widths), strict=True)
            bias = tensors.optional(p + "attn_qkv.bias", sum(widths))
            if bias is not None:
                sorted_ = bias if order is None else Tensor("f32", bias.shape, bias.data[order])
                fields |= zip(("q_bias", "k_bias", "v_bias"), sorted_.split(*widths), strict=True)
        else:
            for name, rows, order in (("q", q_rows, q_order), ("k", kv_width, k_order), ("v", kv_width, None)):
                fields[name] = tensors.matrix(f"{p}attn_{name}.weight", rows, hidden, order)
                fields[f"{name}_bias"] = tensors.optional(f"{p}attn_{name}.bias", rows, order)
        if config.attention_gate:
            fields["q"], fields["attention_gate"] = fields["q"].split(q_width, q_width)
        fields["o"] = tensors.matrix(p + "attn_output.weight", hidden, q_width)
        fields["o_bias"] = tensors.optional(p + "attn_output.bias", hidden)
        if config.qk_norm is not None and config.architecture != "llama4":  # whose norms have no weights
            fields["q_norm"] = self._head_norm("attn_q_norm.weight", heads, q_width)
            fields["k_norm"] = self._head_norm("attn_k_norm.weight", kv_heads, kv_width)
        if config.sinks:
            fields["sinks"] = tensors.vector(p + "attn_sinks.weight", heads)
        return fields

    def _head_norm(self, name: str, heads: int, width: int) -> Tensor:
        """The norm of q or k: [head_dim], or as wide as all heads."""
        tensors, dim = self._tensors, self._config.head_dim
        if self._config.qk_norm == "whole":
            return tensors.vector(self._prefix + name, width)
        stored = _tensor(tensors.file, self._prefix + name)
        if stored.shape == (heads, dim):  # a norm for each head
            values = elements(tensors.file, stored)
            order = tensors.order(heads)
            return Tensor("f32", (width,), values if order is None else values[order])
        return tensors.vector(self._prefix + name, dim)

    def _mlp(self, inner: int) -> dict[str, Any]:
        tensors, config, p, hidden = self._tensors, self._config, self._prefix, self._config.hidden
        fields: dict[str, Any] = {}
        if not config.gated or p + "ffn_gate.weight" in tensors.file.tensors:
            for name in ("gate", "up") if config.gated else ("up",):
                fields[name] = tensors.matrix(f"{p}ffn_{name}.weight", inner, hidden)
                fields[f"{name}_bias"] = tensors.optional(f"{p}ffn_{name}.bias", inner)
        else:
            fields["gate"], fields["up"] = tensors.matrix(p + "ffn_up.weight", 2 * inner, hidden).split(inner, inner)
        fields["down"] = tensors.matrix(p + "ffn_down.weight", hidden, inner)
        fields["down_bias"] = tensors.optional(p + "ffn_down.bias", hidden)
        if config.activation == "xielu":
            fields["xielu"] = xielu(tensors.file, self._number, config.layers)
        return fields

    def _experts(self) -> ExpertWeights:
        tensors, config, p = self._tensors, self._config, self._prefix
        experts = config.experts
        if experts is None:
            raise ModelError(f"{tensors.file.path}: {p}ffn_gate_inp in a model without experts")
        hidden, inner, count = config.hidden, experts.intermediate, experts.count
        fields: dict[str, Any] = {}
        sizes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        kinds = tuple(sizes) if config.gated else ("up", "down")
        fields["gate"] = ()
        merged = tensors.has(p + "ffn_gate_up_exps.weight")
        if merged:
            halves = tensors.stack(p + "ffn_gate_up_exps.weight", count, 2 * inner, hidden).split(*[inner] * 2 * count)
            fields["gate"], fields["up"] = tuple(halves[::2]), tuple(halves[1::2])
        for name in kinds:
            rows, columns = sizes[name]
            if name == "down" or not merged:
                fields[name] = self._each(name, count, rows, columns)
            bias = f"{p}ffn_{name}_exps.bias"
            if bias in tensors.file.tensors:
                values = elements(tensors.file, _tensor(tensors.file, bias, (count, rows)))
                fields[f"{name}_bias"] = Tensor("f32", (count, rows), values.reshape(count, rows))
        if experts.shared:
            for name in kinds:
                rows, columns = (hidden, experts.shared) if name == "down" else (experts.shared, hidden)
                fields[f"shared_{name}"] = tensors.matrix(f"{p}ffn_{name}_shexp.weight", rows, columns)
        if experts.shared_gate:
            values = elements(tensors.file, _tensor(tensors.file, p + "ffn_gate_inp_shexp.weight"))
            if values.size != hidden:
                raise ModelError(f"{tensors.file.path}: {p}ffn_gate_inp_shexp has {values.size} numbers, not {hidden}")
            fields["shared_router"] = Tensor("f32", (1, hidden), values.reshape(1, hidden))
        router = tensors.matrix(p + "ffn_gate_inp.weight", count, hidden)
        return ExpertWeights(
            router=tensors.table(p + "ffn_gate_inp.weight", router),
            router_bias=tensors.optional(p + "ffn_gate_inp.bias", count),
            correction=tensors.optional(p + "exp_probs_b.bias", count),
            **fields,
        )

    def _each(self, name: str, count: int, rows: int, columns: int) -> tuple[Matrix, ...]:
        """The matrices of all experts: in one tensor, in old files in one each."""
        tensors, p = self._tensors, self._prefix
        whole = f"{p}ffn_{name}_exps.weight"
        if whole not in tensors.file.tensors and f"{p}ffn_{name}.0.weight" in tensors.file.tensors:
            return tuple(tensors.matrix(f"{p}ffn_{name}.{e}.weight", rows, columns) for e in range(count))
        stored = stored_matrix(tensors.file, _tensor(tensors.file, whole, (count, rows, columns)))
        return tuple(stored.split(*[rows] * count))


def _tensor(file: GgufFile, name: str, shape: tuple[int, ...] | None = None) -> GgufTensor:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise ModelError(f"{file.path}: tensor {name} is missing")
    if shape is not None and tensor.shape != shape:
        raise ModelError(f"{tensor.path}: tensor {name} has shape {tensor.shape}, the metadata says {shape}")
    return tensor


def _architecture(file: GgufFile) -> str:
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise ModelError(f"{file.path}: general.type is {kind!r}, expected a model")
    architecture = file.metadata.get("general.architecture")
    if architecture not in FAMILIES:
        raise UnsupportedModelError(
            f"{file.path}: architecture {architecture!r} is not supported; supported are {', '.join(FAMILIES)}"
        )
    return str(architecture)


def _check_rotation(file: GgufFile, architecture: str, head_dim: int, rotary: int) -> None:
    family = FAMILIES[architecture]
    key = f"{file.path}: {architecture}.rope.dimension_count is {rotary} of heads of {head_dim}"
    if rotary % 2 or not 2 < rotary <= head_dim:
        raise ModelError(f"{key}, expected an even number from 4 up to the size of a head")
    if rotary != head_dim and not family.partial:
        known = ", ".join(name for name, each in FAMILIES.items() if each.partial)
        raise UnsupportedModelError(f"{key}: partial rotation is supported in {known}, not in {architecture}")


def _eos(file: GgufFile) -> tuple[int, ...]:
    """All end-of-sequence and end-of-turn ids."""
    ids = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if ids[1] is None and isinstance(tokens, Strings):
        ids += [index for index, token in enumerate(tokens.read()) if token in _END_OF_TURN]
    return tuple(dict.fromkeys(token for token in ids if isinstance(token, int)))

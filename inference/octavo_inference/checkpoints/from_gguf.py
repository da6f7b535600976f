"""Loads GGUF files: metadata and tensors into the canonical configuration and weights."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.gguf import GgufFile, GgufTensor
from octavo_inference.checkpoints.gguf_header import Strings
from octavo_inference.checkpoints.gguf_matrix import elements, stored_matrix
from octavo_inference.checkpoints.gguf_rope import read_scaling
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import LayerWeights, Matrix, Tensor, Weights, bf16_bits

log = logging.getLogger(__name__)

ARCHITECTURES = ("llama", "qwen2", "qwen3", "smollm3", "granite", "phi3", "gemma2", "gemma3")
# Weights that are converted at once.
_PIECE = 1 << 22
_GEMMA = frozenset({"gemma2", "gemma3"})
# Architectures for which llama.cpp permutes q and k to adjacent rotary pairs.
_PERMUTED = frozenset({"llama", "smollm3", "granite"})
# Every nth layer has full attention; llama.cpp's default for architectures whose files do not state it.
_WINDOW_PATTERN = {"gemma2": 2, "gemma3": 6}
# Gemma's 27B models scale queries by hidden size / heads; a GGUF file identifies them only by their layer count.
_WIDE_QUERIES = frozenset({("gemma2", 46), ("gemma3", 62)})
# End-of-turn tokens, for files older than the key eot_token_id.
_END_OF_TURN = frozenset({"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"})


def config_from_gguf(file: GgufFile, digest: str) -> ModelConfig:
    """The decoder's configuration. Raises `ModelError` for an unsupported architecture or feature."""
    architecture = _architecture(file)

    def number(key: str, default: float | None = None) -> float:
        value = file.metadata.get(f"{architecture}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{file.path}: {architecture}.{key} is {value!r}, expected a number")
        return value

    def cap(key: str, default: float) -> float | None:
        value = number(key, default)
        if value < 0:
            raise ModelError(f"{file.path}: {architecture}.{key} is {value}, expected a positive number")
        return value or None

    def divisors(name: str) -> NDArray[np.float32] | None:
        if name not in file.tensors:
            return None
        values = elements(file, _tensor(file, name, (rotary // 2,)))
        if not (values > 0).all():
            raise ModelError(f"{file.path}: {name} has entries that are not positive")
        return values

    hidden, heads = int(number("embedding_length")), int(number("attention.head_count"))
    if heads <= 0 or hidden <= 0:
        raise ModelError(f"{file.path}: {heads} heads of a hidden size of {hidden}")
    layers, head_dim = int(number("block_count")), int(number("attention.key_length", hidden // heads))
    if not 0 < layers <= len(file.tensors):
        raise ModelError(f"{file.path}: block_count is {layers}, the file has {len(file.tensors)} tensors")
    rotary = int(number("rope.dimension_count", head_dim))
    _refuse_features(file, architecture, head_dim, rotary)
    embedding = _tensor(file, "token_embd.weight")
    theta = number("rope.freq_base", 1e6 if architecture == "gemma3" else 10000.0)
    if theta <= 1:
        raise ModelError(f"{file.path}: {architecture}.rope.freq_base is {theta}, expected more than 1")
    gemma = architecture in _GEMMA
    wide = (architecture, layers) in _WIDE_QUERIES
    granite = architecture == "granite"
    bos = file.metadata.get("tokenizer.ggml.bos_token_id")
    return ModelConfig(
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(number("attention.head_count_kv", heads)),
        head_dim=head_dim,
        intermediate=int(number("feed_forward_length")),
        vocab=embedding.shape[0],
        max_positions=int(number("context_length")),
        rope_theta=theta,
        norm_eps=_shortest(number("attention.layer_norm_rms_epsilon")),
        tied_embeddings="output.weight" not in file.tensors,
        eos_token_ids=_eos(file),
        bos_token_id=bos if isinstance(bos, int) else None,
        rope_scaling=read_scaling(file, number, divisors, theta, rotary),
        rotary_dim=rotary,
        local_rope_theta=number("rope.freq_base_swa", 10000.0) if architecture == "gemma3" else None,
        rotated=tuple((layer + 1) % 4 != 0 for layer in range(layers)) if architecture == "smollm3" else (),
        windows=_windows(file, architecture, layers),
        query_scale=cap("attention.scale", (hidden // heads if wide else head_dim) ** -0.5),
        attention_softcap=cap("attn_logit_softcapping", 50.0 if architecture == "gemma2" else 0.0),
        logit_softcap=cap("final_logit_softcapping", 30.0 if architecture == "gemma2" else 0.0),
        activation="gelu_tanh" if gemma else "silu",
        embedding_scale=hidden**0.5 if gemma else _shortest(number("embedding_scale", 1.0)) if granite else 1.0,
        residual_scale=_shortest(number("residual_scale", 1.0)) if granite else 1.0,
        logit_scale=1 / (cap("logit_scale", 1.0) or 1.0) if granite else 1.0,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm="head" if architecture in {"qwen3", "gemma3"} else None,
        output_norms=gemma,
        digest=digest,
    )


def weights_from_gguf(file: GgufFile, config: ModelConfig, *, contents: bool = True) -> Weights:
    """Canonical weights; matrices are views of the file or read in pieces, q and k with their rows reordered.

    Raises `ModelError` for tensors that do not fit the metadata. Without `contents` only the header is known, not what
    the file holds: weights then have their formats and sizes, and cannot be read.
    """
    tensors = _Tensors(file, config, contents)
    layers = tuple(_layer(tensors, config, f"blk.{layer}.") for layer in range(config.layers))
    embedding = tensors.matrix("token_embd.weight", config.vocab, config.hidden)
    head = embedding if config.tied_embeddings else tensors.matrix("output.weight", config.vocab, config.hidden)
    norm = tensors.vector("output_norm.weight", config.hidden)
    return Weights(tensors.table("token_embd.weight", embedding), layers, norm, head)


@dataclass(frozen=True, slots=True)
class _Tensors:
    """Reads tensors and checks their shapes against the metadata.

    With `heads`, the rows are those of q or k, which some architectures store in another order.
    """

    file: GgufFile
    config: ModelConfig
    contents: bool

    def matrix(self, name: str, rows: int, columns: int, heads: int = 0) -> Matrix:
        source = _tensor(self.file, name, (rows, columns))
        # Sorted rows of blocks are a copy, which nothing can be read from without contents.
        return stored_matrix(self.file, source, self.order(heads) if self.contents else None)

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

    def vector(self, name: str, size: int, heads: int = 0) -> Tensor:
        values = elements(self.file, _tensor(self.file, name, (size,)))
        order = self.order(heads)
        return Tensor("f32", (size,), values if order is None else values[order])

    def order(self, heads: int) -> NDArray[np.int64] | None:
        permuted = heads and self.config.architecture in _PERMUTED
        return half_split_rows(heads, self.config.head_dim) if permuted else None


def _layer(tensors: _Tensors, config: ModelConfig, p: str) -> LayerWeights:
    hidden, ffn, dim = config.hidden, config.intermediate, config.head_dim
    q_width, kv_width = config.heads * dim, config.kv_heads * dim
    # Phi-3 stacks q, k and v in one tensor, and gate and up in another.
    if p + "attn_qkv.weight" in tensors.file.tensors:
        fused = tensors.matrix(p + "attn_qkv.weight", q_width + 2 * kv_width, hidden)
        q, k, v = fused.split(q_width, kv_width, kv_width)
    else:
        q = tensors.matrix(p + "attn_q.weight", q_width, hidden, config.heads)
        k = tensors.matrix(p + "attn_k.weight", kv_width, hidden, config.kv_heads)
        v = tensors.matrix(p + "attn_v.weight", kv_width, hidden)
    if p + "ffn_gate.weight" in tensors.file.tensors:
        gate, up = (tensors.matrix(f"{p}ffn_{name}.weight", ffn, hidden) for name in ("gate", "up"))
    else:
        gate, up = tensors.matrix(p + "ffn_up.weight", 2 * ffn, hidden).split(ffn, ffn)

    def optional(present: bool, name: str, size: int, heads: int = 0) -> Tensor | None:
        return tensors.vector(p + name, size, heads) if present else None

    return LayerWeights(
        input_norm=tensors.vector(p + "attn_norm.weight", hidden),
        q=q,
        k=k,
        v=v,
        o=tensors.matrix(p + "attn_output.weight", hidden, q_width),
        post_norm=tensors.vector(p + "ffn_norm.weight", hidden),
        gate=gate,
        up=up,
        down=tensors.matrix(p + "ffn_down.weight", hidden, ffn),
        q_bias=optional(config.qkv_bias, "attn_q.bias", q_width, config.heads),
        k_bias=optional(config.qkv_bias, "attn_k.bias", kv_width, config.kv_heads),
        v_bias=optional(config.qkv_bias, "attn_v.bias", kv_width),
        o_bias=optional(config.output_bias, "attn_output.bias", hidden),
        gate_bias=optional(config.mlp_bias, "ffn_gate.bias", ffn),
        up_bias=optional(config.mlp_bias, "ffn_up.bias", ffn),
        down_bias=optional(config.mlp_bias, "ffn_down.bias", hidden),
        q_norm=optional(config.qk_norm is not None, "attn_q_norm.weight", dim),
        k_norm=optional(config.qk_norm is not None, "attn_k_norm.weight", dim),
        attention_output_norm=optional(config.output_norms, "post_attention_norm.weight", hidden),
        mlp_output_norm=optional(config.output_norms, "post_ffw_norm.weight", hidden),
    )


def half_split_rows(heads: int, head_dim: int) -> NDArray[np.int64]:
    """Row order that reverts llama.cpp's permutation: from rotary pairs (2i, 2i+1) to (i, i + head_dim/2)."""
    return np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


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
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path}: architecture {architecture!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    return str(architecture)


def _refuse_features(file: GgufFile, architecture: str, head_dim: int, rotary: int) -> None:
    if file.metadata.get(f"{architecture}.expert_count"):
        raise ModelError(f"{file.path}: mixture-of-experts models are not supported")
    # Only Phi-3 stores partially rotated heads in an order that shows the rotated part.
    if (rotary != head_dim and architecture != "phi3") or rotary % 2 or not 2 < rotary <= head_dim:
        raise ModelError(f"{file.path}: rotary dimensions {rotary} of heads of {head_dim}: partial rotation")


def _windows(file: GgufFile, architecture: str, layers: int) -> tuple[int | None, ...]:
    """Each layer's window. A pattern of n gives every nth layer full attention; a list has a flag for each layer."""
    key = f"{architecture}.attention.sliding_window"
    window, context = file.metadata.get(key, 0), file.metadata.get(f"{architecture}.context_length")
    if isinstance(window, bool) or not isinstance(window, int) or window < 0:
        raise ModelError(f"{file.path}: {key} is {window!r}, expected a number of tokens")
    if window == 0:
        return ()
    if architecture not in {"llama", "phi3", *_GEMMA}:
        if isinstance(context, int) and window < context:
            raise ModelError(f"{file.path}: a sliding window ({window} of {context} tokens) of {architecture} models")
        return ()
    pattern = file.metadata.get(f"{key}_pattern", _WINDOW_PATTERN.get(architecture, 0))
    if isinstance(pattern, memoryview):
        if len(pattern) < layers:
            raise ModelError(f"{file.path}: {key}_pattern has {len(pattern)} entries for {layers} layers")
        return tuple(window if local else None for local in pattern[:layers].tolist())
    if isinstance(pattern, bool) or not isinstance(pattern, int) or pattern < 0:
        raise ModelError(f"{file.path}: {key}_pattern is {pattern!r}, expected a number of layers")
    return tuple(None if pattern and (layer + 1) % pattern == 0 else window for layer in range(layers))


def _eos(file: GgufFile) -> tuple[int, ...]:
    """All end-of-sequence and end-of-turn ids."""
    ids = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if ids[1] is None and isinstance(tokens, Strings):
        ids += [index for index, token in enumerate(tokens.read()) if token in _END_OF_TURN]
    return tuple(dict.fromkeys(token for token in ids if isinstance(token, int)))


def _shortest(stored: float) -> float:
    """The shortest decimal of a float32: 1e-5 is stored as 9.99999974e-06."""
    return float(np.format_float_positional(np.float32(stored), unique=True))

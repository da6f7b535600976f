"""Writes GGUF files of random weights in the formats of a Q4_K_M file: read and computed like a trained one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.gguf_header import Header, Strings, read_header
from octavo_inference.checkpoints.resolve import find_model
from octavo_inference.models.config import ModelConfig

F32, Q4_K, Q6_K = (int(gguf.GGMLQuantizationType[name]) for name in ("F32", "Q4_K", "Q6_K"))
BLOCK = 256
BYTES = {Q4_K: 144, Q6_K: 210}
# Root mean square of a block's values before its fp16 factor, scales times levels: half of Q4_K's scales are in
# [32, 64), half in [32, 48), its levels 7.5 around 7.5; Q6_K's scales in [64, 128), its levels in [-32, 32).
_SIZE = {Q4_K: 44.3 * 4.61, Q6_K: 97.3 * 18.48}
_UNUSED = 5


def tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Name, shape and format of each tensor, as llama.cpp's Q4_K_M chooses them.

    The head is in Q6_K, as are v and down of the first and last eighth of the layers and of each third between.
    """
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    hidden, ffn = config.hidden, config.intermediate
    yield "token_embd.weight", (config.vocab, hidden), Q6_K if config.tied_embeddings else Q4_K
    for layer in range(config.layers):
        fine = Q6_K if _more_bits(layer, config.layers) else Q4_K
        prefix = f"blk.{layer}."
        yield prefix + "attn_norm.weight", (hidden,), F32
        yield prefix + "attn_q.weight", (queries, hidden), Q4_K
        yield prefix + "attn_k.weight", (keys, hidden), Q4_K
        yield prefix + "attn_v.weight", (keys, hidden), fine
        yield prefix + "attn_output.weight", (hidden, queries), Q4_K
        if config.qk_norm:
            yield prefix + "attn_q_norm.weight", (config.head_dim,), F32
            yield prefix + "attn_k_norm.weight", (config.head_dim,), F32
        yield prefix + "ffn_norm.weight", (hidden,), F32
        yield prefix + "ffn_gate.weight", (ffn, hidden), Q4_K
        yield prefix + "ffn_up.weight", (ffn, hidden), Q4_K
        yield prefix + "ffn_down.weight", (hidden, ffn), fine
    yield "output_norm.weight", (hidden,), F32
    if not config.tied_embeddings:
        yield "output.weight", (config.vocab, hidden), Q6_K


def _more_bits(layer: int, layers: int) -> bool:
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def size(shape: tuple[int, ...], kind: int) -> int:
    """Bytes of a tensor. ValueError for rows that are not whole blocks."""
    if kind == F32:
        return 4 * math.prod(shape)
    if shape[-1] % BLOCK:
        raise ValueError(f"rows of {shape[-1]} elements are not whole blocks of {BLOCK}: another shape")
    return math.prod(shape) // BLOCK * BYTES[kind]


def blocks(kind: int, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Random blocks [rows, bytes per row]: weights around 0 of size 1 / sqrt(columns), so activations keep theirs."""
    result = rng.integers(0, 256, (math.prod(shape) // BLOCK, BYTES[kind]), dtype=np.uint8)
    factor = 1 / (_SIZE[kind] * math.sqrt(shape[-1]))
    if kind == Q4_K:
        # Scales and minimums are the same six-bit integers, those of the last four sub-blocks in two places each.
        result[:, :4] = np.array([factor, 7.5 * factor], np.float16).view(np.uint8)
        result[:, 4:8] |= 0xA0
        result[:, 4:8] &= 0xBF
        result[:, 8:12] = result[:, 4:8]
        result[:, 12:16] &= 0x0F
        result[:, 12:16] *= 0x11
    else:
        result[:, 192:208] = result[:, 192:208] & 0x3F | 0x40
        result[:, 208:] = np.array([factor], np.float16).view(np.uint8)
    return result.reshape(*shape[:-1], -1)


def write(path: Path, name: str, config: ModelConfig, seed: int = 0) -> Path:
    """Write the file; its vocabulary is the built-in model's and unused words.

    ValueError for rows that are not whole blocks.
    """
    listed = list(tensors(config))
    writer = gguf.GGUFWriter(path, config.architecture)
    writer.add_name(name)
    _describe(writer, config)
    _vocabulary(writer, read_header(find_model("smollm2")), config.vocab)
    for tensor, shape, kind in listed:
        bytes_ = size(shape, kind)
        stored = shape if kind == F32 else (*shape[:-1], bytes_ // math.prod(shape[:-1]))
        type_ = np.dtype(np.float32 if kind == F32 else np.uint8)
        writer.add_tensor_info(tensor, stored, type_, bytes_, raw_dtype=gguf.GGMLQuantizationType(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(seed)
    for _, shape, kind in listed:
        writer.write_tensor_data(np.ones(shape, np.float32) if kind == F32 else blocks(kind, shape, rng))
    writer.close()
    return path


def _describe(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.intermediate)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab)


def _vocabulary(writer: gguf.GGUFWriter, source: Header, count: int) -> None:
    """The source's tokens, cut or filled to `count`, as llama.cpp needs one for each logit."""

    def of(key: str) -> object:
        return source.metadata[f"tokenizer.ggml.{key}"]

    known, kinds, merges = of("tokens"), of("token_type"), of("merges")
    assert isinstance(known, Strings)  # noqa: S101 (the built-in model's are)
    assert isinstance(kinds, memoryview)  # noqa: S101
    assert isinstance(merges, Strings)  # noqa: S101
    words = known.read()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(str(of("pre")))
    writer.add_token_list((words + [f"<|unused_{i}|>" for i in range(len(words), count)])[:count])
    writer.add_token_types((kinds.tolist() + [_UNUSED] * (count - len(words)))[:count])
    kept = set(words[:count])
    pairs = (merge.partition(" ") for merge in merges.read())
    writer.add_token_merges([f"{a} {b}" for a, _, b in pairs if {a, b, a + b} <= kept])
    for role in ("bos", "eos"):
        writer.add_uint32(f"tokenizer.ggml.{role}_token_id", int(str(of(f"{role}_token_id"))))
    writer.add_add_bos_token(False)

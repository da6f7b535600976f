"""Computes a model's memory from the headers of its files: no weight is read.

The sums are those of `build` over loaded weights and of `CpuBackend`'s allocations. Their terms can be multiplied
without knowledge of decoders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from octavo_inference.backends.cpu.native.experts import expert_widths
from octavo_inference.backends.cpu.native.packed_formats import (
    WIDEST_PANEL,
    WeightFormat,
    largest_unpacked,
    packed_bytes,
    weight_format,
)
from octavo_inference.checkpoints.safetensors import read_checkpoint
from octavo_inference.config.engine import Dtype
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import pool_layout
from octavo_inference.models.weights import Weights

_DTYPES: tuple[Dtype, ...] = ("auto", "bfloat16", "float32")
_FORMATS: dict[str, WeightFormat] = {dtype: weight_format(dtype) for dtype in _DTYPES} | {"int8": "int8"}
_QUANTIZED_BLOCK = 48  # Int8Block of int8.h
_LANES = 16  # as many weights of a partial sum are added apart, at most; its maximum takes as much room
_ROW_SEGMENTS = 16


@dataclass(frozen=True, slots=True)
class Footprint:
    """Sizes in bytes. `weights` by dtype or quantization, with the embedding.

    `token` and `row` are working memory for one of each. A thread needs as much as a row, and `thread`.
    """

    weights: dict[str, int]
    kv_elements: int
    token: int
    row: int
    thread: int


def measure(weights: Weights, config: ModelConfig) -> Footprint:
    """Measure a model. Reads no weights: they may be an `outline`'s."""
    if config.task != "generate":
        weights = weights.without_head()
    # float16 becomes bfloat16 only where nothing is lost, so count it as float32.
    tables = [table for table in (weights.embedding, weights.positions) if table is not None]
    embedding = sum(table.nbytes * (2 if table.format == "f16" else 1) for table in tables)
    by_format = {name: embedding + packed_bytes(weights, format_) for name, format_ in _FORMATS.items()}
    return Footprint(
        by_format, pool_layout(config).token_bytes(config, 1), *_working(config), largest_unpacked(weights)
    )


def partial_floats(config: ModelConfig) -> int:
    """Floats of attention's partial sums for one running request or thread.

    A sum is that of one head over 512 keys (attention.h). This is room for sums over 8,192 keys of decodes. Sequences
    for which no room is left are divided by heads alone: up to a fifth longer in attention where there are as many
    heads as threads, more where there are fewer. With latent attention a sum is one of latents.
    """
    summed = config.head_dim if config.latent is None else config.latent.kv_rank
    heads = max(int(config.part(layer).heads or 0) for layer in range(config.layers))
    return _ROW_SEGMENTS * heads * (summed + 2 * _LANES)


def widest_rows(config: ModelConfig) -> tuple[int, int, int]:
    """Most elements, over all layers, of a token: of its q, k, v and gate; of attention's output; inside an MLP."""
    parts = [config.part(layer) for layer in range(config.layers)]
    heads = [(int(part.heads or 0), int(part.kv_heads or 0)) for part in parts if part.attention] or [(0, 0)]
    dim, latent = config.head_dim, config.latent
    inner = max((int(part.intermediate or 0) for part in parts if part.feed_forward == "dense"), default=0)
    if latent is not None:
        projected = config.heads * dim if latent.query_rank is None else latent.query_rank
        return projected + latent.cached_dim, config.heads * latent.value_dim, inner
    gates = 1 if config.attention_gate else 0
    return max((1 + gates) * q + 2 * kv for q, kv in heads) * dim, max(q for q, _ in heads) * dim, inner


def count_elements(folder: Path) -> int:
    """Number of elements in the weights of a safetensors folder."""
    return sum(math.prod(tensor.shape) for tensor in read_checkpoint(folder).tensors.values())


def _working(config: ModelConfig) -> tuple[int, int]:
    """Buffers of the CPU backend for one token of a step, and for one running request or thread.

    The variant of the kernels is known only when a pod starts, so this is the maximum over all variants: activations in
    float32 (AVX-512 BF16 needs half of that), and quantized rows even where no weight is quantized.
    """
    qkv, attended, inner = widest_rows(config)
    latent = latent_widths(config)
    written = [config.hidden, qkv, latent.queries, *([config.hidden] if config.output_norms else [])]
    mixed = 0
    if config.state is not None:
        written.append(sum(config.state.input_rows))
        mixed = config.state.inner
    normed = max(config.hidden, latent.query_latent)
    widths = sum(map(_padded, written)) + normed + attended + inner + mixed + latent.by_head + latent.absorbed
    widest = max(normed, attended, inner, mixed)
    logits = config.vocab if config.task == "generate" else 0
    row = _padded(logits) + partial_floats(config)
    blocks = math.ceil(widest / 32)
    if config.experts is not None:
        mixture = expert_widths(config.experts, config.hidden)
        widths += config.hidden + mixture.router_logits + mixture.inputs + mixture.activated
        blocks += mixture.quantized
    return 4 * widths + blocks * _QUANTIZED_BLOCK, 4 * row


@dataclass(frozen=True, slots=True)
class LatentWidths:
    """Elements of the buffers that latent attention adds, for one token; all 0 without it.

    `query_latent`, from which queries are projected, in float32 `queries`; `by_head` and `absorbed` (latent.h).
    """

    query_latent: int = 0
    queries: int = 0
    by_head: int = 0
    absorbed: int = 0


def latent_widths(config: ModelConfig) -> LatentWidths:
    """The widths for a model."""
    latent, heads = config.latent, config.heads
    if latent is None:
        return LatentWidths()
    queries = 0 if latent.query_rank is None else heads * latent.key_dim
    by_head = heads * max(latent.kv_rank, latent.nope_dim)
    return LatentWidths(latent.query_rank or 0, queries, by_head, heads * latent.cached_dim)


def _padded(rows: int) -> int:
    """Rows of a packed matrix, padded to whole panels."""
    return math.ceil(rows / WIDEST_PANEL) * WIDEST_PANEL

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
    # float16 becomes bfloat16 only where nothing is lost, so count it as float32.
    embedding = weights.embedding.nbytes * (2 if weights.embedding.format == "f16" else 1)
    by_format = {name: embedding + packed_bytes(weights, format_) for name, format_ in _FORMATS.items()}
    return Footprint(by_format, config.kv_bytes_per_token(1), *_working(config), largest_unpacked(weights))


def partial_floats(config: ModelConfig) -> int:
    """Floats of attention's partial sums for one running request or thread.

    A sum is that of one head over 512 keys (attention.h). This is room for sums over 8,192 keys of decodes. Sequences
    for which no room is left are divided by heads alone: up to a fifth longer in attention where there are as many
    heads as threads, more where there are fewer. With latent attention a sum is one of latents.
    """
    summed = config.head_dim if config.latent is None else config.latent.kv_rank
    return _ROW_SEGMENTS * config.heads * (summed + 2 * _LANES)


def count_elements(folder: Path) -> int:
    """Number of elements in the weights of a safetensors folder."""
    return sum(math.prod(tensor.shape) for tensor in read_checkpoint(folder).tensors.values())


def _working(config: ModelConfig) -> tuple[int, int]:
    """Buffers of the CPU backend for one token of a step, and for one running request or thread.

    The variant of the kernels is known only when a pod starts, so this is the maximum over all variants: activations in
    float32 (AVX-512 BF16 needs half of that), and quantized rows even where no weight is quantized.
    """
    attended = config.heads * config.value_dim
    mixer = mixer_widths(config)
    written = [config.hidden, mixer.projected, *([config.hidden] if config.output_norms else [])]
    normed = max(config.hidden, mixer.query_latent)
    widths = sum(map(_padded, written)) + normed + attended + config.intermediate
    widths += _padded(mixer.queries) + mixer.by_head + mixer.absorbed
    widest = max(normed, attended, config.intermediate)
    row = _padded(config.vocab) + partial_floats(config)
    blocks = math.ceil(widest / 32)
    if config.experts is not None:
        mixture = expert_widths(config.experts, config.hidden)
        widths += config.hidden + mixture.router_logits + mixture.inputs + mixture.activated
        blocks += mixture.quantized
    return 4 * widths + blocks * _QUANTIZED_BLOCK, 4 * row


@dataclass(frozen=True, slots=True)
class MixerWidths:
    """Elements of attention's buffers for one token.

    `projected`: q, k and v in float32. Of latent attention alone: `query_latent` from which queries are projected, in
    float32 `queries`; `by_head` and `absorbed` (latent.h).
    """

    projected: int
    query_latent: int = 0
    queries: int = 0
    by_head: int = 0
    absorbed: int = 0


def mixer_widths(config: ModelConfig) -> MixerWidths:
    """The widths for a model, with latent attention or without."""
    queries, latent = config.heads * config.head_dim, config.latent
    if latent is None:
        return MixerWidths(queries + 2 * config.kv_heads * config.head_dim)
    by_head, absorbed = config.heads * max(latent.kv_rank, latent.nope_dim), config.heads * latent.cached_dim
    if latent.query_rank is None:
        return MixerWidths(queries + latent.cached_dim, 0, 0, by_head, absorbed)
    return MixerWidths(latent.query_rank + latent.cached_dim, latent.query_rank, queries, by_head, absorbed)


def _padded(rows: int) -> int:
    """Rows of a packed matrix, padded to whole panels."""
    return math.ceil(rows / WIDEST_PANEL) * WIDEST_PANEL

"""All memory a step works in, allocated once: a server that started cannot run out of it later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor as Torch

from octavo_inference.dist.group import gathered_size
from octavo_inference.model.config import ModelConfig
from octavo_inference.ops.triton.reduce import partial_size
from octavo_inference.ops.triton.tiles import segments_for

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest step: query tokens, sequences (and sample rows); positions of a sequence, and the size of a block.

    `processors` is the device's number of multiprocessors, which decides how far decoding splits a sequence's keys.
    `ranks` is over how many GPUs the model is spread.
    """

    tokens: int
    rows: int
    positions: int
    block_size: int
    processors: int
    ranks: int = 1

    @property
    def columns(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.positions // self.block_size)

    def segments(self, config: ModelConfig, sequences: int) -> int:
        """Into how many parts attention splits the keys of so many decoding sequences."""
        longest = self.columns * self.block_size
        return segments_for(sequences=sequences, kv_heads=config.kv_heads, longest=longest, processors=self.processors)


def buffer_shapes(config: ModelConfig, limits: Limits, dtype: torch.dtype) -> Shapes:
    """Name, shape and type of each buffer. `dtype` is that of activations; sums and the residual stream are float32."""
    tokens, rows = limits.tokens, limits.rows
    attended = config.heads * config.head_dim
    qkv = attended + 2 * config.kv_heads * config.head_dim
    return {
        "inputs": ((inputs_size(limits),), torch.int32),
        "positions": ((tokens,), torch.int32),
        "slots": ((tokens,), torch.int64),
        "residual": ((tokens, config.hidden), torch.float32),
        "normed": ((tokens, config.hidden), dtype),
        "qkv": ((tokens, qkv), dtype),
        "q": ((tokens, config.heads, config.head_dim), dtype),
        "attended": ((tokens, config.heads, config.head_dim), dtype),
        "partial": ((_partial_elements(config, limits),), torch.float32),
        "projected": ((tokens, config.hidden), dtype),
        "gate_up": ((tokens, 2 * config.intermediate), dtype),
        "activated": ((tokens, config.intermediate), dtype),
        "sampled": ((rows, config.hidden), dtype),
        "logits": ((rows, config.vocab), torch.float32),
        "gathered": ((gathered_size(config.vocab, rows, limits.ranks),), torch.float32),
    }


def inputs_size(limits: Limits) -> int:
    """Integers that a step is told: tokens, query starts, lengths, sample rows and block tables."""
    parts = (limits.tokens, limits.rows + 1, limits.rows, limits.rows, limits.rows * limits.columns)
    return sum(map(aligned, parts))


def aligned(size: int) -> int:
    """So many integers, and what is missing to 16 bytes: Triton makes a variant of a kernel for pointers without."""
    return -(-size // 4) * 4


def shapes_bytes(shapes: Shapes) -> int:
    """What `allocate` will take."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes.values())


def allocate(shapes: Shapes, device: torch.device) -> dict[str, Torch]:
    """The buffers, zeroed."""
    return {name: torch.zeros(shape, dtype=dtype, device=device) for name, (shape, dtype) in shapes.items()}


def _partial_elements(config: ModelConfig, limits: Limits) -> int:
    split = [(rows, limits.segments(config, rows)) for rows in range(1, limits.rows + 1)]
    return max(
        (
            partial_size(tokens=rows, heads=config.heads, head_dim=config.head_dim, segments=segments)
            for rows, segments in split
            if segments > 1
        ),
        default=0,
    )

"""All memory a step works in, allocated once: a server that started cannot run out of it later."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.collectives import gathered_size
from octavo_inference.backends.cuda.kernels.launch_configs import segments_for
from octavo_inference.backends.cuda.kernels.split_kv_reduce import partial_size
from octavo_inference.core.model_input import SAMPLING
from octavo_inference.models.config import ModelConfig

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]

CHANGES = 1 << 16
"""Integers of the row table that are sent to the device at a time."""


@dataclass(frozen=True, slots=True)
class StepLimits:
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


def buffer_shapes(config: ModelConfig, limits: StepLimits, dtype: torch.dtype, *, eight: bool = False) -> Shapes:
    """Name, shape and type of each buffer. `dtype` is that of activations; sums and the residual stream are float32.

    `eight`: activations are multiplied in fp8, too (`device.multiplies_fp8`).
    """
    tokens, rows = limits.tokens, limits.rows
    attended = config.heads * config.head_dim
    qkv = attended + 2 * config.kv_heads * config.head_dim
    return {
        "eight": ((tokens * max(config.hidden, attended, config.intermediate) * eight,), torch.uint8),
        "table": ((_end(table_places(limits), limits.rows + 1),), torch.int32),
        "changes": ((CHANGES,), torch.int32),
        "inputs": ((_end(input_places(limits), 1),), torch.int32),
        "tokens": ((tokens,), torch.int32),
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


def table_places(limits: StepLimits) -> dict[str, tuple[int, int]]:
    """Where in its buffer each part of the row table begins, and how wide its rows are: one more than there may be."""
    widths = {"tokens": limits.positions, "blocks": limits.columns, "sampling": len(SAMPLING)}
    return _places(widths, limits.rows + 1)


def input_places(limits: StepLimits) -> dict[str, tuple[int, int]]:
    """Where in its buffer each of a step's inputs begins, and how many integers it may have (see `inputs.Inputs`)."""
    names = ("row", "query_start", "seq_len", "query", "sample_row", "position", "logprobs")
    return _places({name: limits.rows + (name == "query_start") for name in names}, 1)


def aligned(size: int) -> int:
    """So many integers, and what is missing to 16 bytes: Triton makes a variant of a kernel for pointers without."""
    return -(-size // 4) * 4


def shapes_bytes(shapes: Shapes) -> int:
    """What `allocate` will take."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes.values())


def allocate(shapes: Shapes, device: torch.device) -> dict[str, Torch]:
    """The buffers, zeroed."""
    return {name: torch.zeros(shape, dtype=dtype, device=device) for name, (shape, dtype) in shapes.items()}


def _places(widths: Mapping[str, int], rows: int) -> dict[str, tuple[int, int]]:
    starts = itertools.accumulate((aligned(rows * width) for width in widths.values()), initial=0)
    return dict(zip(widths, zip(starts, widths.values(), strict=False), strict=True))


def _end(places: Mapping[str, tuple[int, int]], rows: int) -> int:
    return max(start + rows * width for start, width in places.values())


def _partial_elements(config: ModelConfig, limits: StepLimits) -> int:
    split = [(rows, limits.segments(config, rows)) for rows in range(1, limits.rows + 1)]
    return max(
        (
            partial_size(tokens=rows, heads=config.heads, head_dim=config.head_dim, segments=segments)
            for rows, segments in split
            if segments > 1
        ),
        default=0,
    )

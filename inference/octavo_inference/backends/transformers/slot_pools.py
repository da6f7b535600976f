"""KV pools on CPUs, and what a backend asks of pools on any device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_inference.backends.transformers.attention import ForwardPass, KvShape, Scores
from octavo_inference.backends.transformers.gathered_attention import GatheredAttention, as_index, gathered
from octavo_inference.core.gather import Batch

_CPU = torch.device("cpu")


class KvPools(Protocol):
    """K and V of all attention calls of a module, in blocks."""

    num_blocks: int
    block_size: int

    def __len__(self) -> int:
        """Number of attention calls of a forward pass."""
        ...

    def begin(self, batch: Batch) -> ForwardPass:
        """The forward pass of a batch, which stores and reads here."""
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination), all layers."""
        ...

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Write zeros to whole blocks, all layers."""
        ...

    def to_host(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """Copy whole blocks of all layers: [block, bytes]."""
        ...

    def from_host(self, saved: NDArray[np.generic], blocks: Sequence[int]) -> None:
        """Copy rows returned by `to_host` into as many blocks."""
        ...


class SlotPools:
    """K [slots, heads, key_dim] and V [slots, heads, value_dim] of each attention call, in the order of the calls."""

    def __init__(self, shapes: Sequence[KvShape], dtype: torch.dtype, *, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        slots = num_blocks * block_size
        self._layers = [
            (
                torch.zeros(slots, shape.heads, shape.key_dim, dtype=dtype),
                torch.zeros(slots, shape.heads, shape.value_dim, dtype=dtype),
            )
            for shape in shapes
        ]

    def __len__(self) -> int:
        """Number of attention calls of a forward pass."""
        return len(self._layers)

    def begin(self, batch: Batch) -> SlotPass:
        """The forward pass of a batch."""
        return SlotPass(self._layers, as_index(batch.slots[0], _CPU), gathered(batch, self.block_size, _CPU))

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, all layers."""
        for source, target in pairs:
            for blocks in self._blocks():
                blocks[target] = blocks[source]

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Write zeros to whole blocks, all layers."""
        for pool in self._blocks():
            pool[list(blocks)] = 0

    def to_host(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """Copy whole blocks of all layers: [block, bytes]."""
        saved: NDArray[np.uint8] = torch.cat(
            [pool[list(blocks)].view(torch.uint8) for pool in self._blocks()], dim=1
        ).numpy()
        return saved

    def from_host(self, saved: NDArray[np.generic], blocks: Sequence[int]) -> None:
        """Copy rows returned by `to_host` into as many blocks."""
        start = 0
        for pool in self._blocks():
            end = start + pool.shape[1] * pool.element_size()
            pool[list(blocks)] = torch.from_numpy(saved[:, start:end].copy()).view(pool.dtype)
            start = end

    def _blocks(self) -> list[Tensor]:
        """Views of what blocks hold: [blocks, elements]."""
        return [pool.view(self.num_blocks, -1) for layer in self._layers for pool in layer]


@dataclass(slots=True)
class SlotPass:
    """A forward pass over `SlotPools`."""

    layers: list[tuple[Tensor, Tensor]]
    slots: Tensor
    attention: GatheredAttention
    calls: int = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """Store K and V, and attend."""
        keys, values = self.layers[self.calls]
        self.calls += 1
        keys[self.slots] = key.to(keys.dtype)
        values[self.slots] = value.to(values.dtype)
        return self.attention.attend(query, lambda slots: (keys[slots], values[slots]), scores)


def slot_elements(shapes: Sequence[KvShape]) -> int:
    """Elements of a token in `SlotPools`, all layers."""
    return sum(shape.heads * (shape.key_dim + shape.value_dim) for shape in shapes)

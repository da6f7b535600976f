"""What all parts of a decoder's layers share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor as Torch

from octavo_inference.backends.cuda.adapters import DeviceAdapters
from octavo_inference.backends.cuda.buffers import StepBuffers, StepLimits
from octavo_inference.backends.cuda.collectives import ALONE, RankGroup
from octavo_inference.backends.cuda.inputs import Inputs
from octavo_inference.backends.cuda.kernels.tuned_configs import Tiles
from octavo_inference.backends.cuda.pool import KvPool
from octavo_inference.backends.cuda.rows import DeviceRowTable
from octavo_inference.backends.cuda.state_pool import DeviceStates
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import PoolLayout


@dataclass(frozen=True, slots=True)
class LayerContext:
    """A model's description (or that of a rank's shard, `models.shard`) with its pool, row table and buffers.

    `ropes[layer]` is the table of cosines and sines [positions, rotary dim] or None; `buffers` are of `buffer_shapes`.
    `slopes` [heads] are those of ALiBi. `layout`: which block table and which part of the pool each layer uses.
    `adapters` is None if the backend takes none. Parts run one after the other and share the buffers: `projected` holds
    the result of the part that ran last.
    """

    config: ModelConfig
    tiles: Tiles
    pool: KvPool
    ropes: tuple[Torch | None, ...]
    buffers: StepBuffers[Torch]
    table: DeviceRowTable
    limits: StepLimits
    layout: PoolLayout
    states: DeviceStates
    group: RankGroup = ALONE
    slopes: Torch | None = None
    adapters: DeviceAdapters | None = None

    def heads(self, number: int) -> tuple[int, int]:
        """Heads of queries, and of keys and values, of this rank in a layer."""
        part = self.config.part(number)
        return part.heads or self.config.heads, part.kv_heads or self.config.kv_heads

    def change(self, inputs: Inputs, number: int, matrix: str, x: Torch, out: Torch) -> Torch:
        """Add the changes that adapters make to the products `out` of x with a matrix of a layer; return `out`."""
        if inputs.adapter is not None and self.adapters is not None:
            self.adapters.add(number, matrix, x, out)
        return out

    def change_heads(self, inputs: Inputs, number: int, matrix: str, x: Torch, out: Torch) -> None:
        """Add the changes that adapters make to the products `out` [T, heads, N] of each head's rows of x."""
        if inputs.adapter is not None and self.adapters is not None:
            self.adapters.add_heads(number, matrix, x, out)


def rows_of(buffer: Torch, tokens: int, width: int) -> Torch:
    """Contiguous rows at the start of a buffer, which may be for a wider layer."""
    return buffer.view(-1)[: tokens * width].view(tokens, width)

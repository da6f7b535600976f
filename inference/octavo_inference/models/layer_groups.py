"""Divides the layers of a model into groups that share a block table, so that windows free their blocks.

Attention of a layer is full, or sees a window of tokens, or the chunk that its token lies in. Layers of one kind need
the K and V of the same tokens. All blocks of the pool have the same size: they hold the tokens of `depth` layers.

    Gemma 3 27B, 10 full layers and 52 with a window: depth 5
    groups 0 and 1     5 full layers each            a block table each; blocks stay until the sequence ends
    groups 2 to 12     5 layers with a window each   a block table each; blocks are freed behind the window
                       (the last has 2 layers, and blocks that are 3 / 5 empty)

A model of one kind has one group of all its layers. An encoder needs K and V of one layer at a time: all its layers
use the same places of a block, one after another (depth 1). The idea is vLLM's hybrid KV cache manager.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from math import ceil

from octavo_inference.models.config import ModelConfig
from octavo_protocol.kv_tables import KvTables

_MOST_GROUPS = 16


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers whose K and V of the same tokens lie in the same blocks.

    Their tokens attend to `window` tokens, themselves included, or only within chunks of `chunk` positions; with
    neither, to all before them.
    """

    layers: tuple[int, ...]
    window: int | None = None
    chunk: int | None = None

    @property
    def is_full(self) -> bool:
        """True if its blocks are needed until the sequence ends."""
        return self.window is None and self.chunk is None

    @property
    def reach(self) -> int | None:
        """Most tokens that a token attends to before itself; None for any number."""
        return None if self.is_full else min(n for n in (self.window, self.chunk) if n is not None) - 1

    def first_needed(self, position: int) -> int:
        """The first token that the tokens from `position` on attend to."""
        by_window = 0 if self.window is None else position - self.window + 1
        by_chunk = 0 if self.chunk is None else position // self.chunk * self.chunk
        return max(0, by_window, by_chunk)

    def passed(self, token: int) -> int:
        """The position from which on no token attends to one before `token`. Not for full attention."""
        by_window = [] if self.window is None else [token + self.window - 1]
        by_chunk = [] if self.chunk is None else [ceil(token / self.chunk) * self.chunk]
        return min(by_window + by_chunk)


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """The groups of a model, full ones first. A block of the pool holds its tokens of `depth` layers.

    A group with more layers than that is an encoder's: each layer overwrites what those before it stored.
    """

    groups: tuple[LayerGroup, ...]
    depth: int

    def place(self, layer: int) -> tuple[int, int]:
        """The group of a layer with attention, and the layer's number within a block."""
        for number, group in enumerate(self.groups):
            if layer in group.layers:
                return number, group.layers.index(layer) % self.depth
        raise KeyError(f"layer {layer} has no K and V in the pool")

    @property
    def kinds(self) -> tuple[KvTables, ...]:
        """The number of block tables of each kind."""
        counts = Counter(group.reach for group in self.groups)
        return tuple(KvTables(count, reach) for reach, count in counts.items())

    def token_bytes(self, config: ModelConfig, bytes_per_element: int) -> int:
        """Size of a token in the blocks of all tables, the parts of blocks that no layer uses included."""
        size = config.kv_bytes_per_token(bytes_per_element)
        if len(self.groups) == 1 and self.depth >= config.attention_layers:
            return size
        return size // config.attention_layers * self.depth * len(self.groups)


def one_group(layers: int) -> PoolLayout:
    """All layers in one group with full attention."""
    return PoolLayout((LayerGroup(tuple(range(layers))),), layers)


@cache
def pool_layout(config: ModelConfig) -> PoolLayout:
    """Divide a model's layers into at most 16 groups.

    Each kind leaves less than one block's layers empty. The depth is the one with the least empty layers: their share
    in all groups, which counts for short sequences, plus that in the full groups, which counts for long ones. Gemma 3
    27B: 3 of 65 layers of a block in each group.
    """
    layers = [layer for layer in range(config.layers) if config.part(layer).attention]
    kinds: dict[tuple[int, int], list[int]] = defaultdict(list)
    for layer in layers:
        kinds[_reach(config, layer)].append(layer)
    unlike = len({config.part(layer).kv_heads for layer in layers}) > 1
    if len(kinds) > 1 and unlike:
        kinds = {(0, 0): layers}  # blocks of unlike layers have unlike sizes
    if not kinds:
        return one_group(0)  # only states: blocks without K and V
    if config.bidirectional and not unlike:
        return PoolLayout((LayerGroup(tuple(layers)),), 1)
    if len(kinds) == 1:
        depth = len(layers)
    else:
        fitting = [depth for depth in range(1, len(layers)) if _groups(kinds, depth) <= _MOST_GROUPS]
        depth = min(fitting, key=lambda depth: (_waste(kinds, depth), _groups(kinds, depth)))
    groups = [
        LayerGroup(tuple(members[at : at + depth]), window or None, chunk or None)
        for (window, chunk), members in sorted(kinds.items())
        for at in range(0, len(members), depth)
    ]
    return PoolLayout(tuple(groups), depth)


def _reach(config: ModelConfig, layer: int) -> tuple[int, int]:
    """Window and chunk of a layer; 0 where there is none, or where it holds the longest sequence."""
    if config.bidirectional:
        return 0, 0
    window, chunk = config.window(layer) or 0, config.chunk(layer) or 0
    return window if window < config.max_positions else 0, chunk if chunk < config.max_positions else 0


def _groups(kinds: dict[tuple[int, int], list[int]], depth: int) -> int:
    return sum(ceil(len(members) / depth) for members in kinds.values())


def _waste(kinds: dict[tuple[int, int], list[int]], depth: int) -> float:
    layers = sum(map(len, kinds.values()))
    full = len(kinds.get((0, 0), ()))
    empty = _groups(kinds, depth) * depth / layers - 1
    return empty + (ceil(full / depth) * depth / full - 1 if full else 0)

"""Grouped-query attention over a paged pool, one token at a time: shapes depend on the position alone."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor as Torch
from torch.nn.functional import linear

from octavo_inference.backends.reference.adapters import NO_CHANGES, Changes
from octavo_inference.backends.reference.functions import Norm, norm_of, rotate, softcap
from octavo_inference.backends.reference.tiles import TILE, float32, index, optional, stacked, tiled
from octavo_inference.core.gather import Batch
from octavo_inference.core.model_input import Int32
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.positions import alibi_slopes
from octavo_inference.models.weights import LayerWeights, Tensor, required


class Attention:
    """The mixer of a layer. `pools`: its keys and values, [slots, kv_heads, head_dim] each. `group`: its table."""

    def __init__(
        self,
        config: ModelConfig,
        number: int,
        weights: LayerWeights,
        *,
        slots: int,
        block_size: int,
        rope: Torch | None,
    ) -> None:
        part = config.part(number)
        self._config, self._block_size, self._rope = config, block_size, rope
        self._heads, self._kv_heads = int(part.heads or 0), int(part.kv_heads or 0)
        self._counts = [self._heads, self._kv_heads, self._kv_heads]
        self._window, self._chunk = config.window(number), config.chunk(number)
        self._qkv = torch.cat([float32(required(each)) for each in (weights.q, weights.k, weights.v)])
        self._qkv_bias = stacked(weights.q_bias, weights.k_bias, weights.v_bias)
        self._o, self._o_bias = float32(required(weights.o)), optional(weights.o_bias)
        self._gate = optional(weights.attention_gate)
        self._sinks = optional(weights.sinks)
        self._slopes = torch.from_numpy(alibi_slopes(self._heads)) * config.alibi if config.alibi else None
        by_head, exists = self._by_head, config.qk_norm is not None
        self._q_norm = norm_of(config, by_head(weights.q_norm), by_head(weights.q_norm_bias), exists=exists)
        self._k_norm = norm_of(config, by_head(weights.k_norm), by_head(weights.k_norm_bias), exists=exists)
        self.group = 0
        shape = (slots, self._kv_heads, config.head_dim)
        self.pools = [torch.zeros(shape), torch.zeros(shape)]

    def __call__(self, x: Torch, places: Torch, batch: Batch, changes: Changes = NO_CHANGES) -> Torch:
        """Store K and V of the query tokens, whose normed states are rows `places` of x; the output, in tiles."""
        config = self._config
        rows = tiled(lambda t: linear(t, self._qkv, self._qkv_bias), x)
        parts = torch.split(rows, [count * config.head_dim for count in self._counts], dim=1)
        changed = [changes.add(field, x, part) for field, part in zip("qkv", parts, strict=True)]
        q, k, v = torch.split(tiled(self._prepare, torch.cat(changed, dim=1))[places], self._counts, dim=1)
        positions, slots = index(batch.positions), index(batch.slots[self.group])
        if self._rope is not None:
            q, k = rotate(q, self._rope[positions]), rotate(k, self._rope[positions])
            if config.qk_norm_rotated:
                q, k = self._normed(self._q_norm, q), self._normed(self._k_norm, k)
        elif config.query_temperature is not None:
            floor, factor = config.query_temperature
            q = q * (1 + factor * torch.log1p(torch.floor((positions + 1) / floor)))[:, None, None]
        keys, values = self.pools
        keys[slots], values[slots] = k, v
        mixed = torch.zeros(len(x), self._heads * config.head_dim)
        for i in range(len(batch.seq_len)):
            context = slots_of(batch.block_table[self.group, i], int(batch.seq_len[i]), self._block_size)
            for token in range(int(batch.query_start[i]), int(batch.query_start[i + 1])):
                first, last = self._visible(int(batch.positions[token]), len(context))
                seen = context[first:last]
                distance = (torch.arange(first, last) - int(batch.positions[token])).abs()
                mixed[places[token]] = self._attend(q[token], keys[seen], values[seen], distance)
        gate = self._gate
        if gate is not None:
            logits = changes.add("attention_gate", x, tiled(lambda t: linear(t, gate), x))
            mixed = mixed * tiled(torch.sigmoid, logits)
        return changes.add("o", mixed, tiled(lambda t: linear(t, self._o, self._o_bias), mixed))

    def _visible(self, position: int, length: int) -> tuple[int, int]:
        """The positions that a token attends to."""
        if self._config.bidirectional:
            reach = length if self._window is None else self._window // 2
            return max(0, position - reach), min(length, position + reach + 1)
        first = 0 if self._window is None else max(0, position + 1 - self._window)
        return first if self._chunk is None else max(first, position // self._chunk * self._chunk), position + 1

    def _prepare(self, rows: Torch) -> Torch:
        """Queries, keys and values of a tile, by head and normed."""
        config = self._config
        by_head = rows.view(TILE, -1, config.head_dim)
        q, k, v = torch.split(by_head, self._counts, dim=1)
        if not config.qk_norm_rotated:
            q, k = self._normed(self._q_norm, q), self._normed(self._k_norm, k)
        result = torch.cat([q, k, v], dim=1)
        return result if config.qkv_clip is None else result.clamp(-config.qkv_clip, config.qkv_clip)

    def _normed(self, norm: Norm, x: Torch) -> Torch:
        """Queries or keys, [tokens, heads, head_dim]."""
        return norm(x.flatten(1)).view(x.shape) if self._config.qk_norm == "whole" else norm(x)

    def _by_head(self, weight: Tensor | None) -> Tensor | None:
        """The weights of a norm, [heads, head_dim] where each head has its own."""
        if weight is None or self._config.qk_norm == "whole" or weight.shape[0] == self._config.head_dim:
            return weight
        shape = weight.shape[0] // self._config.head_dim, self._config.head_dim
        return Tensor(weight.format, shape, weight.data.reshape(shape))

    def _attend(self, q: Torch, keys: Torch, values: Torch, distance: Torch) -> Torch:
        """One token's attention: q [heads, dim] over keys and values [context, kv_heads, dim] -> [heads * dim]."""
        groups = q.reshape(self._kv_heads, -1, self._config.head_dim)
        scores = groups.contiguous() @ keys.permute(1, 2, 0).contiguous() * self._config.score_scale
        scores = softcap(scores, self._config.attention_softcap)
        if self._slopes is not None:
            scores = scores - self._slopes.view(self._kv_heads, -1, 1) * distance
        if self._sinks is not None:
            sinks = self._sinks.view(self._kv_heads, -1, 1)
            weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1].contiguous()
        else:
            weights = torch.softmax(scores, dim=-1)
        return (weights @ values.transpose(0, 1).contiguous()).reshape(-1)


def slots_of(blocks: Int32, length: int, block_size: int) -> Torch:
    """The slots of a sequence's first tokens."""
    at = np.arange(length)
    return index(blocks[at // block_size] * block_size + at % block_size)

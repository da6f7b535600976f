"""Latent attention, one token at a time: keys and values of the context are expanded from the latents of the pool."""

from __future__ import annotations

import torch
from torch import Tensor as Torch
from torch.nn.functional import linear

from octavo_inference.backends.reference.attention import slots_of
from octavo_inference.backends.reference.functions import Norm, rotate
from octavo_inference.backends.reference.tiles import float32, index, optional, tiled
from octavo_inference.core.gather import Batch
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import LatentAttention
from octavo_inference.models.weights import LatentWeights, LayerWeights, required


class LatentMixer:
    """The mixer of a layer. `pools`: normed latents and rotated shared keys [slots, cached_dim]. `group`: its table."""

    def __init__(
        self,
        config: ModelConfig,
        latent: LatentAttention,
        layer: LayerWeights,
        weights: LatentWeights,
        *,
        slots: int,
        block_size: int,
        rope: Torch | None,
    ) -> None:
        self._heads, self._scale = config.heads, config.score_scale
        self._latent, self._block_size, self._rope = latent, block_size, rope
        self._kv_down = float32(weights.kv_down)
        self._kv_norm, self._q_norm = (
            Norm(optional(norm), None, latent.norm_eps, centred=False, exists=norm is not None)
            for norm in (weights.kv_norm, weights.q_norm)
        )
        self._q = float32(required(weights.q if weights.q_up is None else weights.q_up))
        self._q_down = optional(weights.q_down)
        self._k_up = float32(weights.k_up).view(config.heads, latent.nope_dim, latent.kv_rank)
        self._v_up = float32(weights.v_up).view(config.heads, latent.value_dim, latent.kv_rank)
        self._o, self._o_bias = float32(required(layer.o)), optional(layer.o_bias)
        self.group = 0
        self.pools = [torch.zeros(slots, latent.cached_dim)]

    def __call__(self, x: Torch, places: Torch, batch: Batch) -> Torch:
        """Store the latents of the query tokens, whose normed states are rows `places` of x; the output, in tiles."""
        latent, [pool] = self._latent, self.pools
        queries, cached = torch.split(
            tiled(self._project, x)[places], [self._heads * latent.key_dim, latent.cached_dim], dim=1
        )
        q = queries.view(-1, self._heads, latent.key_dim)
        if self._rope is not None:
            angles = self._rope[index(batch.positions)]
            q = torch.cat([q[..., : latent.nope_dim], rotate(q[..., latent.nope_dim :], angles)], dim=-1)
            shared = rotate(cached[:, None, latent.kv_rank :], angles)[:, 0]
            cached = torch.cat([cached[:, : latent.kv_rank], shared], dim=-1)
        pool[index(batch.slots[self.group])] = cached
        mixed = torch.zeros(len(x), self._heads * latent.value_dim)
        for i in range(len(batch.seq_len)):
            context = slots_of(batch.block_table[self.group, i], int(batch.seq_len[i]), self._block_size)
            for token in range(int(batch.query_start[i]), int(batch.query_start[i + 1])):
                mixed[places[token]] = self._attend(q[token], pool[context[: int(batch.positions[token]) + 1]])
        return tiled(lambda t: linear(t, self._o, self._o_bias), mixed)

    def _project(self, tile: Torch) -> Torch:
        """Queries [TILE, heads * key_dim], the normed latent and the shared key: all before the rotation."""
        latent = self._latent
        down = linear(tile, self._kv_down)
        normed = self._kv_norm(down[:, : latent.kv_rank].contiguous())
        if self._q_down is not None:
            tile = self._q_norm(linear(tile, self._q_down))
        return torch.cat([linear(tile, self._q), normed, down[:, latent.kv_rank :]], dim=1)

    def _attend(self, q: Torch, cached: Torch) -> Torch:
        """One token's attention: q [heads, key_dim] over [context, cached_dim] -> [heads * value_dim]."""
        latent, shared = self._latent, cached[:, self._latent.kv_rank :].contiguous()
        latents = cached[:, : latent.kv_rank].contiguous().expand(self._heads, -1, -1)
        keys = torch.bmm(latents, self._k_up.transpose(1, 2))
        scores = torch.bmm(keys, q[:, : latent.nope_dim, None].contiguous())[..., 0]
        scores = (scores + q[:, latent.nope_dim :].contiguous() @ shared.T) * self._scale
        values = torch.bmm(latents, self._v_up.transpose(1, 2))
        return torch.bmm(torch.softmax(scores, dim=-1)[:, None], values).reshape(-1)

"""One layer of a decoder: mixers, then a feed-forward part, with the norms and sums around them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor as Torch

from octavo_inference.backends.reference.adapters import NO_CHANGES, Changes
from octavo_inference.backends.reference.attention import Attention
from octavo_inference.backends.reference.feed_forward import Mixture, Mlp
from octavo_inference.backends.reference.functions import norm_of
from octavo_inference.backends.reference.latent import LatentMixer
from octavo_inference.backends.reference.state import StateMixer
from octavo_inference.backends.reference.tiles import tiled
from octavo_inference.core.gather import Batch
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import LayerWeights


class Layer:
    """A layer and its part of the pool. `pools`: tensors with a row for each slot of a token.

    `states`: tensors with a row for each slot of a sequence (`state_slots`). `group`: the block table of its attention.
    Layers of other groups have the same place in a block: `shared` are the pools of the first of them.
    """

    def __init__(
        self,
        config: ModelConfig,
        number: int,
        weights: LayerWeights,
        *,
        slots: int,
        block_size: int,
        rope: Torch | None,
        state_slots: int,
        group: int = 0,
        shared: list[Torch] | None = None,
    ) -> None:
        part = config.part(number)
        self._config = config
        self._mixers: list[Attention | LatentMixer | StateMixer] = []
        self.pools: list[Torch] = []
        self.states: list[Torch] = []
        if part.attention:
            attention: Attention | LatentMixer
            if config.latent is not None and weights.latent is not None:
                attention = LatentMixer(
                    config, config.latent, weights, weights.latent, slots=slots, block_size=block_size, rope=rope
                )
            else:
                attention = Attention(config, number, weights, slots=slots, block_size=block_size, rope=rope)
            attention.group, attention.pools = group, shared or attention.pools
            self._mixers.append(attention)
            self.pools += attention.pools
        if part.state and config.state is not None and weights.state is not None:
            mixer = StateMixer(config.state, weights.state, slots=state_slots, norm_eps=config.norm_eps)
            self._mixers.append(mixer)
            self.states += [mixer.conv, mixer.recurrent]
        self._feed_forward: Callable[[Torch, Changes], Torch] | None = None
        if part.feed_forward == "dense":
            self._feed_forward = Mlp(config, weights)
        elif config.experts is not None and weights.experts is not None:
            self._feed_forward = Mixture(config, config.experts, weights.experts)
        w, after = weights, config.output_norms or config.post_residual_norms
        self._input_norm = norm_of(
            config, w.input_norm, w.input_norm_bias, exists=config.input_norms and part.input_norm
        )
        self._post_norm = norm_of(
            config, w.post_norm, w.post_norm_bias, exists=config.input_norms and not config.shared_norm
        )
        self._attention_norm = norm_of(config, w.attention_output_norm, w.attention_output_norm_bias, exists=after)
        self._mlp_norm = norm_of(config, w.mlp_output_norm, w.mlp_output_norm_bias, exists=after)

    def __call__(self, x: Torch, places: Torch, batch: Batch, changes: Changes = NO_CHANGES) -> Torch:
        """The hidden states after the layer, in tiles; stores what the pool keeps of the query tokens."""
        config = self._config
        normed = tiled(self._input_norm, x)
        mixed = self._mix(normed, places, batch, changes)
        if config.parallel:
            return x + config.residual_scale * (mixed + self._feed(normed if config.shared_norm else x, changes))
        x = self._add(x, mixed) if self._mixers else x
        return x if self._feed_forward is None else self._add_mlp(x, changes)

    def _mix(self, normed: Torch, places: Torch, batch: Batch, changes: Changes) -> Torch:
        """The sum of the mixers' outputs. Adapters change those of plain attention only."""
        mixed = torch.zeros_like(normed)
        for mixer in self._mixers:
            if isinstance(mixer, Attention):
                mixed = mixed + mixer(normed, places, batch, changes)
            else:
                mixed = mixed + mixer(normed, places, batch)
        return mixed

    def _feed(self, x: Torch, changes: Changes) -> Torch:
        """The feed-forward part of a parallel layer, with its own norm if it has one."""
        return x * 0 if self._feed_forward is None else self._feed_forward(tiled(self._post_norm, x), changes)

    def _add(self, x: Torch, mixed: Torch) -> Torch:
        if self._config.post_residual_norms:
            return tiled(self._attention_norm, x + self._config.residual_scale * mixed)
        return x + self._config.residual_scale * tiled(self._attention_norm, mixed)

    def _add_mlp(self, x: Torch, changes: Changes) -> Torch:
        fed = self._feed(x, changes)
        if self._config.post_residual_norms:
            return tiled(self._mlp_norm, x + self._config.residual_scale * fed)
        return x + self._config.residual_scale * tiled(self._mlp_norm, fed)

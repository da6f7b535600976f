"""The decoder op by op: Triton kernels and matrix products over preallocated buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.device_weights import (
    DeviceAttention,
    DeviceLatent,
    DeviceLayer,
    DeviceMlp,
    DeviceWeights,
)
from octavo_inference.backends.cuda.inputs import Inputs
from octavo_inference.backends.cuda.kernels.norm import add_rms_norm, rms_norm
from octavo_inference.backends.cuda.kernels.prepare_inputs import prepare
from octavo_inference.backends.cuda.layers.attention import attention
from octavo_inference.backends.cuda.layers.context import LayerContext
from octavo_inference.backends.cuda.layers.experts import mixture
from octavo_inference.backends.cuda.layers.latent import latent_attention
from octavo_inference.backends.cuda.layers.mlp import mlp


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model, or a rank's shard of it, on the device: a list of layers over the same buffers."""

    context: LayerContext
    weights: DeviceWeights

    def forward(self, inputs: Inputs) -> Torch:
        """Store K and V of all query tokens; return the `logits` of the sample rows."""
        context, weights, count = self.context, self.weights, inputs.tokens
        config, buffers = context.config, context.buffers
        residual, normed, tokens = buffers.residual[:count], buffers.normed[:count], buffers.tokens[:count]
        prepare(
            inputs.row,
            inputs.query_start,
            inputs.seq_len,
            context.table.tokens,
            context.table.blocks,
            context.limits.block_size,
            tokens,
            buffers.positions[:count],
            buffers.slots[:count],
        )
        weights.embedding(tokens, residual, scale=config.embedding_scale)
        rms_norm(residual, weights.layers[0].input_norm, config.norm_eps, normed)
        for number, layer in enumerate(weights.layers):
            mixed = self._mixer(number, layer, normed, inputs)
            self._add(residual, mixed, layer.attention_output_norm, layer.post_norm, normed)
            fed = self._feed_forward(number, layer, normed)
            following = weights.layers[number + 1].input_norm if number + 1 < config.layers else weights.final_norm
            self._add(residual, fed, layer.mlp_output_norm, following, normed)
        torch.index_select(normed, 0, inputs.query, out=buffers.sampled[: len(inputs.query)])
        return self._logits(len(inputs.query))

    def read_out(self, first: int, count: int) -> Torch:
        """The `logits` of `count` query tokens of the last step, from `first` on; at most as many as rows."""
        self.context.buffers.sampled[:count].copy_(self.context.buffers.normed[first : first + count])
        return self._logits(count)

    def logits(self, count: int) -> Torch:
        """Logits [count, vocab] in float32 of the last step's first sample rows.

        Valid until the next `forward` or `read_out`.
        """
        return self.context.buffers.logits[:count]

    def states(self, count: int) -> Torch:
        """Hidden states [count, hidden], after the final norm, of the last step's first query tokens.

        They are valid until the next `forward`, and the same on all ranks.
        """
        return self.context.buffers.normed[:count]

    def _mixer(self, number: int, layer: DeviceLayer, x: Torch, inputs: Inputs) -> Torch:
        mixer, latent = layer.mixer, self.context.config.latent
        if isinstance(mixer, DeviceLatent) and latent is not None:
            return self._sum(latent_attention(self.context, latent, number, mixer, x, inputs))
        return self._sum(attention(self.context, number, cast("DeviceAttention", mixer), x, inputs))

    def _feed_forward(self, number: int, layer: DeviceLayer, x: Torch) -> Torch:
        context, weights = self.context, layer.feed_forward
        if isinstance(weights, DeviceMlp):
            return self._sum(mlp(context, weights, x))
        if context.config.experts is None:
            raise TypeError("experts of a model that has none")
        return self._sum(mixture(context, number, context.config.experts, weights, x))

    def _sum(self, x: Torch) -> Torch:
        """Sum the ranks' partial products."""
        self.context.group.all_reduce(x)
        return x

    def _add(self, residual: Torch, x: Torch, x_norm: Torch | None, norm: Torch, out: Torch) -> None:
        add_rms_norm(residual, x, self.context.config.residual_scale, norm, self.context.config.norm_eps, out, x_norm)

    def _logits(self, count: int) -> Torch:
        """Logits of the first rows of `sampled`."""
        config, group, buffers = self.context.config, self.context.group, self.context.buffers
        logits, head = self.logits(count), self.weights.lm_head
        head(buffers.sampled[:count], group.share(logits, buffers.gathered)[:, : head.rows])
        group.gather(logits, buffers.gathered)
        if config.logit_scale != 1.0:
            logits.mul_(config.logit_scale)
        if config.logit_softcap is not None:
            logits.div_(config.logit_softcap).tanh_().mul_(config.logit_softcap)
        return logits

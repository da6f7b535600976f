"""The decoder op by op: Triton kernels and matrix products over preallocated buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.adapters import DeviceAdapters
from octavo_inference.backends.cuda.device_weights import (
    DeviceAttention,
    DeviceExperts,
    DeviceLatent,
    DeviceLayer,
    DeviceMlp,
    DeviceWeights,
)
from octavo_inference.backends.cuda.inputs import Inputs
from octavo_inference.backends.cuda.kernels.norm import DeviceNorm, add_normalize, normalize
from octavo_inference.backends.cuda.kernels.prepare_inputs import prepare
from octavo_inference.backends.cuda.layers.attention import attention
from octavo_inference.backends.cuda.layers.context import LayerContext
from octavo_inference.backends.cuda.layers.experts import mixture
from octavo_inference.backends.cuda.layers.latent import latent_attention
from octavo_inference.backends.cuda.layers.mlp import mlp
from octavo_inference.backends.cuda.layers.state import state_layer


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a layer, with the norm of its inputs and that of its output; `run(x, inputs)` computes it."""

    norm: DeviceNorm | None
    output_norm: DeviceNorm | None
    run: Callable[[Torch, Inputs], Torch]


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
            buffers.slots[:, :count],
        )
        weights.embedding(tokens, residual, scale=config.embedding_scale, positions=buffers.positions[:count])
        adapters = None if inputs.adapter is None else context.adapters
        if adapters is not None and inputs.adapter is not None:
            adapters.begin(inputs, inputs.adapter)
            adapters.add_embedding(tokens, residual, config.embedding_scale)
            adapters.replace_embedding(
                tokens, residual, config.embedding_scale, buffers.positions[:count], weights.embedding.positions
            )
        if weights.embedding_norm is not None:
            normalize(residual, weights.embedding_norm, config.norm_eps, residual)
        parts = list(self._parts())
        if parts[0].norm is None:
            normed.copy_(residual)
        else:
            normalize(residual, parts[0].norm, config.norm_eps, normed)
        for part, following in zip(parts, [*(part.norm for part in parts[1:]), weights.final_norm], strict=True):
            self._add(residual, part.run(normed, inputs), part.output_norm, following, normed)
        torch.index_select(normed, 0, inputs.query, out=buffers.sampled[: len(inputs.query)])
        if adapters is not None:
            adapters.begin_samples(inputs.query)
        return self._logits(len(inputs.query), adapters)

    def read_out(self, first: int, count: int, *, adapted: bool) -> Torch:
        """The `logits` of `count` query tokens of the last step, from `first` on; at most as many as rows.

        `adapted`: the step has adapters.
        """
        self.context.buffers.sampled[:count].copy_(self.context.buffers.normed[first : first + count])
        adapters = self.context.adapters if adapted else None
        if adapters is not None:
            adapters.begin_range(first, count)
        return self._logits(count, adapters)

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

    def _parts(self) -> Iterator[_Part]:
        """The parts of all layers, in order."""
        config = self.context.config
        for number, layer in enumerate(self.weights.layers):
            if config.parallel and layer.mixer is not None and layer.feed_forward is not None:
                yield _Part(layer.input_norm, None, partial(self._parallel, number, layer, layer.feed_forward))
                continue
            if layer.mixer is not None or layer.state is not None:
                yield _Part(layer.input_norm, layer.attention_output_norm, partial(self._mixers, number, layer))
            if layer.feed_forward is not None:
                fed = partial(self._feed_forward, number, layer.feed_forward)
                yield _Part(layer.post_norm, layer.mlp_output_norm, fed)

    def _attention(self, number: int, layer: DeviceLayer, x: Torch, inputs: Inputs) -> Torch | None:
        mixer, latent = layer.mixer, self.context.config.latent
        if mixer is None:
            return None
        if isinstance(mixer, DeviceLatent) and latent is not None:
            return latent_attention(self.context, latent, number, mixer, x, inputs)
        return attention(self.context, number, cast("DeviceAttention", mixer), x, inputs)

    def _mixers(self, number: int, layer: DeviceLayer, x: Torch, inputs: Inputs) -> Torch:
        """The sum of the outputs of a layer's mixers, over all ranks."""
        return self._sum(self._mixed(number, layer, x, inputs))

    def _parallel(
        self, number: int, layer: DeviceLayer, weights: DeviceMlp | DeviceExperts, x: Torch, inputs: Inputs
    ) -> Torch:
        """The sum of the outputs of mixers and of the feed-forward part, which read the same residual stream."""
        config, buffers = self.context.config, self.context.buffers
        mixed = self._mixed(number, layer, x, inputs)
        if layer.post_norm is not None:  # else both read x
            normalize(buffers.residual[: len(x)], layer.post_norm, config.norm_eps, x)
        return self._sum(mixed.add_(self._fed(number, weights, x, buffers.added[: len(x)], inputs)))

    def _mixed(self, number: int, layer: DeviceLayer, x: Torch, inputs: Inputs) -> Torch:
        """The sum of the outputs of a layer's mixers, of this rank alone."""
        context, buffers = self.context, self.context.buffers
        mixed = self._attention(number, layer, x, inputs)
        if layer.state is not None and context.config.state is not None:
            out = (buffers.projected if mixed is None else buffers.added)[: len(x)]
            state_layer(context, number, context.config.state, layer.state, x, inputs, out)
            mixed = out if mixed is None else mixed.add_(out)
        return cast("Torch", mixed)

    def _feed_forward(self, number: int, weights: DeviceMlp | DeviceExperts, x: Torch, inputs: Inputs) -> Torch:
        return self._sum(self._fed(number, weights, x, self.context.buffers.projected[: len(x)], inputs))

    def _fed(self, number: int, weights: DeviceMlp | DeviceExperts, x: Torch, out: Torch, inputs: Inputs) -> Torch:
        """The output of a feed-forward part, of this rank alone."""
        context = self.context
        if isinstance(weights, DeviceMlp):
            return mlp(context, number, weights, x, out, inputs)
        if context.config.experts is None:
            raise TypeError("experts of a model that has none")
        return mixture(context, number, context.config.experts, weights, x, out, inputs)

    def _sum(self, x: Torch) -> Torch:
        """Sum the ranks' partial products."""
        self.context.group.all_reduce(x)
        return x

    def _add(self, residual: Torch, x: Torch, x_norm: DeviceNorm | None, norm: DeviceNorm | None, out: Torch) -> None:
        config = self.context.config
        if config.post_residual_norms:
            add_normalize(residual, x, config.residual_scale, x_norm, config.norm_eps, out, keep=True)
        else:
            add_normalize(residual, x, config.residual_scale, norm, config.norm_eps, out, x_norm)

    def _logits(self, count: int, adapters: DeviceAdapters | None) -> Torch:
        """Logits of the first rows of `sampled`, which were sorted last if they have adapters."""
        config, group, buffers = self.context.config, self.context.group, self.context.buffers
        logits, head = self.logits(count), self.weights.lm_head
        own = group.share(logits, buffers.gathered)[:, : head.rows]
        head(buffers.sampled[:count], own)
        if adapters is not None:
            adapters.add(None, "lm_head", buffers.sampled[:count], own)
        group.gather(logits, buffers.gathered)
        if adapters is not None:
            adapters.replace_logits(buffers.sampled[:count], logits)
        if config.logit_scale != 1.0:
            logits.mul_(config.logit_scale)
        if config.logit_softcap is not None:
            logits.div_(config.logit_softcap).tanh_().mul_(config.logit_softcap)
        return logits

"""State layers of the reference backend, token by token: Mamba-2, gated delta nets, short convolutions.

Each operation has a shape that depends on the model alone, so a state has the same bits however a prompt is divided
into steps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor as Torch
from torch.nn.functional import linear, silu, softplus

from octavo_inference.backends.reference.tiles import float32, optional, tiled
from octavo_inference.core.gather import Batch
from octavo_inference.models.layers import GatedDelta, Mamba2, StateLayer
from octavo_inference.models.weights import StateWeights, required

_NORM_FLOOR = 1e-6  # of the squared length of queries and keys

Update = Callable[[Torch, Torch, Torch], Torch]
"""(projected inputs of a token, its conv state, its recurrent state) -> mixed elements; the states are updated."""


class StateMixer:
    """The state layer of a decoder layer, and its states.

    `conv` [slots, conv_tokens, channels], the oldest token first, and `recurrent` [slots, heads, rows, columns].
    """

    def __init__(self, layer: StateLayer, weights: StateWeights, *, slots: int, norm_eps: float) -> None:
        shape = layer.shape
        self.conv = torch.zeros(slots, shape.conv_tokens, shape.channels)
        self.recurrent = torch.zeros(slots, shape.heads, shape.rows, shape.columns)
        self._inputs, self._inputs_bias = (
            torch.cat([float32(each) for each in weights.inputs]),
            optional(weights.inputs_bias),
        )
        self._output, self._output_bias = float32(weights.output), optional(weights.output_bias)
        self._update = _update_of(layer, weights, norm_eps)

    def __call__(self, x: Torch, places: Torch, batch: Batch) -> Torch:
        """The output for query tokens whose normed states are rows `places` of x, in tiles; updates the states."""
        inputs = tiled(lambda t: linear(t, self._inputs, self._inputs_bias), x)[places]
        mixed = torch.zeros(len(x), self._output.shape[1])
        for i, slot in enumerate(batch.states.tolist()):
            start, end = int(batch.query_start[i]), int(batch.query_start[i + 1])
            conv, recurrent = self.conv[slot], self.recurrent[slot]
            if int(batch.seq_len[i]) == end - start:
                conv.zero_()
                recurrent.zero_()
            for token in range(start, end):
                mixed[places[token]] = self._update(inputs[token].clone(), conv, recurrent)
        return tiled(lambda t: linear(t, self._output, self._output_bias), mixed)


def _update_of(layer: StateLayer, weights: StateWeights, norm_eps: float) -> Update:
    """The update of a state by one token."""
    if isinstance(layer, Mamba2):
        return _mamba(layer, weights, norm_eps)
    if isinstance(layer, GatedDelta):
        return _gated_delta(layer, weights, norm_eps)
    convolve = _convolution(weights)

    def update(inputs: Torch, conv: Torch, _recurrent: Torch) -> Torch:
        before, after, x = inputs.chunk(3)
        return after * convolve(before * x, conv)

    return update


def _convolution(weights: StateWeights) -> Callable[[Torch, Torch], Torch]:
    """A causal convolution of each channel: a token's channels and those before it, which move on by one."""
    kernel = float32(weights.conv).t().contiguous()
    bias = optional(weights.conv_bias)

    def convolve(channels: Torch, conv: Torch) -> Torch:
        window = torch.cat([conv, channels[None]])
        conv.copy_(window[1:])
        found = (window * kernel).sum(0)
        return found if bias is None else found + bias

    return convolve


def _mamba(layer: Mamba2, weights: StateWeights, norm_eps: float) -> Update:
    convolve = _convolution(weights)
    rate = -torch.exp(float32(required(weights.decay)))
    step_bias, skip = float32(required(weights.step_bias)), float32(required(weights.skip))[:, None]
    norm = optional(weights.norm)
    shared = layer.groups * layer.state
    per_group = layer.heads // layer.groups

    def normed(y: Torch) -> Torch:
        if norm is None:
            return y
        parts = y.view(layer.norm_groups, -1)
        return (parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + norm_eps)).view(-1) * norm

    def update(inputs: Torch, conv: Torch, recurrent: Torch) -> Torch:
        z, channels, dt = torch.split(inputs, [layer.inner, layer.inner + 2 * shared, layer.heads])
        x, b, c = torch.split(silu(convolve(channels, conv)), [layer.inner, shared, shared])
        x = x.view(layer.heads, layer.head_dim)
        b, c = (t.view(layer.groups, 1, layer.state).repeat_interleave(per_group, 0) for t in (b, c))
        dt = softplus(dt + step_bias).clamp(layer.dt_least, layer.dt_most)
        recurrent.mul_(torch.exp(dt * rate)[:, None, None]).add_((dt[:, None] * x)[..., None] * b)
        y = ((recurrent * c).sum(-1) + skip * x).view(-1)
        return normed(y) * silu(z) if layer.norm_first else normed(y * silu(z))

    return update


def _gated_delta(layer: GatedDelta, weights: StateWeights, norm_eps: float) -> Update:
    convolve = _convolution(weights)
    rate = -torch.exp(float32(required(weights.decay)))
    step_bias, norm = float32(required(weights.step_bias)), float32(required(weights.norm))
    keys, values = layer.key_heads * layer.key_dim, layer.value_heads * layer.value_dim
    shared, scale = layer.value_heads // layer.key_heads, float(layer.key_dim**-0.5)

    def unit(heads: Torch) -> Torch:
        heads = heads.view(layer.key_heads, layer.key_dim)
        normed = heads * torch.rsqrt(heads.pow(2).sum(-1, keepdim=True) + _NORM_FLOOR)
        return normed.repeat_interleave(shared, 0)

    def update(inputs: Torch, conv: Torch, recurrent: Torch) -> Torch:
        sections = [2 * keys + values, values, layer.value_heads, layer.value_heads]
        channels, z, b, a = torch.split(inputs, sections)
        q, k, v = torch.split(silu(convolve(channels, conv)), [keys, keys, values])
        q, k, v = unit(q) * scale, unit(k)[..., None], v.view(layer.value_heads, layer.value_dim)
        recurrent.mul_(torch.exp(rate * softplus(a + step_bias))[:, None, None])
        known = (recurrent * k).sum(1)
        recurrent.add_(k * (torch.sigmoid(b)[:, None] * (v - known))[:, None])
        y = (recurrent * q[..., None]).sum(1)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + norm_eps) * norm
        return y.view(-1) * silu(z)

    return update

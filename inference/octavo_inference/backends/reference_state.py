"""State layers of the reference backend, token by token: Mamba-2, gated delta nets, short convolutions.

Each operation has a shape that depends on the model alone, so a state has the same bits however a prompt is divided
into steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as Torch
from torch.nn.functional import silu, softplus

from octavo_inference.core.gather import Batch
from octavo_inference.models.layers import GatedDelta, Mamba2, StateLayer, StateShape
from octavo_inference.models.weights import StateWeights, Tensor, dequantize

_NORM_FLOOR = 1e-6  # of the squared length of queries and keys

Update = Callable[[Torch, Torch, Torch], Torch]
"""(projected inputs of a token, its conv state, its recurrent state) -> mixed elements; the states are updated."""


class StatePool:
    """Float32 states of all state layers: `conv` [layers, slots, conv_tokens, channels], the oldest token first, and
    `recurrent` [layers, slots, heads, rows, columns].
    """

    def __init__(self, shape: StateShape, layers: int, slots: int) -> None:
        self.conv = torch.zeros(layers, slots, shape.conv_tokens, shape.channels)
        self.recurrent = torch.zeros(layers, slots, shape.heads, shape.rows, shape.columns)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole slots (source, destination), all layers."""
        sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
        for states in (self.conv, self.recurrent):
            states[:, targets] = states[:, sources]

    def to_host(self, slots: Sequence[int]) -> NDArray[np.generic]:
        """Copy whole slots of all layers: [slot, elements]."""
        parts = [states[:, list(slots)].transpose(0, 1).flatten(1) for states in (self.conv, self.recurrent)]
        saved: NDArray[np.float32] = torch.cat(parts, dim=1).numpy()
        return saved

    def from_host(self, saved: NDArray[np.generic], slots: Sequence[int]) -> None:
        """Copy rows returned by `to_host` into as many slots."""
        at = 0
        for states in (self.conv, self.recurrent):
            by_slot = states.transpose(0, 1)
            size = by_slot[0].numel()
            part = torch.from_numpy(saved[:, at : at + size].copy())
            states[:, list(slots)] = part.view(len(slots), *by_slot.shape[1:]).transpose(0, 1)
            at += size


def scan(update: Update, inputs: Torch, batch: Batch, conv: Torch, recurrent: Torch, inner: int) -> Torch:
    """Mixed elements [tokens, inner] of a layer for all query tokens.

    inputs [tokens, rows of `StateWeights.inputs`]; `conv` and `recurrent` are the layer's states of all slots.
    """
    mixed = torch.zeros(len(inputs), inner)
    for i, slot in enumerate(batch.states.tolist()):
        start, end = int(batch.query_start[i]), int(batch.query_start[i + 1])
        if int(batch.seq_len[i]) == end - start:
            conv[slot] = 0
            recurrent[slot] = 0
        for token in range(start, end):
            mixed[token] = update(inputs[token].clone(), conv[slot], recurrent[slot])
    return mixed


def update_of(layer: StateLayer, weights: StateWeights, norm_eps: float) -> Update:
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
    kernel = _vector(weights.conv).t().contiguous()
    bias = None if weights.conv_bias is None else _vector(weights.conv_bias)

    def convolve(channels: Torch, conv: Torch) -> Torch:
        window = torch.cat([conv, channels[None]])
        conv.copy_(window[1:])
        found = (window * kernel).sum(0)
        return found if bias is None else found + bias

    return convolve


def _mamba(layer: Mamba2, weights: StateWeights, norm_eps: float) -> Update:
    convolve = _convolution(weights)
    rate = -torch.exp(_vector(weights.decay))
    step_bias, skip = _vector(weights.step_bias), _vector(weights.skip)[:, None]
    norm = None if weights.norm is None else _vector(weights.norm)
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
    rate = -torch.exp(_vector(weights.decay))
    step_bias, norm = _vector(weights.step_bias), _vector(weights.norm)
    keys, values = layer.key_heads * layer.key_dim, layer.value_heads * layer.value_dim
    shared = layer.value_heads // layer.key_heads

    def unit(heads: Torch) -> Torch:
        heads = heads.view(layer.key_heads, layer.key_dim)
        return (heads * torch.rsqrt(heads.pow(2).sum(-1, keepdim=True) + _NORM_FLOOR)).repeat_interleave(shared, 0)

    def update(inputs: Torch, conv: Torch, recurrent: Torch) -> Torch:
        sections = [2 * keys + values, values, layer.value_heads, layer.value_heads]
        channels, z, b, a = torch.split(inputs, sections)
        q, k, v = torch.split(silu(convolve(channels, conv)), [keys, keys, values])
        q, k, v = unit(q) * layer.key_dim**-0.5, unit(k)[..., None], v.view(layer.value_heads, layer.value_dim)
        recurrent.mul_(torch.exp(rate * softplus(a + step_bias))[:, None, None])
        known = (recurrent * k).sum(1)
        recurrent.add_(k * (torch.sigmoid(b)[:, None] * (v - known))[:, None])
        y = (recurrent * q[..., None]).sum(1)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + norm_eps) * norm
        return y.view(-1) * silu(z)

    return update


def _vector(tensor: Tensor | None) -> Torch:
    if tensor is None:
        raise TypeError("a state layer without a tensor that its kind has")
    return torch.from_numpy(dequantize(tensor).copy())

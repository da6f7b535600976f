"""Tiny random models with state layers, and a numpy oracle of these layers: token by token, in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from octavo_inference.core.gather import Batch
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import GatedDelta, LayerParts, Mamba2, ShortConv, StateLayer
from octavo_inference.models.weights import LayerWeights, StateWeights, Tensor, Weights, dequantize, required

from .decoders import random_weights, tensor
from .test_forward import TINY, Float32, Story, batch_of

Float64 = NDArray[np.float64]

MAMBA = Mamba2(heads=4, head_dim=32, state=16, groups=2, kernel=4)
DELTA = GatedDelta(key_heads=2, value_heads=4, key_dim=16, value_dim=32, kernel=4)
CONV = ShortConv(channels=64, kernel=3)
STATE, ATTENTION = LayerParts(attention=False, state=True), LayerParts()
BOTH, STATE_ALONE = LayerParts(state=True), LayerParts(attention=False, state=True, feed_forward="none")
MLP_ALONE = LayerParts(attention=False)


def state_config(state: StateLayer, *parts: LayerParts, **changes: object) -> ModelConfig:
    """A model of layers with these parts."""
    return replace(TINY, layers=len(parts), parts=parts, state=state, **changes)  # type: ignore[arg-type]


def state_weights(config: ModelConfig, state: StateLayer, rng: np.random.Generator, *, bias: bool) -> StateWeights:
    """Random weights of a layer: decays between those of one and of many tokens."""
    shape, sizes, inner = state.shape, state.input_rows, state.inner
    by_head = isinstance(state, Mamba2 | GatedDelta)

    def vector(values: NDArray[np.floating]) -> Tensor:
        return Tensor("f32", values.shape, values.astype(np.float32))

    has_norm = isinstance(state, GatedDelta) or (isinstance(state, Mamba2) and state.norm_groups > 0)
    return StateWeights(
        inputs=tuple(tensor(rng, size, config.hidden) for size in sizes),
        conv=tensor(rng, shape.channels, shape.conv_tokens + 1),
        output=tensor(rng, config.hidden, inner),
        inputs_bias=tensor(rng, sum(sizes)) if bias else None,
        conv_bias=tensor(rng, shape.channels) if bias else None,
        output_bias=tensor(rng, config.hidden) if bias else None,
        decay=vector(np.log(rng.uniform(0.02, 4, shape.heads))) if by_head else None,
        step_bias=vector(rng.uniform(-3, 1, shape.heads)) if by_head else None,
        skip=vector(rng.standard_normal(shape.heads)) if isinstance(state, Mamba2) else None,
        norm=tensor(rng, state.value_dim if isinstance(state, GatedDelta) else inner) if has_norm else None,
    )


def random_model(config: ModelConfig, rng: np.random.Generator, *, bias: bool = False) -> Weights:
    """Random weights of a model: each layer has those of its parts alone."""
    weights, layers = random_weights(config, rng), []
    for number, layer in enumerate(weights.layers):
        part = config.part(number)
        changes: dict[str, object] = {}
        if part.attention and config.attention_gate:
            changes["attention_gate"] = tensor(rng, config.heads * config.head_dim, config.hidden)
        if part.state and config.state is not None:
            changes["state"] = state_weights(config, config.state, rng, bias=bias)
            changes["input_norm"] = tensor(rng, config.hidden)
        layers.append(replace(layer, **changes))  # type: ignore[arg-type]
    return replace(weights, layers=tuple(layers))


def states_batch(stories: list[Story], slots: list[int] | None = None, block_size: int = 32) -> Batch:
    """A step of stories whose states are in these slots, by default one after another."""
    given = range(len(stories)) if slots is None else slots
    return replace(batch_of(stories, block_size), states=np.array(given, np.int32))


def oracle(config: ModelConfig, weights: Weights, tokens: list[int]) -> Float32:
    """Logits [tokens, vocab] of a model whose layers are state layers without other parts."""
    x = dequantize(weights.embedding)[tokens].astype(np.float64)
    for layer in weights.layers:
        x = x + mixed(config, layer, normed(x, layer.input_norm, config.norm_eps))
    logits: Float64 = normed(x, weights.final_norm, config.norm_eps) @ dequantize(weights.lm_head).T
    return logits.astype(np.float32)


def mixed(config: ModelConfig, layer: LayerWeights, h: Float64) -> Float64:
    """A state layer's outputs [tokens, hidden]."""
    state, w = config.state, layer.state
    assert state is not None
    assert w is not None
    rows = h @ np.concatenate([dequantize(each) for each in w.inputs]).T + _bias(w.inputs_bias)
    parts = np.split(rows, np.cumsum(state.input_rows)[:-1], axis=1)
    if isinstance(state, Mamba2):
        out = _mamba(config, state, w, parts)
    elif isinstance(state, GatedDelta):
        out = _gated_delta(config, state, w, parts)
    else:
        before, after, x = parts
        out = after * convolved(before * x, w)
    result: Float64 = out @ dequantize(w.output).T + _bias(w.output_bias)
    return result


def _mamba(config: ModelConfig, state: Mamba2, w: StateWeights, parts: list[Float64]) -> Float64:
    z, x, b, c, dt = parts
    count, shared = len(z), state.heads // state.groups
    x, b, c = np.split(silu(convolved(np.concatenate([x, b, c], 1), w)), np.cumsum([state.inner, b.shape[1]]), axis=1)
    x = x.reshape(count, state.heads, state.head_dim)
    b, c = (np.repeat(each.reshape(count, state.groups, state.state), shared, 1) for each in (b, c))
    dt = np.clip(softplus(dt + _vector(w.step_bias)), state.dt_least, state.dt_most)
    decay = np.exp(-np.exp(_vector(w.decay)) * dt)
    memory = np.zeros((state.heads, state.head_dim, state.state))
    y = np.zeros_like(x)
    for t in range(count):
        memory = memory * decay[t][:, None, None] + (dt[t][:, None] * x[t])[..., None] * b[t][:, None]
        y[t] = (memory * c[t][:, None]).sum(-1) + _vector(w.skip)[:, None] * x[t]
    y = y.reshape(count, -1)
    if not state.norm_first:
        y = y * silu(z)
    if w.norm is not None:
        groups = y.reshape(count, state.norm_groups, -1)
        y = (groups / np.sqrt((groups**2).mean(-1, keepdims=True) + config.norm_eps)).reshape(count, -1)
        y = y * _vector(w.norm)
    return y * silu(z) if state.norm_first else y


def _gated_delta(config: ModelConfig, state: GatedDelta, w: StateWeights, parts: list[Float64]) -> Float64:
    q, k, v, z, b, a = parts
    count, shared = len(q), state.value_heads // state.key_heads
    q, k, v = np.split(silu(convolved(np.concatenate([q, k, v], 1), w)), np.cumsum([q.shape[1], k.shape[1]]), axis=1)
    q, k = (np.repeat(each.reshape(count, state.key_heads, state.key_dim), shared, 1) for each in (q, k))
    q, k = (each / np.sqrt((each**2).sum(-1, keepdims=True) + 1e-6) for each in (q, k))
    v = v.reshape(count, state.value_heads, state.value_dim)
    decay = np.exp(-np.exp(_vector(w.decay)) * softplus(a + _vector(w.step_bias)))
    memory = np.zeros((state.value_heads, state.key_dim, state.value_dim))
    y = np.zeros_like(v)
    for t in range(count):
        memory = memory * decay[t][:, None, None]
        change = (v[t] - np.einsum("hkv,hk->hv", memory, k[t])) * sigmoid(b[t])[:, None]
        memory = memory + k[t][..., None] * change[:, None]
        y[t] = np.einsum("hkv,hk->hv", memory, q[t]) / np.sqrt(state.key_dim)
    y = y / np.sqrt((y**2).mean(-1, keepdims=True) + config.norm_eps) * _vector(w.norm)
    result: Float64 = y.reshape(count, -1) * silu(z)
    return result


def convolved(x: Float64, w: StateWeights) -> Float64:
    """The causal convolution of each channel."""
    kernel = dequantize(w.conv).T
    padded = np.concatenate([np.zeros((len(kernel) - 1, x.shape[1])), x])
    sums: Float64 = sum(padded[i : i + len(x)] * row for i, row in enumerate(kernel)) + _bias(w.conv_bias)
    return sums


def normed(x: Float64, weight: Tensor | None, eps: float) -> Float64:
    """RMSNorm."""
    result: Float64 = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * _vector(weight)
    return result


def silu(x: Float64) -> Float64:
    """x times its sigmoid."""
    return x * sigmoid(x)


def sigmoid(x: Float64) -> Float64:
    """The logistic function."""
    result: Float64 = 1 / (1 + np.exp(-x))
    return result


def softplus(x: Float64) -> Float64:
    """ln(1 + e^x)."""
    return np.logaddexp(0, x)


def _vector(tensor_: Tensor | None) -> Float64:
    return dequantize(required(tensor_)).ravel().astype(np.float64)


def _bias(bias: Tensor | None) -> Float64:
    return np.zeros(()) if bias is None else _vector(bias)

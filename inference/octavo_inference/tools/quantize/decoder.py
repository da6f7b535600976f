"""A decoder layer in numpy and float32, in the stages between its matrices: their inputs calibrate a quantization.

A window is a sequence of its own, [tokens, hidden], from position 0. A layer is a dict of float32 arrays, by the field
names of `LayerWeights`; it has the fields that the model has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.config import ModelConfig
from octavo_inference.models.rope import Rope
from octavo_inference.models.weights import LayerWeights, Matrix, dequantize

Floats = NDArray[np.float32]
Layer = Mapping[str, Floats]

_HEAD_ROWS = 16384


def layer_values(weights: LayerWeights) -> dict[str, Floats]:
    """The layer in float32."""
    found = {field.name: getattr(weights, field.name) for field in fields(weights)}
    return {name: dequantize(tensor) for name, tensor in found.items() if tensor is not None}


def release_layer(weights: LayerWeights) -> None:
    """Give the pages of a layer that is done back to the system."""
    for field in fields(weights):
        tensor = getattr(weights, field.name)
        if tensor is not None:
            tensor.release()


def attention_input(config: ModelConfig, layer: Layer, hidden: Floats) -> Floats:
    """Input of q, k and v."""
    return norm(hidden, layer["input_norm"], config.norm_eps)


def attend(config: ModelConfig, number: int, layer: Layer, x: Floats) -> Floats:
    """Input of o: attention over the window, x [tokens, hidden] -> [tokens, heads * head_dim]."""
    tokens, dim = len(x), config.head_dim
    q, k, v = (linear(layer, name, x).reshape(tokens, -1, dim) for name in ("q", "k", "v"))
    if config.qk_norm:
        q, k = norm(q, layer["q_norm"], config.norm_eps), norm(k, layer["k_norm"], config.norm_eps)
    rope = config.rope(number)
    if rope is not None:
        table = _table(rope, tokens)
        q, k = _rotate(q, table), _rotate(k, table)
    # [key/value heads, queries of each, tokens, ...]; BLAS is slow on the strides of a transposed array.
    q = np.ascontiguousarray(q.reshape(tokens, config.kv_heads, -1, dim).transpose(1, 2, 0, 3))
    k, v = (np.ascontiguousarray(each) for each in (k.transpose(1, 2, 0)[:, None], v.transpose(1, 0, 2)[:, None]))
    scores = _softcap(q @ k * np.float32(config.score_scale), config.attention_softcap)
    mixed = _softmax(scores + _mask(tokens, config.window(number))) @ v
    return np.ascontiguousarray(mixed.transpose(2, 0, 1, 3).reshape(tokens, -1), np.float32)


def after_attention(config: ModelConfig, layer: Layer, hidden: Floats, mixed: Floats) -> Floats:
    """The hidden states with the attention's output added."""
    return _add(config, hidden, linear(layer, "o", mixed), layer.get("attention_output_norm"))


def mlp_input(config: ModelConfig, layer: Layer, hidden: Floats) -> Floats:
    """Input of gate and up."""
    return norm(hidden, layer["post_norm"], config.norm_eps)


def gate(config: ModelConfig, layer: Layer, x: Floats) -> Floats:
    """Input of down: the gated activation, [tokens, intermediate]."""
    active = _silu if config.activation == "silu" else _gelu_tanh
    result: Floats = active(linear(layer, "gate", x)) * linear(layer, "up", x)
    return result


def after_mlp(config: ModelConfig, layer: Layer, hidden: Floats, gated: Floats) -> Floats:
    """The hidden states after the layer."""
    return _add(config, hidden, linear(layer, "down", gated), layer.get("mlp_output_norm"))


def forward(config: ModelConfig, number: int, layer: Layer, hidden: Floats) -> Floats:
    """A whole layer over one window."""
    hidden = after_attention(
        config, layer, hidden, attend(config, number, layer, attention_input(config, layer, hidden))
    )
    return after_mlp(config, layer, hidden, gate(config, layer, mlp_input(config, layer, hidden)))


def logits(config: ModelConfig, final_norm: Floats, head: Matrix, hidden: Floats) -> Floats:
    """Logits of each token, [tokens, vocab]. A part of the head at a time is in float32."""
    x = norm(hidden, final_norm, config.norm_eps)
    scores = np.empty((len(x), head.shape[0]), np.float32)
    for at in range(0, head.shape[0], _HEAD_ROWS):
        end = min(at + _HEAD_ROWS, head.shape[0])
        scores[:, at:end] = x @ dequantize(head.rows(at, end)).T
    return _softcap(scores * np.float32(config.logit_scale), config.logit_softcap)


def norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """RMSNorm over the last axis."""
    size: Floats = np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(eps))
    result: Floats = x / size * weight
    return result


def linear(layer: Layer, name: str, x: Floats) -> Floats:
    """Product with a matrix of the layer, and its bias if the layer has one."""
    result: Floats = x @ layer[name].T
    bias = layer.get(f"{name}_bias")
    return result if bias is None else result + bias


def _add(config: ModelConfig, hidden: Floats, output: Floats, weight: Floats | None) -> Floats:
    normed = output if weight is None else norm(output, weight, config.norm_eps)
    return hidden + np.float32(config.residual_scale) * normed


@lru_cache(maxsize=4)
def _table(rope: Rope, tokens: int) -> Floats:
    return rope.table(tokens)


@lru_cache(maxsize=4)
def _mask(tokens: int, window: int | None) -> Floats:
    """[queries, keys]: 0 for keys up to the query, of a window only the last ones; -inf for others."""
    distance = np.arange(tokens)[:, None] - np.arange(tokens)
    return np.where((distance >= 0) & (distance < (window or tokens)), 0, -np.inf).astype(np.float32)


def _rotate(x: Floats, table: Floats) -> Floats:
    """Each pair (i, i + dim/2) of the first `dim` elements turns by its angle; x [tokens, heads, head_dim]."""
    dim = table.shape[1]
    cos, sin = table[:, None, : dim // 2], table[:, None, dim // 2 :]
    first, second = x[..., : dim // 2], x[..., dim // 2 : dim]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, x[..., dim:]], axis=-1)


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return result


def _softcap(x: Floats, cap: float | None) -> Floats:
    return x if cap is None else np.tanh(x / np.float32(cap)) * np.float32(cap)


def _silu(x: Floats) -> Floats:
    # exp of a large number is inf, and x / inf is the 0 that is meant.
    with np.errstate(over="ignore"):
        result: Floats = x / (1 + np.exp(-x))
    return result


def _gelu_tanh(x: Floats) -> Floats:
    inner = np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)
    result: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    return result

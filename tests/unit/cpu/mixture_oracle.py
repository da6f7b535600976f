"""Mixtures of experts in numpy: the choice of a token's experts, and the sum of what they compute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.layers import Experts
from octavo_inference.models.weights import ExpertWeights, Tensor, dequantize, required

Float32 = NDArray[np.float32]
Activation = Callable[[Float32], Float32]


def softmax(x: Float32) -> Float32:
    e: Float32 = np.exp(x - x.max())
    return e / e.sum()


def sigmoid(x: Float32) -> Float32:
    return (1 / (1 + np.exp(-x))).astype(np.float32)


def largest(values: Float32, count: int) -> list[int]:
    """Indices of the largest values, the first of equal ones."""
    return np.argsort(-values, kind="stable")[:count].tolist()  # type: ignore[no-any-return]


def choose(experts: Experts, logits: Float32, correction: Float32 | None) -> tuple[list[int], Float32]:
    """The chosen experts of a token in ascending order, and their weights."""
    scores = {"softmax": softmax, "sigmoid": sigmoid}.get(experts.scoring, lambda x: x)(logits)
    wanted = scores if correction is None else scores + correction
    if experts.groups > 1:
        groups = wanted.reshape(experts.groups, -1)
        best = np.sort(groups, 1)[:, ::-1][:, : 2 if experts.group_score == "best_two" else 1]
        kept = largest(best.sum(1), experts.chosen_groups)
        outside = ~np.isin(np.arange(experts.groups), kept)
        wanted = np.where(outside[:, None], np.float32(-np.inf), groups).ravel()
    ids = sorted(largest(wanted, experts.chosen))
    weights = scores[ids]
    if experts.scoring == "softmax_of_near":
        weights = near_shares(logits, ids, experts.near)
    elif experts.scoring == "softmax_of_chosen":
        weights = softmax(weights)
    elif experts.normalized:
        weights = weights / weights.sum()
    return ids, (weights * experts.scale).astype(np.float32)


def near_shares(logits: Float32, ids: list[int], near: float) -> Float32:
    """The share of each chosen expert of those that are near it and were not chosen before it."""
    shares = {}
    left = dict(enumerate(logits.tolist()))
    for best in sorted(ids, key=lambda each: (-logits[each], each)):
        top = left[best]
        close = [x for x in left.values() if x == top or (top - x) / max(abs(x), top) <= near]
        shares[best] = 1 / sum(np.exp(x - top) for x in close)
        del left[best]
    return np.array([shares[each] for each in ids], np.float32)


def mixture(experts: Experts, weights: ExpertWeights, x: Float32, activate: Activation) -> Float32:
    """What is added to the residual stream for normed rows `x` [tokens, hidden]."""

    def bias(tensor: Tensor | None, expert: int) -> Float32 | int:
        return 0 if tensor is None else dequantize(tensor)[expert]

    def expert(number: int, row: Float32) -> Float32:
        if not weights.gate:
            inner = activate(row @ dequantize(weights.up[number]).T + bias(weights.up_bias, number))
            return inner @ dequantize(weights.down[number]).T + bias(weights.down_bias, number)
        gate = row @ dequantize(weights.gate[number]).T + bias(weights.gate_bias, number)
        up = row @ dequantize(weights.up[number]).T + bias(weights.up_bias, number)
        if experts.clamp is None:
            inner = activate(gate) * up
        else:
            gate, up = np.minimum(gate, experts.clamp), np.clip(up, -experts.clamp, experts.clamp)
            inner = gate * sigmoid(1.702 * gate) * (up + 1)
        return inner @ dequantize(weights.down[number]).T + bias(weights.down_bias, number)

    logits = x @ dequantize(weights.router).T
    if weights.router_bias is not None:
        logits = logits + dequantize(weights.router_bias)
    correction = None if weights.correction is None else dequantize(weights.correction)
    out = np.zeros_like(x)
    for token, row in enumerate(x):
        ids, scales = choose(experts, logits[token], correction)
        for number, scale in zip(ids, scales, strict=True):
            out[token] += expert(number, row * scale) if experts.input_scaled else expert(number, row) * scale
    if weights.shared_up is not None:
        up = x @ dequantize(weights.shared_up).T
        gate = weights.shared_gate
        inner = activate(up) if gate is None else activate(x @ dequantize(gate).T) * up
        shared = inner @ dequantize(required(weights.shared_down)).T
        out += shared if weights.shared_router is None else shared * sigmoid(x @ dequantize(weights.shared_router).T)
    return out

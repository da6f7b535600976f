"""The feed-forward part of a layer: a dense MLP, or a mixture of experts."""

from __future__ import annotations

import torch
from torch import Tensor as Torch
from torch.nn.functional import linear

from octavo_inference.backends.reference.adapters import NO_CHANGES, Changes
from octavo_inference.backends.reference.functions import activate
from octavo_inference.backends.reference.tiles import TILE, float32, optional, tiled
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import Experts
from octavo_inference.models.weights import ExpertWeights, LayerWeights, Matrix, required


class Mlp:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate."""

    def __init__(self, config: ModelConfig, weights: LayerWeights) -> None:
        self._activation, self._xielu = config.activation, optional(weights.xielu)
        self._gate = float32(required(weights.gate)) if config.gated else None
        self._up, self._down = float32(required(weights.up)), float32(required(weights.down))
        self._gate_bias, self._up_bias = optional(weights.gate_bias), optional(weights.up_bias)
        self._down_bias = optional(weights.down_bias)

    def __call__(self, x: Torch, changes: Changes = NO_CHANGES) -> Torch:
        """Rows in tiles, normed."""
        up = changes.add("up", x, tiled(lambda t: linear(t, self._up, self._up_bias), x))
        if self._gate is None:
            inner = tiled(lambda t: activate(self._activation, t, self._xielu), up)
        else:
            weight = self._gate
            gate = changes.add("gate", x, tiled(lambda t: linear(t, weight, self._gate_bias), x))
            inner = tiled(lambda t: activate(self._activation, t, self._xielu), gate) * up
        return changes.add("down", inner, tiled(lambda t: linear(t, self._down, self._down_bias), inner))


class Mixture:
    """A mixture of experts, token by token."""

    def __init__(self, config: ModelConfig, experts: Experts, weights: ExpertWeights) -> None:
        self._experts, self._activation = experts, config.activation
        self._router, self._router_bias = float32(weights.router), optional(weights.router_bias)
        self._correction = optional(weights.correction)
        self._gate, self._up, self._down = (_each(ms) for ms in (weights.gate, weights.up, weights.down))
        self._gate_bias, self._up_bias = optional(weights.gate_bias), optional(weights.up_bias)
        self._down_bias = optional(weights.down_bias)
        self._shared = [optional(m) for m in (weights.shared_gate, weights.shared_up, weights.shared_down)]
        self._shared_router = optional(weights.shared_router)

    def __call__(self, x: Torch, changes: Changes = NO_CHANGES) -> Torch:
        """Rows in tiles, normed."""
        firsts = range(0, len(x), TILE)
        tiles = [self._tile(x[first : first + TILE].clone(), changes, first) for first in firsts]
        return torch.cat(tiles) if tiles else x

    def _tile(self, t: Torch, changes: Changes, first: int) -> Torch:
        logits = linear(t, self._router, self._router_bias)
        chosen = [choose(self._experts, row, self._correction) for row in logits]
        # A product of one row has the same shape for every token.
        own = [changes.of(torch.tensor([first + row])) for row in range(len(t))]
        mixed = torch.cat(
            [self._mix(row[None].clone(), each, *ids) for row, each, ids in zip(t, own, chosen, strict=True)]
        )
        gate, up, down = self._shared
        if up is None or down is None:
            return mixed
        inner = changes.add("experts.shared_up", t, linear(t, up), first)
        if gate is None:
            inner = activate(self._activation, inner)
        else:
            opened = changes.add("experts.shared_gate", t, linear(t, gate), first)
            inner = activate(self._activation, opened) * inner
        shared = changes.add("experts.shared_down", inner, linear(inner, down), first)
        if self._shared_router is not None:
            shared = shared * torch.sigmoid(linear(t, self._shared_router))
        return mixed + shared

    def _mix(self, x: Torch, changes: Changes, ids: Torch, weights: Torch) -> Torch:
        """The weighted sum of a token's experts, in the order of their numbers."""
        total = torch.zeros_like(x)
        order = torch.argsort(ids)
        for expert, weight in zip(ids[order].tolist(), weights[order], strict=True):
            if self._experts.input_scaled:
                total = total + self._expert(expert, x * weight, changes)
            else:
                total = total + self._expert(expert, x, changes) * weight
        return total

    def _expert(self, expert: int, x: Torch, changes: Changes) -> Torch:
        up = changes.add(f"experts.up.{expert}", x, linear(x, self._up[expert], _row(self._up_bias, expert)))
        if not self._gate:
            inner = activate(self._activation, up)
        else:
            product = linear(x, self._gate[expert], _row(self._gate_bias, expert))
            inner = self._gated(changes.add(f"experts.gate.{expert}", x, product), up)
        product = linear(inner, self._down[expert], _row(self._down_bias, expert))
        return changes.add(f"experts.down.{expert}", inner, product)

    def _gated(self, gate: Torch, up: Torch) -> Torch:
        clamp = self._experts.clamp
        if clamp is None:
            return activate(self._activation, gate) * up
        gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def choose(experts: Experts, logits: Torch, correction: Torch | None) -> tuple[Torch, Torch]:
    """The chosen experts of a token and their weights, the best first. `logits` [experts]. See `Experts`."""
    if experts.scoring == "softmax_of_chosen":
        ids = _largest(logits, experts.chosen)
        return ids, torch.softmax(logits[ids], dim=0) * experts.scale
    if experts.scoring == "softmax_of_near":
        ids = _largest(logits, experts.chosen)
        return ids, _shares_of_near(logits, ids, experts.near) * experts.scale
    scores = torch.softmax(logits, dim=0) if experts.scoring == "softmax" else torch.sigmoid(logits)
    wanted = scores if correction is None else scores + correction
    if experts.groups > 1:
        by_group = wanted.view(experts.groups, -1)
        best = by_group.topk(1 if experts.group_score == "best" else 2, dim=1).values.sum(1)
        kept = torch.zeros(experts.groups, dtype=torch.bool)
        kept[_largest(best, experts.chosen_groups)] = True
        wanted = torch.where(kept[:, None], by_group, -torch.inf).flatten()
    ids = _largest(wanted, experts.chosen)
    weights = scores[ids]
    if experts.normalized:
        weights = weights / weights.sum()
    return ids, weights * experts.scale


def _shares_of_near(logits: Torch, ids: Torch, near: float) -> Torch:
    """The share of each chosen expert, the best first, of those near it that were not chosen before."""
    left, shares = logits.clone(), torch.empty(len(ids))
    for number, best in enumerate(ids):
        top = left[best].clone()
        far = (top - left) / torch.maximum(left.abs(), top) > near
        shares[number] = 1 / torch.exp(left - top)[~far].sum()
        left[best] = -torch.inf
    return shares


def _largest(values: Torch, count: int) -> Torch:
    """Indices of the largest values, the first of equal ones."""
    return torch.sort(values, descending=True, stable=True).indices[:count]


def _each(matrices: tuple[Matrix, ...]) -> list[Torch]:
    return [float32(matrix) for matrix in matrices]


def _row(bias: Torch | None, expert: int) -> Torch | None:
    return None if bias is None else bias[expert]

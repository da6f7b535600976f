"""A mixture of experts in the place of the MLP."""

from __future__ import annotations

from torch import Tensor as Torch

from octavo_inference.backends.cuda.device_weights import DeviceExperts
from octavo_inference.backends.cuda.kernels.expert_configs import block_rows, few_tokens
from octavo_inference.backends.cuda.kernels.expert_gemv import expert_gemv
from octavo_inference.backends.cuda.kernels.expert_linear import expert_linear
from octavo_inference.backends.cuda.kernels.expert_sort import sort_by_expert
from octavo_inference.backends.cuda.kernels.expert_sum import expert_sum
from octavo_inference.backends.cuda.kernels.gemv import suits
from octavo_inference.backends.cuda.kernels.router import choose_experts, router_logits
from octavo_inference.backends.cuda.layers.context import LayerContext
from octavo_inference.backends.cuda.layers.mlp import mlp
from octavo_inference.models.layers import Experts


def mixture(
    context: LayerContext, number: int, experts: Experts, weights: DeviceExperts, x: Torch, out: Torch
) -> Torch:
    """Write the weighted sum of the outputs of experts, and of the shared MLP; x [T, hidden], of this rank alone."""
    buffers, tokens = context.buffers, len(x)
    ids, shares = buffers.expert_ids[:tokens], buffers.expert_weights[:tokens]
    rows = len(weights.router)
    gates = buffers.shared_weights[:tokens] if rows > experts.count else None
    router_logits(x, weights.router, buffers.router_sums)
    choose_experts(
        buffers.router_sums,
        rows,
        weights.router_bias,
        weights.correction,
        buffers.slots[:tokens],
        ids,
        shares,
        gates,
        buffers.expert_tokens[number],
        scoring=experts.scoring,
        normalized=experts.normalized,
        scale=experts.scale,
        groups=experts.groups,
        chosen_groups=experts.chosen_groups,
        best_two=experts.group_score == "best_two",
        near=experts.near,
    )
    outputs = _products(context, experts, weights, x, ids, shares if experts.input_scaled else None)
    if weights.shared is not None:
        mlp(context, number, weights.shared, x, out, None)
    expert_sum(outputs, ids, None if experts.input_scaled else shares, gates, out, add=weights.shared is not None)
    return out


def _products(
    context: LayerContext, experts: Experts, weights: DeviceExperts, x: Torch, ids: Torch, x_weights: Torch | None
) -> Torch:
    """The outputs of all choices [T * chosen, hidden]."""
    buffers, choices, gated = context.buffers, ids.numel(), context.config.gated
    inner, outputs = buffers.expert_activated[:choices], buffers.expert_outputs[:choices]
    sides = 2 if gated else 1
    activation = context.config.activation if experts.clamp is None else "clamped"
    limit = experts.clamp or 0.0
    few = few_tokens(experts.count, experts.chosen)
    if len(x) <= few and suits(x, weights.gate_up) and suits(inner, weights.down):
        expert_gemv(
            x, weights.gate_up, weights.gate_up_bias, inner, ids, x_weights,
            sides=sides, activation=activation, limit=limit,
        )  # fmt: skip
        expert_gemv(inner, weights.down, weights.down_bias, outputs, ids, None, sides=1, activation=None)
        return outputs
    rows = block_rows(choices, experts.count, x.dtype)
    sort_by_expert(ids, buffers.expert_totals, buffers.expert_places, buffers.expert_blocks, rows=rows)
    order = (buffers.expert_places, buffers.expert_blocks)
    expert_linear(
        x, weights.gate_up, weights.gate_up_bias, inner, *order, x_weights,
        experts=experts.count, rows=rows, sides=sides, activation=activation, limit=limit,
    )  # fmt: skip
    expert_linear(
        inner, weights.down, weights.down_bias, outputs, *order, None,
        experts=experts.count, rows=rows, sides=1, activation=None,
    )  # fmt: skip
    return outputs

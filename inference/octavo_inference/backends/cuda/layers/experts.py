"""A mixture of experts in the place of the MLP."""

from __future__ import annotations

from torch import Tensor as Torch

from octavo_inference.backends.cuda.adapters import DeviceAdapters
from octavo_inference.backends.cuda.device_weights import DeviceExperts
from octavo_inference.backends.cuda.inputs import Inputs
from octavo_inference.backends.cuda.kernels.expert_configs import block_rows, few_tokens
from octavo_inference.backends.cuda.kernels.expert_gemv import expert_gemv
from octavo_inference.backends.cuda.kernels.expert_linear import expert_linear
from octavo_inference.backends.cuda.kernels.expert_sort import sort_by_expert
from octavo_inference.backends.cuda.kernels.expert_sum import expert_sum
from octavo_inference.backends.cuda.kernels.gemv import suits
from octavo_inference.backends.cuda.kernels.router import choose_experts, router_logits
from octavo_inference.backends.cuda.layers.context import LayerContext, rows_of
from octavo_inference.backends.cuda.layers.mlp import mlp
from octavo_inference.models.layers import Experts


def mixture(
    context: LayerContext,
    number: int,
    experts: Experts,
    weights: DeviceExperts,
    x: Torch,
    out: Torch,
    inputs: Inputs,
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
    adapters = None if inputs.adapter is None else context.adapters
    outputs = _products(context, adapters, number, experts, weights, x, ids, shares if experts.input_scaled else None)
    if weights.shared is not None:
        mlp(context, number, weights.shared, x, out, inputs, shared=True)
    expert_sum(outputs, ids, None if experts.input_scaled else shares, gates, out, add=weights.shared is not None)
    return out


def _products(
    context: LayerContext,
    adapters: DeviceAdapters | None,
    number: int,
    experts: Experts,
    weights: DeviceExperts,
    x: Torch,
    ids: Torch,
    x_weights: Torch | None,
) -> Torch:
    """The outputs of all choices [T * chosen, hidden], changed by `adapters` of rows."""
    buffers, choices, sides = context.buffers, ids.numel(), 2 if context.config.gated else 1
    inner, outputs = buffers.expert_activated[:choices], rows_of(buffers.expert_outputs, choices, x.shape[1])
    added = None
    if adapters is not None:
        # The activation follows the product at once: what it needs besides is computed before.
        keys = adapters.begin_choices(number, ids, experts.count)
        added = rows_of(buffers.expert_outputs, choices, sides * experts.intermediate), keys
        adapters.add_choices(number, "experts", x, added[0], experts=experts.count, x_weights=x_weights, new=True)
    activation = context.config.activation if experts.clamp is None else "clamped"
    limit = experts.clamp or 0.0
    few = few_tokens(experts.count, experts.chosen)
    if len(x) <= few and suits(x, weights.gate_up) and suits(inner, weights.down):
        expert_gemv(
            x, weights.gate_up, weights.gate_up_bias, inner, ids, x_weights,
            sides=sides, activation=activation, limit=limit, added=added,
        )  # fmt: skip
        expert_gemv(inner, weights.down, weights.down_bias, outputs, ids, None, sides=1, activation=None)
    else:
        rows = block_rows(choices, experts.count, x.dtype)
        sort_by_expert(ids, buffers.expert_totals, buffers.expert_places, buffers.expert_blocks, rows=rows)
        order = (buffers.expert_places, buffers.expert_blocks)
        expert_linear(
            x, weights.gate_up, weights.gate_up_bias, inner, *order, x_weights,
            experts=experts.count, rows=rows, sides=sides, activation=activation, limit=limit, added=added,
        )  # fmt: skip
        expert_linear(
            inner, weights.down, weights.down_bias, outputs, *order, None,
            experts=experts.count, rows=rows, sides=1, activation=None,
        )  # fmt: skip
    if adapters is not None:
        adapters.add_choices(number, "experts_down", inner, outputs, experts=experts.count)
    return outputs

"""The dense MLP."""

from __future__ import annotations

from torch import Tensor as Torch

from octavo_inference.backends.cuda.device_weights import DeviceMlp
from octavo_inference.backends.cuda.inputs import Inputs
from octavo_inference.backends.cuda.kernels.activation import gated
from octavo_inference.backends.cuda.layers.context import LayerContext, rows_of


def mlp(
    context: LayerContext,
    number: int,
    weights: DeviceMlp,
    x: Torch,
    out: Torch,
    inputs: Inputs,
    *,
    shared: bool = False,
) -> Torch:
    """Write down(activation(gate(x)) * up(x)), or down(activation(up(x))), of x [T, hidden], of this rank alone.

    `shared`: it is that of a mixture of experts, which every token uses.
    """
    prefix = "shared_" if shared else ""
    buffers, tokens, inner = context.buffers, len(x), weights.down.columns
    gate_up = weights.gate_up(x, rows_of(buffers.gate_up, tokens, weights.gate_up.rows))
    activated = rows_of(buffers.activated, tokens, inner)
    context.change(inputs, number, f"{prefix}gate_up", x, gate_up)
    gated(gate_up, activated, context.config.activation, weights.xielu)
    weights.down(activated, out)
    return context.change(inputs, number, f"{prefix}down", activated, out)

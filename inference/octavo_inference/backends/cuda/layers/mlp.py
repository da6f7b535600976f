"""The dense MLP."""

from __future__ import annotations

from torch import Tensor as Torch

from octavo_inference.backends.cuda.device_weights import DeviceMlp
from octavo_inference.backends.cuda.kernels.activation import gated
from octavo_inference.backends.cuda.layers.context import LayerContext, rows_of


def mlp(context: LayerContext, weights: DeviceMlp, x: Torch, out: Torch) -> Torch:
    """Write down(activation(gate(x)) * up(x)), or down(activation(up(x))), of x [T, hidden], of this rank alone."""
    buffers, tokens, inner = context.buffers, len(x), weights.down.columns
    gate_up = rows_of(buffers.gate_up, tokens, weights.gate_up.rows)
    activated = rows_of(buffers.activated, tokens, inner)
    gated(weights.gate_up(x, gate_up), activated, context.config.activation, weights.xielu)
    return weights.down(activated, out)

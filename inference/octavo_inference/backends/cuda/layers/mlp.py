"""The dense MLP."""

from __future__ import annotations

from torch import Tensor as Torch

from octavo_inference.backends.cuda.device_weights import DeviceMlp
from octavo_inference.backends.cuda.kernels.activation import gated
from octavo_inference.backends.cuda.layers.context import LayerContext


def mlp(context: LayerContext, weights: DeviceMlp, x: Torch) -> Torch:
    """down(activation(gate(x)) * up(x)) of x [T, hidden], of this rank alone."""
    buffers, tokens = context.buffers, len(x)
    activated = buffers.activated[:tokens]
    gated(weights.gate_up(x, buffers.gate_up[:tokens]), activated, context.config.activation)
    return weights.down(activated, buffers.projected[:tokens])

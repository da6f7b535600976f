"""Layers with a state per sequence: Mamba-2, gated delta nets, short convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.device_weights import DeviceState
from octavo_inference.backends.cuda.inputs import Inputs
from octavo_inference.backends.cuda.kernels.convolution import convolve
from octavo_inference.backends.cuda.kernels.delta_chunks import delta_chunks
from octavo_inference.backends.cuda.kernels.delta_decode import delta_decode
from octavo_inference.backends.cuda.kernels.gated_norm import gated_norm
from octavo_inference.backends.cuda.kernels.mamba2_chunks import mamba2_chunks
from octavo_inference.backends.cuda.kernels.mamba2_decode import mamba2_decode
from octavo_inference.backends.cuda.layers.context import LayerContext
from octavo_inference.models.layers import GatedDelta, Mamba2, StateLayer


@dataclass(frozen=True, slots=True)
class _Call:
    """A state layer over the query tokens of a step: views of its states and of the buffers."""

    weights: DeviceState
    inputs: Inputs
    convolution: Torch
    recurrent: Torch
    projected: Torch
    convolved: Torch
    mixed: Torch
    eps: float


def state_layer(
    context: LayerContext, number: int, layer: StateLayer, weights: DeviceState, x: Torch, inputs: Inputs, out: Torch
) -> Torch:
    """Move the states of the step's sequences on by the query tokens x [T, hidden]; write the layer's output."""
    buffers, tokens = context.buffers, len(x)
    states, index = context.states, context.config.state_index(number)
    call = _Call(
        weights,
        inputs,
        states.convolution(index),
        states.recurrent(index),
        context.change(inputs, number, "state_inputs", x, weights.inputs(x, buffers.state_inputs[:tokens])),
        buffers.convolved[:tokens],
        buffers.state_mixed[:tokens],
        context.config.norm_eps,
    )
    if isinstance(layer, Mamba2):
        _mamba2(layer, call)
    elif isinstance(layer, GatedDelta):
        _delta(layer, call, buffers.state_solved[:tokens])
    else:
        before, after, values = torch.split(call.projected, layer.channels, dim=1)
        _convolve(call, values, call.mixed, (before, after))
    return context.change(inputs, number, "state_output", call.mixed, weights.output(call.mixed, out))


def _mamba2(layer: Mamba2, call: _Call) -> None:
    z, values, dt = torch.split(call.projected, [layer.inner, layer.shape.channels, layer.heads], dim=1)
    _convolve(call, values, call.convolved)
    weights, inputs = call.weights, call.inputs
    # The decodes of a mixed step run separately, as those of attention do.
    for kind, kernel in (("prompts", mamba2_decode), ("decodes", mamba2_chunks)):
        if inputs.kind != kind:
            kernel(
                call.convolved,
                dt,
                cast("Torch", weights.rate),
                cast("Torch", weights.step_bias),
                cast("Torch", weights.skip),
                call.recurrent,
                inputs.row,
                inputs.query_start,
                inputs.seq_len,
                inputs.bounds,
                call.mixed,
                dt_limits=(layer.dt_least, layer.dt_most),
            )
    gated_norm(
        call.mixed, z, weights.norm, call.eps, groups=max(1, layer.norm_groups), norm_first=layer.norm_first
    )  # fmt: skip


def _delta(layer: GatedDelta, call: _Call, solved: Torch) -> None:
    heads = layer.value_heads
    values, z, steps = torch.split(call.projected, [layer.shape.channels, layer.inner, 2 * heads], dim=1)
    _convolve(call, values, call.convolved)
    weights, inputs = call.weights, call.inputs
    decay = cast("Torch", weights.rate), cast("Torch", weights.step_bias)
    where = call.recurrent, inputs.row, inputs.query_start, inputs.seq_len, inputs.bounds, call.mixed
    if inputs.kind != "prompts":
        delta_decode(call.convolved, steps, *decay, *where)
    if inputs.kind != "decodes":
        delta_chunks(call.convolved, steps, *decay, solved, *where)
    gated_norm(call.mixed, z, weights.norm, call.eps, groups=heads, norm_first=True)


def _convolve(call: _Call, x: Torch, out: Torch, gates: tuple[Torch, Torch] | None = None) -> None:
    weights, inputs = call.weights, call.inputs
    convolve(
        x,
        weights.conv,
        weights.conv_bias,
        call.convolution,
        inputs.row,
        inputs.query_start,
        inputs.seq_len,
        out,
        gates=gates,
        decodes=inputs.kind == "decodes",
    )

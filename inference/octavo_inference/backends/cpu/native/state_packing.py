"""Packs state layers (models/layers.py) for the kernels, and names the sizes that they cannot run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from octavo_inference.backends.cpu.native import abi
from octavo_inference.common.errors import ModelError
from octavo_inference.models.layers import GatedDelta, Mamba2, StateLayer
from octavo_inference.models.weights import StateWeights, dequantize

if TYPE_CHECKING:
    from octavo_inference.backends.cpu.native.packing import Packer

_STEP = 16  # widest vector of all variants
_MOST_TAPS = 8  # of conv_state.h


def state_sizes(state: StateLayer | None) -> abi.StateSizes:
    """The sizes as the kernels' structure. A state has rows of B or a key, columns of x or a value."""
    if state is None:
        return abi.StateSizes()
    shape = state.shape
    sizes = abi.StateSizes(
        channels=shape.channels,
        inner=state.inner,
        elements=shape.elements,
        taps=shape.conv_tokens + 1,
        heads=shape.heads,
    )
    if isinstance(state, Mamba2):
        sizes.kind, sizes.key_heads = abi.MAMBA2, state.groups
        sizes.rows, sizes.columns = state.state, state.head_dim
        sizes.norm_group = state.inner // state.norm_groups if state.norm_groups else 0
        sizes.norm_first = state.norm_first
        sizes.step_least, sizes.step_most = state.dt_least, state.dt_most
    elif isinstance(state, GatedDelta):
        sizes.kind, sizes.key_heads = abi.GATED_DELTA, state.key_heads
        sizes.rows, sizes.columns = state.key_dim, state.value_dim
        sizes.norm_group, sizes.norm_first = state.value_dim, True
    else:
        sizes.kind = abi.SHORT_CONV
    return sizes


def pack_state(packer: Packer, state: StateLayer, weights: StateWeights, number: int) -> abi.PackedState:
    """Pack layer `number`'s state layer; its slots are not set."""
    name = f"of the state of layer {number}"
    names = [f"inputs {index} {name}" for index in range(len(weights.inputs))]
    packed = abi.PackedState(
        inputs=packer.matrix(weights.inputs, biases=(weights.inputs_bias,), names=names),
        output=packer.matrix((weights.output,), biases=(weights.output_bias,), names=(f"output {name}",)),
        conv=packer.own(np.ascontiguousarray(dequantize(weights.conv).T)),
        **{vector: packer.vector(getattr(weights, vector)) for vector in ("conv_bias", "step_bias", "skip")},
    )
    if weights.decay is not None:
        # Kernels compute 2 ** (decay * step), where the model has exp(-exp(A_log) * step).
        packed.decay = packer.own(-np.exp(dequantize(weights.decay).ravel()) * np.float32(math.log2(math.e)))
    if weights.norm is not None:
        heads = state.value_heads if isinstance(state, GatedDelta) else 1
        packed.norm = packer.own(np.tile(dequantize(weights.norm).ravel(), heads))
    return packed


def check_state(state: StateLayer | None) -> None:
    """Raises `ModelError` for sizes without kernel support."""
    if state is None:
        return
    if not 2 <= state.shape.conv_tokens + 1 <= _MOST_TAPS:
        raise ModelError(
            f"the model's convolutions are over {state.shape.conv_tokens + 1} tokens; "
            f"the CPU kernels need 2 to {_MOST_TAPS}"
        )
    for name, value in _steps(state).items():
        if value % _STEP:
            raise ModelError(f"the model's {name} size is {value}; the CPU kernels need a multiple of {_STEP}")
    if isinstance(state, Mamba2) and state.heads % state.groups:
        raise ModelError(f"{state.heads} heads of state layers cannot share {state.groups} groups evenly")
    if isinstance(state, GatedDelta) and state.value_heads % state.key_heads:
        raise ModelError(f"{state.value_heads} value heads cannot share {state.key_heads} key heads evenly")


def _steps(state: StateLayer) -> dict[str, int]:
    """Sizes of which kernels read whole vectors."""
    if isinstance(state, Mamba2):
        norm = state.inner // state.norm_groups if state.norm_groups else 0
        return {"Mamba-2 head": state.head_dim, "Mamba-2 state": state.state, "Mamba-2 norm group": norm}
    if isinstance(state, GatedDelta):
        return {"gated delta key": state.key_dim, "gated delta value": state.value_dim}
    return {"short convolution": state.channels}

"""State layers in safetensors checkpoints: what config.json says of them, and their tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.hf_settings import HfSettings
from octavo_inference.checkpoints.hf_tensors import HfTensors
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import FeedForward, GatedDelta, LayerParts, Mamba2, ShortConv, StateLayer
from octavo_inference.models.rows import delta_rows
from octavo_inference.models.weights import Matrix, StateWeights, Tensor

_ATTENTION = frozenset({"attention", "full_attention"})
_STATE = frozenset({"mamba", "linear_attention", "conv"})


def mixers(settings: HfSettings, *keys: str) -> list[bool]:
    """Which layers have attention, and not a state layer, by the first of `keys` that config.json has."""
    kinds = next((found for found in map(settings.per_layer, keys) if found is not None), None)
    if kinds is None:
        raise ModelError(f"{settings.path}: {keys[0]} is missing: it names the kind of each layer")
    unknown = {str(kind) for kind in kinds} - _ATTENTION - _STATE
    if unknown:
        raise UnsupportedModelError(
            f"{settings.path}: layers of the type {', '.join(sorted(unknown))} are not supported"
        )
    return [kind in _ATTENTION for kind in kinds]


def either(attention: list[bool], feed_forward: Callable[[int], FeedForward]) -> tuple[LayerParts, ...]:
    """Layers with attention or a state layer."""
    return tuple(LayerParts(has, not has, feed_forward(layer)) for layer, has in enumerate(attention))


def dt_limit(settings: HfSettings) -> tuple[float, float]:
    """The limits of Mamba-2's time steps; infinity is written in several ways."""
    given = settings.get("time_step_limit", [0.0, math.inf])
    if isinstance(given, dict):
        given = given.get("__value__", given)
    try:
        least, most = (float(each["__float__"] if isinstance(each, dict) else each) for each in given)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{settings.path}: time_step_limit is {given!r}, expected two numbers") from error
    return least, most


def mamba2(settings: HfSettings) -> Mamba2:
    """Keys of Bamba, Granite 4 and Falcon-H1; the gated norm is over each group."""
    heads, width = settings.count("mamba_n_heads"), settings.get("mamba_d_ssm")
    if width is None:
        width = int(settings.number("mamba_expand", 2) * settings.count("hidden_size"))
    dim = settings.get("mamba_d_head", "auto")
    dim = width // heads if dim == "auto" else settings.count("mamba_d_head")
    if heads * dim != width:
        raise ModelError(f"{settings.path}: mamba_n_heads {heads} of mamba_d_head {dim} are not {width} elements")
    groups = settings.count("mamba_n_groups", 1)
    least, most = dt_limit(settings)
    return Mamba2(
        heads=heads,
        head_dim=dim,
        state=settings.count("mamba_d_state"),
        groups=groups,
        kernel=settings.count("mamba_d_conv", 4),
        norm_groups=groups,
        dt_least=least,
        dt_most=most,
    )


def gated_delta(settings: HfSettings) -> GatedDelta:
    """Keys of Qwen3-Next and Qwen3.5."""
    return GatedDelta(
        key_heads=settings.count("linear_num_key_heads"),
        value_heads=settings.count("linear_num_value_heads"),
        key_dim=settings.count("linear_key_head_dim"),
        value_dim=settings.count("linear_value_head_dim"),
        kernel=settings.count("linear_conv_kernel_dim", 4),
    )


def state_weights(tensors: HfTensors, config: ModelConfig, prefix: str) -> StateWeights:
    """The state layer whose tensors begin with `prefix`. Raises `ModelError` for those that do not fit config.json."""
    layer = config.state
    assert layer is not None  # noqa: S101 -- a state layer in a model without is a bug of the family's row
    shape = layer.shape
    if isinstance(layer, ShortConv):
        return StateWeights(
            inputs=(tensors.matrix(prefix + "in_proj.weight", 3 * layer.channels, config.hidden),),
            conv=_kernel(tensors, prefix + "conv", layer),
            output=tensors.matrix(prefix + "out_proj.weight", config.hidden, layer.channels),
            inputs_bias=tensors.optional(prefix + "in_proj.bias", 3 * layer.channels),
            conv_bias=tensors.optional(prefix + "conv.bias", layer.channels),
            output_bias=tensors.optional(prefix + "out_proj.bias", config.hidden),
        )
    inner = layer.inner
    common: dict[str, Any] = {
        "conv": _kernel(tensors, prefix + "conv1d", layer),
        "output": tensors.matrix(prefix + "out_proj.weight", config.hidden, inner),
        "output_bias": tensors.optional(prefix + "out_proj.bias", config.hidden),
        "decay": tensors.vector(prefix + "A_log", shape.heads),
        "step_bias": tensors.vector(prefix + "dt_bias", shape.heads),
    }
    if isinstance(layer, GatedDelta):
        inputs = _delta_inputs(tensors, config.hidden, layer, prefix)
        return StateWeights(inputs=inputs, norm=tensors.vector(prefix + "norm.weight", layer.value_dim), **common)
    rows = inner + shape.channels + shape.heads
    return StateWeights(
        inputs=(tensors.matrix(prefix + "in_proj.weight", rows, config.hidden),),
        inputs_bias=tensors.optional(prefix + "in_proj.bias", rows),
        conv_bias=tensors.optional(prefix + "conv1d.bias", shape.channels),
        skip=tensors.vector(prefix + "D", shape.heads),
        norm=tensors.vector(prefix + "norm.weight", inner) if layer.norm_groups else None,
        **common,
    )


def _kernel(tensors: HfTensors, name: str, layer: StateLayer) -> Tensor:
    """A convolution of each channel: [channels, 1, kernel] in the file."""
    channels, kernel = layer.shape.channels, layer.kernel
    return tensors.flattened(name + ".weight", (channels, 1, kernel), (channels, kernel))


def _delta_inputs(tensors: HfTensors, hidden: int, layer: GatedDelta, prefix: str) -> tuple[Matrix, ...]:
    keys, values = layer.key_heads * layer.key_dim, layer.inner
    names: dict[str, tuple[int, NDArray[np.int64] | None]]
    if tensors.has(prefix + "in_proj_qkvz"):
        per_key = layer.value_heads // layer.key_heads
        wide, narrow = per_key * layer.value_dim, per_key
        names = {
            "in_proj_qkvz": (
                2 * keys + 2 * values,
                delta_rows(layer.key_heads, layer.key_dim, layer.key_dim, wide, wide),
            ),
            "in_proj_ba": (2 * layer.value_heads, delta_rows(layer.key_heads, narrow, narrow)),
        }
    else:
        names = {
            "in_proj_qkv": (2 * keys + values, None),
            "in_proj_z": (values, None),
            "in_proj_b": (layer.value_heads, None),
            "in_proj_a": (layer.value_heads, None),
        }
    return tuple(tensors.matrix(f"{prefix}{name}.weight", rows, hidden, order) for name, (rows, order) in names.items())

"""State layers in GGUF files: their sizes in the metadata, and their tensors. Facts are those of llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.gguf import GgufFile
from octavo_inference.checkpoints.gguf_matrix import elements
from octavo_inference.checkpoints.gguf_settings import GgufSettings
from octavo_inference.common.errors import ModelError
from octavo_inference.models.columns import moved_columns
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import FeedForward, GatedDelta, LayerParts, Mamba2, ShortConv
from octavo_inference.models.rows import Order, delta_rows, tiled_heads
from octavo_inference.models.weights import StateWeights, Tensor

ReadMatrix = Callable[..., Any]
"""`(name, rows, columns, order=None)`: a matrix of a file, row i of which is that at order[i]."""


def mamba2(settings: GgufSettings) -> Mamba2:
    """The `ssm.*` keys of Mamba-2 layers. Without the norm's tensor there is no norm."""
    heads, inner = settings.count("ssm.time_step_rank"), settings.count("ssm.inner_size")
    groups = settings.count("ssm.group_count", 1)
    if inner % heads or heads % groups:
        raise ModelError(
            f"{settings.file.path}: ssm.inner_size {inner}, ssm.time_step_rank {heads} heads and ssm.group_count "
            f"{groups} do not divide each other"
        )
    normed = any(name.endswith(".ssm_norm.weight") for name in settings.file.tensors)
    return Mamba2(
        heads=heads,
        head_dim=inner // heads,
        state=settings.count("ssm.state_size"),
        groups=groups,
        kernel=settings.count("ssm.conv_kernel"),
        norm_groups=groups if normed else 0,
    )


def gated_delta(settings: GgufSettings) -> GatedDelta:
    """The `ssm.*` keys of Qwen3-Next and Qwen3.5."""
    values = settings.count("ssm.time_step_rank")
    return GatedDelta(
        key_heads=settings.count("ssm.group_count"),
        value_heads=values,
        key_dim=settings.count("ssm.state_size"),
        value_dim=settings.count("ssm.inner_size") // values,
        kernel=settings.count("ssm.conv_kernel"),
    )


def short_conv(settings: GgufSettings) -> ShortConv:
    """LFM2."""
    return ShortConv(settings.count("embedding_length"), settings.count("shortconv.l_cache"))


def parts_of(settings: GgufSettings) -> tuple[LayerParts, ...]:
    """What each layer consists of, by the tensors that it has."""

    def part(layer: int) -> LayerParts:
        def has(*names: str) -> bool:
            return any(f"blk.{layer}.{name}" in settings.file.tensors for name in names)

        feed: FeedForward = "none"
        if has("ffn_gate_inp.weight"):
            feed = "experts"
        elif has("ffn_up.weight"):
            feed = "dense"
        return LayerParts(has("attn_output.weight"), has("ssm_conv1d.weight", "shortconv.conv.weight"), feed)

    return tuple(part(layer) for layer in range(settings.layers()))


def state_weights(
    file: GgufFile, config: ModelConfig, p: str, matrix: ReadMatrix, *, tiled: bool, contents: bool
) -> StateWeights:
    """The state layer whose tensors begin with `p`. Raises `ModelError` for those that do not fit the metadata.

    `tiled`: value heads of a gated delta net are sorted by their place among those of a key head. `contents`: whether
    the file's contents are there, not only its header.
    """
    layer = config.state
    if layer is None:
        raise ModelError(f"{file.path}: {p} has a state layer, and {config.architecture} models have none")
    hidden, shape = config.hidden, layer.shape
    if isinstance(layer, ShortConv):
        return StateWeights(
            inputs=(matrix(p + "shortconv.in_proj.weight", 3 * layer.channels, hidden),),
            conv=_kernel(file, p + "shortconv.conv.weight", layer.channels, layer.kernel),
            output=matrix(p + "shortconv.out_proj.weight", hidden, layer.channels),
        )
    if isinstance(layer, GatedDelta):
        return _delta_weights(file, hidden, layer, p, matrix, tiled=tiled, contents=contents)
    rows = layer.inner + shape.channels + shape.heads
    return StateWeights(
        inputs=(matrix(p + "ssm_in.weight", rows, hidden),),
        inputs_bias=_optional(file, p + "ssm_in.bias", rows),
        conv=_kernel(file, p + "ssm_conv1d.weight", shape.channels, layer.kernel),
        conv_bias=_optional(file, p + "ssm_conv1d.bias", shape.channels),
        output=matrix(p + "ssm_out.weight", hidden, layer.inner),
        output_bias=_optional(file, p + "ssm_out.bias", hidden),
        decay=_decay(file, p + "ssm_a", shape.heads),
        step_bias=_vector(file, p + "ssm_dt.bias", shape.heads),
        skip=_vector(file, p + "ssm_d", shape.heads),
        norm=_vector(file, p + "ssm_norm.weight", layer.inner) if layer.norm_groups else None,
    )


def _delta_weights(
    file: GgufFile, hidden: int, layer: GatedDelta, p: str, matrix: ReadMatrix, *, tiled: bool, contents: bool
) -> StateWeights:
    """A gated delta net. Value heads that are tiled are brought into the order of their key heads."""
    values, dim, queries = layer.value_heads, layer.value_dim, 2 * layer.key_heads * layer.key_dim
    heads: Order = tiled_heads(layer.key_heads, values) if tiled else np.arange(values)
    rows: Order = (heads[:, None] * dim + np.arange(dim)).reshape(-1)
    channels: Order = np.concatenate([np.arange(queries), queries + rows])
    each = values // layer.key_heads
    if p + "ssm_in.weight" in file.tensors and not tiled:  # older files of Qwen3-Next: by key head
        order = delta_rows(layer.key_heads, layer.key_dim, layer.key_dim, each * dim, each * dim)
        inputs = [matrix(p + "ssm_in.weight", queries + 2 * layer.inner, hidden, order)]
    else:
        inputs = [
            matrix(p + "attn_qkv.weight", queries + layer.inner, hidden, channels if tiled else None),
            matrix(p + "attn_gate.weight", layer.inner, hidden, rows if tiled else None),
        ]
    if p + "ssm_ba.weight" in file.tensors and not tiled:
        inputs.append(matrix(p + "ssm_ba.weight", 2 * values, hidden, delta_rows(layer.key_heads, each, each)))
    else:
        names = (f"{p}ssm_{name}.weight" for name in ("beta", "alpha"))
        inputs += [matrix(name, values, hidden, heads if tiled else None) for name in names]
    output = matrix(p + "ssm_out.weight", hidden, layer.inner)
    return StateWeights(
        inputs=tuple(inputs),
        conv=_kernel(file, p + "ssm_conv1d.weight", layer.shape.channels, layer.kernel, channels),
        output=moved_columns(output, heads, dim, contents=contents) if tiled else output,
        decay=_decay(file, p + "ssm_a", values, heads),
        step_bias=_vector(file, p + "ssm_dt.bias", values, heads),
        norm=_vector(file, p + "ssm_norm.weight", dim),
    )


def _kernel(file: GgufFile, name: str, channels: int, kernel: int, order: Order | None = None) -> Tensor:
    values = _numbers(file, name, channels * kernel).reshape(channels, kernel)
    return Tensor("f32", (channels, kernel), values if order is None else values[order])


def _vector(file: GgufFile, name: str, size: int, order: Order | None = None) -> Tensor:
    """A vector, which files may have as a matrix."""
    values = _numbers(file, name, size)
    return Tensor("f32", (size,), values if order is None else values[order])


def _optional(file: GgufFile, name: str, size: int) -> Tensor | None:
    return _vector(file, name, size) if name in file.tensors else None


def _decay(file: GgufFile, name: str, heads: int, order: Order | None = None) -> Tensor:
    """A_log: files have A = -exp(A_log)."""
    stored = _numbers(file, name, heads)
    with np.errstate(divide="ignore", invalid="ignore"):  # a header alone has zeros
        logarithms = np.log(-stored)
    return Tensor("f32", (heads,), logarithms if order is None else logarithms[order])


def _numbers(file: GgufFile, name: str, count: int) -> NDArray[np.float32]:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise ModelError(f"{file.path}: tensor {name} is missing")
    values = elements(file, tensor)
    if values.size != count:
        raise ModelError(f"{tensor.path}: tensor {name} has {values.size} numbers, the metadata says {count}")
    return values

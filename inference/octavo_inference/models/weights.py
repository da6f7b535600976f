"""Canonical weights: what loaders produce and backends pack. numpy only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from octavo_inference.common.memory_advice import release
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.ggml_dequant import BlockFormat, dequantize_blocks
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.layers import GatedDelta, LatentAttention, Mamba2, ShortConv, StateLayer

Format = Literal["f32", "bf16", "f16"] | BlockFormat
_SMALLEST_GROUP = 16  # columns, of all backends


@dataclass(frozen=True, slots=True)
class Tensor:
    """One matrix [rows, cols] or vector [rows] as stored: bf16 as uint16 bits, f16 and f32 as such, q* as GGUF blocks.

    `data` of a quantised matrix is uint8 [rows, bytes per row], blocks of 32 or 256 along the columns.
    """

    format: Format
    shape: tuple[int, ...]
    data: NDArray[np.generic]

    @property
    def nbytes(self) -> int:
        """Bytes of the stored elements."""
        return self.data.nbytes

    def rows(self, start: int, end: int) -> Tensor:
        """Some rows; a view."""
        return Tensor(self.format, (end - start, *self.shape[1:]), self.data[start:end])

    def columns(self, start: int, end: int) -> Tensor:
        """Some columns, of whole blocks (`column_step`); a view."""
        # Of floats one entry of `data` is a column; a row of blocks has the same number of bytes for each block.
        width, columns = self.data.shape[1], self.shape[1]
        data = self.data[:, start * width // columns : end * width // columns]
        return Tensor(self.format, (self.shape[0], end - start), data)

    def split(self, *sizes: int) -> list[Tensor]:
        """Split into matrices of `sizes` rows; views."""
        ends = np.cumsum(sizes).tolist()
        return [self.rows(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def release(self) -> None:
        """Give pages of a mapped file that were read back to the system."""
        release(self.data)


Matrix = Tensor | GroupedMatrix
"""A weight of a linear layer: as stored, or in a published format that is read in pieces."""


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """A mixture of experts: `router` [experts, hidden], matrices of each expert as those of an MLP in `LayerWeights`.

    `correction` [experts] is added to scores for the choice alone. `shared_*` are the MLP that every token uses, and
    `shared_router` [1, hidden] its gate. Biases of experts are [experts, rows].
    """

    router: Tensor
    gate: tuple[Matrix, ...]
    up: tuple[Matrix, ...]
    down: tuple[Matrix, ...]
    router_bias: Tensor | None = None
    correction: Tensor | None = None
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    shared_gate: Matrix | None = None
    shared_up: Matrix | None = None
    shared_down: Matrix | None = None
    shared_router: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """Latent attention: queries from x by `q`, or by `q_down`, norm, `q_up`; the latent and shared key by `kv_down`.

    q and q_up are [heads * (nope + rope), in], a head's rotated rows last and in half-split order, q_down [query rank,
    hidden], kv_down [kv rank + rope, hidden], `k_up` [heads * nope, kv rank], `v_up` [heads * value, kv rank]. The
    output projection is `LayerWeights.o`, [hidden, heads * value].
    """

    kv_down: Matrix
    kv_norm: Tensor
    k_up: Matrix
    v_up: Matrix
    q: Matrix | None = None
    q_down: Matrix | None = None
    q_norm: Tensor | None = None
    q_up: Matrix | None = None


@dataclass(frozen=True, slots=True)
class StateWeights:
    """A state layer: `inputs` [rows, hidden], convolution [channels, kernel], `output` [hidden, inner].

    `inputs` are one matrix or several, one below the other. Their rows, by head, first all of one kind: Mamba-2: z, x,
    B, C, dt; gated delta: queries, keys, values, z, b, a; short convolution: B, C, x. Channels of the convolution are
    in the same order. `decay` [heads] is A_log, `step_bias` [heads] that of dt, `skip` [heads] D. `norm` is that of the
    outputs before `output`: [inner] for Mamba-2, [value_dim] for gated delta.
    """

    inputs: tuple[Matrix, ...]
    conv: Tensor
    output: Matrix
    inputs_bias: Tensor | None = None
    conv_bias: Tensor | None = None
    output_bias: Tensor | None = None
    decay: Tensor | None = None
    step_bias: Tensor | None = None
    skip: Tensor | None = None
    norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; rows of q and k are in half-split rotary order (as in safetensors checkpoints).

    Matrices are [out, in]: q [heads*head_dim, hidden], k and v [kv_heads*head_dim, hidden], o [hidden, heads*head_dim],
    gate and up [intermediate, hidden], down [hidden, intermediate]. Norms are float32 [hidden], those of q and k
    [head_dim] or as wide as q and k: `input_norm` comes before attention, `post_norm` before the MLP, the output norms
    after them. `sinks` [heads]. The sigmoid of `attention_gate` [heads*head_dim, hidden] of the layer's normed input
    multiplies what goes into o. `xielu` [2]: alpha_p and alpha_n of that activation, as they multiply its parts. None:
    the layer has no such tensor (`ModelConfig.part`).
    """

    input_norm: Tensor | None = None
    q: Matrix | None = None
    k: Matrix | None = None
    v: Matrix | None = None
    o: Matrix | None = None
    post_norm: Tensor | None = None
    gate: Matrix | None = None
    up: Matrix | None = None
    down: Matrix | None = None
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    v_bias: Tensor | None = None
    o_bias: Tensor | None = None
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    attention_output_norm: Tensor | None = None
    mlp_output_norm: Tensor | None = None
    input_norm_bias: Tensor | None = None
    post_norm_bias: Tensor | None = None
    q_norm_bias: Tensor | None = None
    k_norm_bias: Tensor | None = None
    attention_output_norm_bias: Tensor | None = None
    mlp_output_norm_bias: Tensor | None = None
    sinks: Tensor | None = None
    attention_gate: Matrix | None = None
    xielu: Tensor | None = None
    latent: LatentWeights | None = None
    state: StateWeights | None = None
    experts: ExpertWeights | None = None


Part = LayerWeights | ExpertWeights | LatentWeights | StateWeights


def part_tensors(part: Part) -> Iterator[tuple[str, Matrix]]:
    """The tensors of a part with the names of their fields; those of the parts within it as `experts.router`."""
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, Part):
            yield from ((f"{field.name}.{name}", tensor) for name, tensor in part_tensors(value))
        elif isinstance(value, tuple):
            yield from ((f"{field.name}.{number}", tensor) for number, tensor in enumerate(value))
        elif value is not None:
            yield field.name, value


_NO_PRODUCTS = frozenset({"router", "shared_router", "conv"})


def layer_matrices(layer: LayerWeights) -> Iterator[Matrix]:
    """The matrices of a layer's products, which may be quantized."""
    for name, tensor in part_tensors(layer):
        last = name.rpartition(".")[2]
        if len(tensor.shape) == 2 and last not in _NO_PRODUCTS and not last.endswith("_bias"):
            yield tensor


@overload
def required(tensor: Tensor | None) -> Tensor: ...
@overload
def required(tensor: Matrix | None) -> Matrix: ...
def required(tensor: Matrix | None) -> Matrix:
    """A tensor that this kind of layer has. Raises `TypeError` for a layer without it, which is a bug."""
    if tensor is None:
        raise TypeError("a layer without a tensor that its kind has")
    return tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a model. When tied, `lm_head` is `embedding`, or the quantized matrix that it was read from.

    `positions` [rows, hidden] is added to the embedding, then `token_type` [hidden] (`second_token_type` for the second
    text of a pair, where the model has one), and `embedding_norm` normalizes the sum. `final_norm` is None where the
    last layer's norm is the last.
    """

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor | None
    lm_head: Matrix
    final_norm_bias: Tensor | None = None
    head_bias: Tensor | None = None
    positions: Tensor | None = None
    token_type: Tensor | None = None
    second_token_type: Tensor | None = None
    embedding_norm: Tensor | None = None
    embedding_norm_bias: Tensor | None = None

    def without_head(self) -> Weights:
        """The weights that a backend packs of a model that predicts no tokens: `lm_head` has no rows."""
        return replace(self, lm_head=self.embedding.rows(0, 0))

    def tensors(self) -> Iterator[Matrix]:
        """All tensors, those of the layers first."""
        for layer in self.layers:
            yield from (tensor for _, tensor in part_tensors(layer))
        others = (getattr(self, field.name) for field in fields(self) if field.name != "layers")
        yield from (tensor for tensor in others if tensor is not None)


def layer_of(
    config: ModelConfig,
    matrix: Callable[[int, int], Matrix],
    norm: Callable[[int], Tensor],
    experts: ExpertWeights | None = None,
    number: int = 0,
) -> LayerWeights:
    """Layer `number` of a model, without biases, of what `matrix(rows, columns)` and `norm(size)` make, in order.

    With `experts` (`experts_of`) in the place of the MLP.
    """
    part = config.part(number)
    heads, kv_heads, inner = (int(n or 0) for n in (part.heads, part.kv_heads, part.intermediate))
    queries, keys = heads * config.head_dim, kv_heads * config.head_dim
    attends, fed, plain = part.attention, experts is None and part.feed_forward == "dense", config.latent is None
    return LayerWeights(
        input_norm=norm(config.hidden) if config.input_norms else None,
        q=matrix(queries, config.hidden) if attends and plain else None,
        k=matrix(keys, config.hidden) if attends and plain else None,
        v=matrix(keys, config.hidden) if attends and plain else None,
        o=matrix(config.hidden, heads * config.value_dim) if attends else None,
        post_norm=norm(config.hidden) if config.input_norms and not config.shared_norm else None,
        gate=matrix(inner, config.hidden) if fed and config.gated else None,
        up=matrix(inner, config.hidden) if fed else None,
        down=matrix(config.hidden, inner) if fed else None,
        q_norm=norm(queries if config.qk_norm == "whole" else config.head_dim) if config.qk_norm and attends else None,
        k_norm=norm(keys if config.qk_norm == "whole" else config.head_dim) if config.qk_norm and attends else None,
        attention_output_norm=norm(config.hidden) if config.output_norms else None,
        mlp_output_norm=norm(config.hidden) if config.output_norms else None,
        attention_gate=matrix(queries, config.hidden) if config.attention_gate and attends else None,
        experts=experts,
        latent=None if config.latent is None else _latent_of(config, config.latent, matrix, norm),
        state=_state_of(config.hidden, config.state, matrix, norm) if part.state and config.state else None,
    )


def _latent_of(
    config: ModelConfig, latent: LatentAttention, matrix: Callable[[int, int], Matrix], norm: Callable[[int], Tensor]
) -> LatentWeights:
    queries, rank = config.heads * latent.key_dim, latent.query_rank
    return LatentWeights(
        kv_down=matrix(latent.cached_dim, config.hidden),
        kv_norm=norm(latent.kv_rank),
        k_up=matrix(config.heads * latent.nope_dim, latent.kv_rank),
        v_up=matrix(config.heads * latent.value_dim, latent.kv_rank),
        q=matrix(queries, config.hidden) if rank is None else None,
        q_down=None if rank is None else matrix(rank, config.hidden),
        q_norm=None if rank is None else norm(rank),
        q_up=None if rank is None else matrix(queries, rank),
    )


def _state_of(
    hidden: int, layer: StateLayer, matrix: Callable[[int, int], Matrix], norm: Callable[[int], Tensor]
) -> StateWeights:
    shape, taps = layer.shape, layer.kernel
    kernel, by_head = norm(shape.channels * taps), not isinstance(layer, ShortConv)
    return StateWeights(
        inputs=tuple(matrix(rows, hidden) for rows in layer.input_rows),
        conv=Tensor(kernel.format, (shape.channels, taps), kernel.data.reshape(shape.channels, taps)),
        output=matrix(hidden, layer.inner),
        decay=norm(shape.heads) if by_head else None,
        step_bias=norm(shape.heads) if by_head else None,
        skip=norm(shape.heads) if isinstance(layer, Mamba2) else None,
        norm=norm(layer.value_dim if isinstance(layer, GatedDelta) else layer.inner) if by_head else None,
    )


def experts_of(
    config: ModelConfig, matrix: Callable[[int, int], Matrix], dense: Callable[[int, int], Tensor]
) -> ExpertWeights:
    """The experts of a layer, of what `matrix` and, for router and biases, `dense` make of rows and columns.

    Biases where the model's MLPs have them.
    """
    experts, hidden = config.experts, config.hidden
    if experts is None:
        raise TypeError(f"{config.architecture} has no experts")

    def each(rows: int, columns: int) -> tuple[Matrix, ...]:
        return tuple(matrix(rows, columns) for _ in range(experts.count))

    def bias(rows: int) -> Tensor | None:
        return dense(experts.count, rows) if config.mlp_bias else None

    shared = experts.shared
    return ExpertWeights(
        router=dense(experts.count, hidden),
        gate=each(experts.intermediate, hidden) if config.gated else (),
        up=each(experts.intermediate, hidden),
        down=each(hidden, experts.intermediate),
        gate_bias=bias(experts.intermediate),
        up_bias=bias(experts.intermediate),
        down_bias=bias(hidden),
        shared_gate=matrix(shared, hidden) if shared and config.gated else None,
        shared_up=matrix(shared, hidden) if shared else None,
        shared_down=matrix(hidden, shared) if shared else None,
        shared_router=dense(1, hidden) if experts.shared_gate else None,
    )


def bf16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """float32 rounded to the nearest bfloat16 (ties to even), as bits."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def bf16_values(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 bits as float32, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def exact_half(tensor: Tensor) -> Tensor:
    """An f16 tensor without loss: as bf16 when every value fits its 8 bits, else as f32. Others as they are."""
    if tensor.format != "f16":
        return tensor
    wide = tensor.data.astype(np.float32)
    bits = wide.view(np.uint32)
    if not np.any(bits & np.uint32(0xFFFF)):
        return Tensor("bf16", tensor.shape, (bits >> np.uint32(16)).astype(np.uint16))
    return Tensor("f32", tensor.shape, wide)


def column_step(matrix: Matrix) -> int:
    """A matrix can be divided between that many columns. 1 for floats, and the size of blocks of GGUF.

    A part of a group has the group's scale, so groups can be cut, but only into groups that kernels read. Groups that
    none reads become floats.
    """
    if isinstance(matrix, GroupedMatrix):
        return _SMALLEST_GROUP if matrix.grouping.group % _SMALLEST_GROUP == 0 else 1
    if matrix.format in {"f32", "bf16", "f16"}:
        return 1
    return 256 if matrix.format.endswith("_k") else 32


def dequantize(tensor: Matrix) -> NDArray[np.float32]:
    """The tensor in float32, in its shape. Block formats as in ggml-quants.c: blocks along the columns."""
    if isinstance(tensor, GroupedMatrix):
        return tensor.dequantize()
    if tensor.format == "f32":
        return tensor.data.astype(np.float32, copy=False).reshape(tensor.shape)
    if tensor.format == "f16":
        return tensor.data.astype(np.float32, copy=False).reshape(tensor.shape)
    if tensor.format == "bf16":
        return bf16_values(tensor.data.astype(np.uint16, copy=False)).reshape(tensor.shape)
    return dequantize_blocks(tensor.format, tensor.data).reshape(tensor.shape)

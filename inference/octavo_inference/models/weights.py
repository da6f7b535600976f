"""Canonical weights: what loaders produce and backends pack. numpy only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from octavo_inference.common.memory_advice import release
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.ggml_dequant import BlockFormat, dequantize_blocks
from octavo_inference.models.groups import GroupedMatrix

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
class LayerWeights:
    """One decoder layer; rows of q and k are in half-split rotary order (as in safetensors checkpoints).

    Matrices are [out, in]: q [heads*head_dim, hidden], k and v [kv_heads*head_dim, hidden], o [hidden, heads*head_dim],
    gate and up [intermediate, hidden], down [hidden, intermediate]. Norms are float32 [hidden], those of q and k
    [head_dim]: `input_norm` comes before attention, `post_norm` before the MLP, the output norms after them.
    """

    input_norm: Tensor
    q: Matrix
    k: Matrix
    v: Matrix
    o: Matrix
    post_norm: Tensor
    gate: Matrix
    up: Matrix
    down: Matrix
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


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a decoder. When tied, `lm_head` is `embedding`, or the quantized matrix that it was read from."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    lm_head: Matrix

    def tensors(self) -> Iterator[Matrix]:
        """All tensors, those of the layers first."""
        for layer in self.layers:
            found = (getattr(layer, field.name) for field in fields(layer))
            yield from (tensor for tensor in found if tensor is not None)
        yield from (self.embedding, self.final_norm, self.lm_head)


def layer_of(config: ModelConfig, matrix: Callable[[int, int], Matrix], norm: Callable[[int], Tensor]) -> LayerWeights:
    """A layer without biases of the model's sizes, of what `matrix(rows, columns)` and `norm(size)` make, in order."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return LayerWeights(
        input_norm=norm(config.hidden),
        q=matrix(queries, config.hidden),
        k=matrix(keys, config.hidden),
        v=matrix(keys, config.hidden),
        o=matrix(config.hidden, queries),
        post_norm=norm(config.hidden),
        gate=matrix(config.intermediate, config.hidden),
        up=matrix(config.intermediate, config.hidden),
        down=matrix(config.hidden, config.intermediate),
        q_norm=norm(config.head_dim) if config.qk_norm else None,
        k_norm=norm(config.head_dim) if config.qk_norm else None,
        attention_output_norm=norm(config.hidden) if config.output_norms else None,
        mlp_output_norm=norm(config.hidden) if config.output_norms else None,
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

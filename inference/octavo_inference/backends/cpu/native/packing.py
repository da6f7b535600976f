"""Packs canonical weights into the kernels' layout, in C, in parallel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.common.errors import SettingsError
from octavo_inference.common.memory_advice import Arena
from octavo_inference.config.engine import Dtype, Quantization
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.weights import Format, Matrix, Tensor, Weights, bf16_bits, dequantize, exact_half

ELEMENT_BYTES = {"f32": 4, "bf16": 2}
BLOCK = 32  # of int8.h
# The smallest packed format that holds a stored one.
_PACKED: dict[Format, abi.PackedFormat] = {
    "q4_0": "int4",
    "q4_1": "int4",
    "q4_k": "int4",
    "q5_0": "int6",
    "q5_1": "int6",
    "q5_k": "int6",
    "q6_k": "int6",
    "q8_0": "int8",
}
# With "auto" and "int8" quantized weights keep their format, and all others become bf16 or int8.
WeightFormat = Literal["auto", "bf16", "f32", "int8"]
_OF_DTYPE: dict[Dtype, WeightFormat] = {"auto": "auto", "bfloat16": "bf16", "float32": "f32"}
# Bits per packed weight, including its share of the scales (panels.h).
BITS: dict[abi.PackedFormat, float] = {"f32": 32, "bf16": 16, "int8": 8.5, "int6": 7.5, "int4": 5}


def weight_format(dtype: Dtype, quantization: Quantization = "auto") -> WeightFormat:
    """The format of weights. Raises SettingsError for a quantization without kernels, or beside another dtype."""
    if quantization == "auto":
        return _OF_DTYPE[dtype]
    if quantization != "int8":
        raise SettingsError(f"quantization {quantization} needs a GPU; on a CPU use int8 or auto", "quantization")
    if dtype != "auto":
        raise SettingsError(f"quantization int8 has no {dtype} weights: leave dtype at auto", "dtype")
    return "int8"


@dataclass(slots=True)
class Packed:
    """Packed weights for the kernels. `keep` owns the memory that the structures point into.

    `size` is the bytes of all matrices except the embedding; `quantized` is True if any of them is quantized.
    """

    layers: list[abi.Layer] = field(default_factory=list)
    embedding: abi.StoredMatrix = field(default_factory=abi.StoredMatrix)
    lm_head: abi.PackedMatrix = field(default_factory=abi.PackedMatrix)
    final_norm: int | None = None
    keep: list[object] = field(default_factory=list)
    arena: Arena = field(default_factory=Arena)
    size: int = 0
    embedding_bytes: int = 0
    quantized: bool = False


def address(array: NDArray[np.generic]) -> int:
    """Address of an array's elements."""
    return int(array.__array_interface__["data"][0])  # a third of the time of `array.ctypes.data`


def source(tensor: Tensor) -> abi.StoredMatrix:
    """A stored matrix as the kernels' structure."""
    data = tensor.data
    return abi.StoredMatrix(
        address(data), tensor.shape[0], tensor.shape[1], data.strides[0], abi.FORMATS[tensor.format]
    )


def packed_format(tensors: Sequence[Matrix], wanted: WeightFormat) -> abi.PackedFormat:
    """The format of a matrix fused of `tensors`: with "auto" one that holds them exactly, else bf16.

    Formats of up to six bits fuse (Q4_K_M files store V in Q6_K and Q and K in Q4_K), int8 only with itself. "int8"
    rounds floats whose rows are whole blocks of it.
    """
    if wanted in {"bf16", "f32"}:
        return wanted
    rounded: abi.PackedFormat = "int8" if wanted == "int8" and tensors[0].shape[1] % BLOCK == 0 else "bf16"
    formats = {_PACKED.get(m.format, rounded) if isinstance(m, Tensor) else rounded for m in tensors}
    if formats == {"int4", "int6"}:
        return "int6"
    return formats.pop() if len(formats) == 1 else "bf16"


@dataclass(frozen=True, slots=True)
class Packer:
    """Packs matrices with a team of threads: to floats, or keeping quantized tensors quantized."""

    kernels: Kernels
    team: int
    weights: WeightFormat
    into: Packed

    def matrix(
        self,
        tensors: Sequence[Matrix],
        arrangement: int = abi.CONCATENATED,
        biases: Sequence[Tensor | None] = (),
    ) -> abi.PackedMatrix:
        """Pack the tensors' rows into one matrix, padded with zero rows to whole panels."""
        panel = self.kernels.info.panel
        rows = -(-sum(t.shape[0] for t in tensors) // panel) * panel
        cols = tensors[0].shape[1]
        format_ = packed_format(tensors, self.weights)
        data = self.into.arena.allocate(int(rows * cols * BITS[format_] / 8))
        result = abi.PackedMatrix(address(data), None, rows, cols, abi.PACKED[format_])
        given = [dequantize(b).ravel() for b in biases if b is not None]
        if given:
            result.bias = self.own(self.bias(given, rows, arrangement))
        known = [exact_half(_floats(tensor, format_)) for tensor in tensors]
        sources = (abi.StoredMatrix * len(known))(*map(source, known))
        self.kernels.library.octavo_pack(self.team, result, sources, len(known), arrangement)
        for tensor in tensors:
            tensor.release()  # else the file's pages and their packed copy would be resident together
        self.own(data)
        self.into.size += data.nbytes
        self.into.quantized |= format_ not in ELEMENT_BYTES
        return result

    def bias(self, values: Sequence[NDArray[np.float32]], rows: int, arrangement: int) -> NDArray[np.float32]:
        """One value per packed row, in the order of the rows."""
        result = np.zeros(rows, np.float32)
        if arrangement == abi.INTERLEAVED:
            halves = result.reshape(-1, 2, self.kernels.info.panel // 2)
            for i, part in enumerate(values):
                padded = np.zeros(rows // 2, np.float32)
                padded[: len(part)] = part
                halves[:, i] = padded.reshape(len(halves), -1)
        else:
            result[: sum(map(len, values))] = np.concatenate(values)
        return result

    def vector(self, tensor: Tensor | None) -> int | None:
        """Address of a float32 vector, None without one."""
        return None if tensor is None else self.own(np.ascontiguousarray(dequantize(tensor).ravel(), np.float32))

    def own(self, array: NDArray[np.generic]) -> int:
        """Keep an array alive as long as the packed weights; its address."""
        self.into.keep.append(array)
        return address(array)


def _floats(matrix: Matrix, format_: abi.PackedFormat) -> Tensor:
    """A matrix as a tensor that the kernels read."""
    if not isinstance(matrix, GroupedMatrix):
        return matrix
    values = matrix.dequantize()
    return Tensor("bf16", matrix.shape, bf16_bits(values)) if format_ == "bf16" else Tensor("f32", matrix.shape, values)


def packed_bytes(weights: Weights, wanted: WeightFormat) -> int:
    """Bytes that `pack` allocates for matrices, without the padding of their last panels."""
    fused = [m for la in weights.layers for m in ((la.q, la.k, la.v), (la.o,), (la.gate, la.up), (la.down,))]
    bits = sum(
        math.prod(tensor.shape) * BITS[packed_format(tensors, wanted)]
        for tensors in [*fused, (weights.lm_head,)]
        for tensor in tensors
    )
    return int(bits / 8)


def pack(kernels: Kernels, team: int, config: ModelConfig, weights: Weights, wanted: WeightFormat) -> Packed:
    """Pack all weights of a decoder. The embedding is read in place (usually a mapped file), unless it is f16."""
    packed = Packed()
    packer = Packer(kernels, team, wanted, packed)
    norms = ("input_norm", "post_norm", "q_norm", "k_norm", "attention_output_norm", "mlp_output_norm")
    for layer in weights.layers[: config.layers]:
        packed.layers.append(
            abi.Layer(
                qkv=packer.matrix((layer.q, layer.k, layer.v), biases=(layer.q_bias, layer.k_bias, layer.v_bias)),
                output=packer.matrix((layer.o,), biases=(layer.o_bias,)),
                gate_up=packer.matrix((layer.gate, layer.up), abi.INTERLEAVED, (layer.gate_bias, layer.up_bias)),
                down=packer.matrix((layer.down,), biases=(layer.down_bias,)),
                **{name: packer.vector(getattr(layer, name)) for name in norms},
            )
        )
    packed.final_norm = packer.vector(weights.final_norm)
    packed.lm_head = packer.matrix((weights.lm_head,))
    embedding = exact_half(weights.embedding)
    packed.embedding, packed.embedding_bytes = source(embedding), embedding.data.nbytes
    packed.keep.append(embedding)
    return packed

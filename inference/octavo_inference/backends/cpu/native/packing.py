"""Packs matrices into the kernels' layout, in C, in parallel."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.packed_formats import (
    PackedPart,
    WeightFormat,
    input_order,
    levels_of,
    of_integers,
    packed_parts,
    unpacked_bytes,
)
from octavo_inference.backends.cpu.native.pieces import (
    Rows,
    checked,
    in_threads,
    integer_levels,
    read_piece,
)
from octavo_inference.common.memory_advice import Arena
from octavo_inference.models.weights import Matrix, Tensor, dequantize, exact_half

_PIECE_VALUES = 2 << 20  # of a matrix that is read in pieces
_READERS = min(4, os.cpu_count() or 1)
_LINE = 64  # bytes


@dataclass(slots=True)
class Packed:
    """Packed weights for the kernels. `keep` owns the memory that the structures point into.

    `size` is the bytes of all matrices except the embedding. `quantized` is True if a kernel reads activations in 8
    bits. `panel_bytes` is the memory that each thread needs to unpack a panel. `unkept` has the names of linears that
    became floats, by the reason. `expert_tokens` [layers, experts] counts the tokens of each expert.
    """

    layers: list[abi.LayerArgs] = field(default_factory=list)
    embedding: abi.StoredMatrix = field(default_factory=abi.StoredMatrix)
    lm_head: abi.PackedMatrix = field(default_factory=abi.PackedMatrix)
    positions: abi.StoredMatrix = field(default_factory=abi.StoredMatrix)
    final_norm: abi.NormArgs = field(default_factory=abi.NormArgs)
    embedding_norm: abi.NormArgs = field(default_factory=abi.NormArgs)
    token_type: int | None = None
    second_token_type: int | None = None
    keep: list[object] = field(default_factory=list)
    arena: Arena = field(default_factory=Arena)
    size: int = 0
    embedding_bytes: int = 0
    quantized: bool = False
    panel_bytes: int = 0
    unkept: dict[str, list[str]] = field(default_factory=dict)
    expert_tokens: NDArray[np.int64] | None = None


def address(array: NDArray[np.generic]) -> int:
    """Address of an array's elements."""
    return int(array.__array_interface__["data"][0])  # a third of the time of `array.ctypes.data`


def source(tensor: Tensor) -> abi.StoredMatrix:
    """A stored matrix as the kernels' structure."""
    data = tensor.data
    rows, cols = tensor.shape
    return abi.StoredMatrix(
        address(data), rows=rows, cols=cols, row_bytes=data.strides[0], format=abi.FORMATS[tensor.format]
    )


def rows_source(rows: Rows) -> abi.StoredMatrix:
    """Rows of a piece as the kernels' structure."""
    values, scale, minimum = rows.values, rows.scale, rows.minimum
    return abi.StoredMatrix(
        data=address(values),
        scale=None if scale is None else address(scale),
        minimum=None if minimum is None else address(minimum),
        rows=values.shape[0],
        cols=values.shape[1],
        row_bytes=values.strides[0],
        group=0 if scale is None else values.shape[1] // scale.shape[1],
        format=abi.FORMATS["f32"] if scale is None else abi.GROUPS,
    )


@dataclass(frozen=True, slots=True)
class Packer:
    """Packs matrices with a team of threads: to floats, or keeping quantized tensors quantized."""

    kernels: Kernels
    team: int
    weights: WeightFormat
    into: Packed

    def matrix(
        self,
        matrices: Sequence[Matrix],
        arrangement: int = abi.CONCATENATED,
        biases: Sequence[Tensor | None] = (),
        names: Sequence[str] = (),
    ) -> abi.PackedMatrix:
        """Pack the rows of `matrices` into one matrix, padded with zero rows to whole panels.

        `names` are those of the matrices, for messages. Raises ModelError for scales that are not finite.
        """
        names = names or [f"matrix {number}" for number in range(len(matrices))]
        matrices = [checked(matrix, name) for matrix, name in zip(matrices, names, strict=True)]
        parts = packed_parts(matrices, self.weights, arrangement)
        order = input_order(matrices) if parts[0].ordered else None
        packed = [self._part(part, arrangement) for part in parts]
        result = packed[0]
        if len(packed) > 1:
            for before, part in pairwise(packed):
                part.first_row = before.first_row + before.rows
            last = packed[-1]
            result = abi.PackedMatrix(rows=last.first_row + last.rows, cols=last.cols, format=packed[0].format)
            result.parts, result.part_count = self.array(packed), len(packed)
        if order is not None:
            result.order = self.own(np.ascontiguousarray(order))
            self.into.size += order.nbytes
        given = [dequantize(b).ravel() for b in biases if b is not None]
        if given:
            result.bias = self.own(self.by_row(given, result.rows, arrangement))
        for matrix in matrices:
            matrix.release()  # else the file's pages and their packed copy would be resident together
        self.into.quantized |= of_integers(parts)
        info = self.kernels.info
        unpacked = unpacked_bytes(parts, info.panel, tiles=info.quantized_block_bytes == 0)
        self.into.panel_bytes = max(self.into.panel_bytes, unpacked)
        for reason in dict.fromkeys(each.unkept for each in parts if each.unkept):
            self.into.unkept.setdefault(reason, []).append(" and ".join(names))
        return result

    def _part(self, part: PackedPart, arrangement: int) -> abi.PackedMatrix:
        """Pack matrices in one format."""
        panel, cols = self.kernels.info.panel, part.matrices[0].shape[1]
        rows = -(-sum(m.shape[0] for m in part.matrices) // panel) * panel
        layout = part.layout
        size = rows * layout.row_bytes(cols)
        # In one piece: few factors between large matrices would waste most of a huge page.
        start = -(-size // _LINE) * _LINE if part.grouped else size
        memory = self.into.arena.allocate(start + (4 * rows if part.grouped else 0))
        factor = memory[start:].view(np.float32)
        result = abi.PackedMatrix(
            self.own(memory), rows=rows, cols=cols, span=layout.span, format=abi.PACKED[layout.format]
        )
        if part.grouped:
            result.factor = address(factor)
        self.into.size += size + factor.nbytes
        tensors = [exact_half(matrix) for matrix in part.matrices if isinstance(matrix, Tensor)]
        if len(tensors) == len(part.matrices):
            self._pack(result, [source(tensor) for tensor in tensors], arrangement, range(rows // panel))
            return result
        if layout.kind == "code4":
            result.levels[:] = integer_levels(levels_of(part.matrices[0]))[1].tolist()
        at_once = max(1, _PIECE_VALUES // (cols * panel))
        panels = [range(first, min(first + at_once, rows // panel)) for first in range(0, rows // panel, at_once)]
        read = partial(read_piece, part, arrangement, panel)
        for some, sources in zip(panels, in_threads(read, panels, _READERS), strict=True):
            self._pack(result, [rows_source(stored) for stored in sources], arrangement, some)
            if part.grouped:
                factors = [stored.factor for stored in sources if stored.factor is not None]
                count = len(some) * panel
                factor[some.start * panel :][:count] = self.by_row(factors, count, arrangement)
        return result

    def _pack(self, matrix: abi.PackedMatrix, sources: list[abi.StoredMatrix], arrangement: int, panels: range) -> None:
        array = (abi.StoredMatrix * len(sources))(*sources)
        self.kernels.library.octavo_pack(self.team, matrix, array, len(array), arrangement, panels.start, len(panels))

    def by_row(self, values: Sequence[NDArray[np.float32]], rows: int, arrangement: int) -> NDArray[np.float32]:
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

    def norm(self, weight: Tensor | None, bias: Tensor | None, width: int) -> abi.NormArgs:
        """A norm that exists, over `width` elements; one without a weight has ones."""
        ones = np.ones(width, np.float32) if weight is None else None
        return abi.NormArgs(self.vector(weight) if ones is None else self.own(ones), self.vector(bias))

    def stored(self, tensor: Tensor) -> abi.StoredMatrix:
        """A matrix whose rows are read one by one: in place, unless it is f16."""
        exact = exact_half(tensor)
        self.into.keep.append(exact)
        self.into.embedding_bytes += exact.data.nbytes
        return source(exact)

    def array(self, matrices: Sequence[abi.PackedMatrix]) -> int:
        """Keep packed matrices as an array; its address."""
        array = (abi.PackedMatrix * len(matrices))(*matrices)
        self.into.keep.append(array)
        return ctypes.addressof(array)

    def own(self, array: NDArray[np.generic]) -> int:
        """Keep an array alive as long as the packed weights; its address."""
        self.into.keep.append(array)
        return address(array)

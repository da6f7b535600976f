"""Packs adapters for the kernels: see adapters.h and `LowRank` in abi.h."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.packed_formats import WeightFormat
from octavo_inference.backends.cpu.native.packing import address
from octavo_inference.common.memory_advice import Arena
from octavo_inference.models.adapter import PLAIN_FIELDS, Adapter, Float32, LowRank, TokenRows, require_supported
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Weights, bf16_bits, part_tensors

# The matrices that are changed, in the order of `AdaptedPart`: the fields that each may consist of.
_PARTS: tuple[tuple[str, ...], ...] = (
    ("q", "k", "v", "attention_gate", "latent.q", "latent.q_down", "latent.kv_down"),
    ("o",),
    ("gate", "up"),
    ("down",),
    ("latent.q_up",),
    ("state.inputs",),
    ("state.output",),
)
FIELDS = (
    *PLAIN_FIELDS,
    *(f"latent.{name}" for name in ("q", "q_down", "q_up", "kv_down")),
    *(f"experts.{name}" for name in ("gate", "up", "down", "shared_gate", "shared_up", "shared_down")),
    *("state.inputs", "state.output"),
)
"""The matrices that adapters may change."""

Shapes = tuple[Mapping[str, tuple[int, int]], ...]
"""[rows, columns] of the matrices of each layer, by field."""


def shapes_of(weights: Weights) -> Shapes:
    """The shapes of a model's matrices."""
    layers = (part_tensors(layer) for layer in weights.layers)
    return tuple({n: (t.shape[0], t.shape[1]) for n, t in layer if len(t.shape) == 2} for layer in layers)


@dataclass(slots=True)
class PackedAdapter:
    """A packed adapter, with the memory that `args` points into."""

    args: abi.AdapterArgs
    nbytes: int
    arena: Arena = field(default_factory=Arena)
    keep: list[object] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AdapterPacker:
    """Packs adapters of one model, in any thread: with a thread of its own, since steps run meanwhile.

    `layers` are the packed layers, `lm_head` the packed head; `stride` the ranks that a row's products may have, in
    whole panels.
    """

    kernels: Kernels
    config: ModelConfig
    shapes: Shapes
    layers: ctypes.Array[abi.LayerArgs]
    lm_head: abi.PackedMatrix
    format: WeightFormat
    stride: int

    def pack(self, adapter: Adapter) -> PackedAdapter:
        """Pack an adapter. Raises `ModelError` for changes of matrices that the kernels do not change."""
        require_supported(adapter, FIELDS)
        found, parts = self._unchanged()
        head, experts = self._head, self._experts
        for number, changes in enumerate(adapter.layers):
            for part, fields in enumerate(_PARTS):
                names = [name for each in fields for name in _fields(each, self.shapes[number])]
                changed = self._part(found, names, self._matrix(number, part), changes, number)
                if changed is not None:
                    parts[number * len(_PARTS) + part] = changed
            for expert in range(experts if self.layers[number].experts else 0):
                for last, (names, matrix) in enumerate(self._expert(number, expert)):
                    changed = self._part(found, names, matrix, changes, number)
                    if changed is not None:
                        parts[head + 1 + 2 * (number * experts + expert) + last] = changed
        if adapter.lm_head is not None:
            rows, rank = adapter.lm_head.up.shape
            up = np.zeros((self.lm_head.rows, rank), np.float32)
            up[:rows] = adapter.lm_head.up
            parts[head] = self._low_rank(found, adapter.lm_head.down, up, None, _order(self.lm_head))
        if adapter.embedding is not None:
            self._embedding(found, adapter.embedding)
        if adapter.embedding_rows is not None:
            found.args.embedding_rows = self._token_rows(found, adapter.embedding_rows, None)
        if adapter.lm_head_rows is not None:
            found.args.head_rows = self._token_rows(found, adapter.lm_head_rows, _order(self.lm_head))
        return found

    def empty(self) -> PackedAdapter:
        """An adapter that changes nothing."""
        return self._unchanged()[0]

    @property
    def _head(self) -> int:
        """The place of the head among the parts; after it are those of experts."""
        return len(self.layers) * len(_PARTS)

    @property
    def _experts(self) -> int:
        """Experts of a layer, with the shared MLP."""
        return 0 if self.config.experts is None else self.config.experts.count + 1

    def _unchanged(self) -> tuple[PackedAdapter, ctypes.Array[abi.LowRankArgs]]:
        """An adapter that changes nothing, and its parts."""
        parts = (abi.LowRankArgs * (self._head + 1 + 2 * len(self.layers) * self._experts))()
        return PackedAdapter(abi.AdapterArgs(parts=ctypes.addressof(parts)), 0, keep=[parts]), parts

    def _part(
        self,
        found: PackedAdapter,
        names: list[str],
        matrix: abi.PackedMatrix,
        changes: Mapping[str, LowRank],
        number: int,
    ) -> abi.LowRankArgs | None:
        """The change of a matrix of layer `number` that fuses those of `names`, None if none of them is changed.

        `down` of its fields one below the other, `up` in blocks.
        """
        if not any(name in changes for name in names):
            return None
        shapes = self.shapes[number]
        interleaved = len(names) == 2 and "gate" in names[0] and "up" in names[1]
        ranks = [changes[name].rank if name in changes else 0 for name in names]
        columns = shapes[names[0]][1]
        down = np.zeros((sum(ranks), columns), np.float32)
        up = np.zeros((matrix.rows, sum(ranks)), np.float32)
        bias: NDArray[np.float32] | None = None
        first = start = 0
        for place, (name, rank) in enumerate(zip(names, ranks, strict=True)):
            rows = shapes[name][0]
            at = np.arange(start, start + rows)
            if interleaved:
                at = _interleaved(rows, place, self.kernels.info.panel)
            start += rows
            change = changes.get(name)
            if change is None:
                continue
            if rank:
                down[first : first + rank] = change.down
                up[at, first : first + rank] = change.up
                first += rank
            if change.bias is not None:
                bias = np.zeros(matrix.rows, np.float32) if bias is None else bias
                bias[at] = change.bias
        return self._low_rank(found, down, up, bias, _order(matrix))

    def _expert(self, number: int, expert: int) -> tuple[tuple[list[str], abi.PackedMatrix], ...]:
        """The fields and matrices of an expert's two products; the last expert is the shared MLP."""
        shapes, packed = self.shapes[number], abi.ExpertLayer.from_address(self.layers[number].experts)
        count = 0 if self.config.experts is None else self.config.experts.count
        if expert == count and not packed.shared:
            return ()
        kinds = [f"experts.{{}}.{expert}", "experts.shared_{}"]
        name = kinds[expert == count].format
        up = [name(kind) for kind in ("gate", "up") if name(kind) in shapes]
        matrices = [
            (abi.PackedMatrix * (count + packed.shared)).from_address(each)[expert]
            for each in (packed.gate_up, packed.down)
        ]
        return (up, matrices[0]), ([name("down")], matrices[1])

    def _low_rank(
        self,
        found: PackedAdapter,
        down: NDArray[np.float32],
        up: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        order: NDArray[np.int32] | None,
    ) -> abi.LowRankArgs:
        """`up` [packed rows, ranks]: half a panel has those ranks from its first to its last that is not zero."""
        half = self.kernels.info.panel // 2
        rank = len(down)
        result = abi.LowRankArgs()
        if rank:
            by_half = up.reshape(-1, half, rank)
            used = np.any(by_half != 0, axis=1)
            some = np.any(used, axis=1)
            firsts = np.where(some, np.argmax(used, axis=1), 0).astype(np.int32)
            ends = np.where(some, rank - np.argmax(used[:, ::-1], axis=1), 0).astype(np.int32)
            starts = np.concatenate([[0], np.cumsum(ends - firsts)]).astype(np.int32)
            rows = [block[:, lo:hi].T for block, lo, hi in zip(by_half, firsts, ends, strict=True)]
            result.up = self._stored(found, np.concatenate(rows))
            result.first, result.start = address(firsts), address(starts)
            found.keep += [firsts, starts]
            group, columns = 1 if self.format == "f32" else 2, down.shape[1]
            result.ranks = -(-rank // half) * half
            padded = np.zeros((result.ranks, columns), np.float32)
            padded[:rank] = down if order is None else down[:, order]
            blocks = padded.reshape(-1, half, columns // group, group)
            result.down = self._stored(found, np.swapaxes(blocks, 1, 2))
        if bias is not None:
            result.bias = address(bias)
            found.keep.append(bias)
        return result

    def _stored(self, found: PackedAdapter, values: Float32) -> int:
        """The address of a copy in the format of the kernels, which begins at a line of the cache."""
        stored = values if self.format == "f32" else bf16_bits(np.ascontiguousarray(values))
        memory = found.arena.allocate(stored.nbytes)
        memory.view(stored.dtype)[:] = stored.ravel()
        found.nbytes += stored.nbytes
        found.keep.append(memory)
        return address(memory)

    def _matrix(self, number: int, part: int) -> abi.PackedMatrix:
        layer = self.layers[number]
        matrices: tuple[abi.PackedMatrix, ...] = (
            layer.qkv,
            layer.output,
            layer.gate_up,
            layer.down,
            layer.query_up,
            layer.state.inputs,
            layer.state.output,
        )
        return matrices[part]

    def _token_rows(self, found: PackedAdapter, own: TokenRows, order: NDArray[np.int32] | None) -> abi.TokenRowsArgs:
        """Rows with their columns in an `order`, None for their own."""
        ids, rows = (
            np.ascontiguousarray(own.ids),
            self._stored(found, own.rows if order is None else own.rows[:, order]),
        )
        result = abi.TokenRowsArgs(ids=address(ids), rows=rows, count=len(ids))
        found.keep.append(ids)
        if own.bias is not None:
            bias = np.ascontiguousarray(own.bias, np.float32)
            result.bias = address(bias)
            found.keep.append(bias)
        return result

    def _embedding(self, found: PackedAdapter, change: LowRank) -> None:
        down, up = np.ascontiguousarray(change.down.T), np.ascontiguousarray(change.up.T)
        found.args.embedding_down, found.args.embedding_up = address(down), address(up)
        found.args.embedding_rank = change.rank
        found.keep += [down, up]
        found.nbytes += down.nbytes + up.nbytes


def _order(matrix: abi.PackedMatrix) -> NDArray[np.int32] | None:
    """The order of a packed matrix's columns, None for their own."""
    if not matrix.order:
        return None
    return np.ctypeslib.as_array((ctypes.c_int32 * matrix.cols).from_address(matrix.order))


def most_ranks(max_rank: int, panel: int, shapes: Shapes) -> int:
    """Products of a row with `down` of any matrix, in whole panels. Each field of a fused matrix has its own."""
    groups = [[name for each in fields for name in _fields(each, layer)] for layer in shapes for fields in _PARTS]
    widest = max([2, *map(len, groups)])  # gate and up of experts
    return -(-widest * max_rank // panel) * panel


def _fields(name: str, shapes: Mapping[str, tuple[int, int]]) -> list[str]:
    """The fields of a layer by a name: itself, or the matrices of a tuple."""
    return [each for each in shapes if each == name or each.startswith(f"{name}.")]


def _interleaved(rows: int, place: int, panel: int) -> NDArray[np.int64]:
    """Packed rows of gate (place 0) or up: each panel has half a panel of gate, then the same rows of up."""
    row, half = np.arange(rows), panel // 2
    return row // half * panel + place * half + row % half

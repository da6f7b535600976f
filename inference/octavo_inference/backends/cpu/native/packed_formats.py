"""Which packed formats keep a matrix, or the parts of a fused one. Pure: nothing is read but shapes and formats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from octavo_inference.backends.cpu.native import abi
from octavo_inference.common.errors import SettingsError
from octavo_inference.config.engine import Dtype, Quantization
from octavo_inference.models.groups import GroupedMatrix, Grouping
from octavo_inference.models.weights import (
    ExpertWeights,
    Format,
    LatentWeights,
    Matrix,
    Tensor,
    Weights,
    required,
)

ELEMENT_BYTES = {"f32": 4, "bf16": 2}
BLOCK = 32  # of int8.h
_HALF = 16
WIDEST_PANEL = 32  # of all variants: parts of a fused matrix are multiples of it
# With "auto" and "int8" quantized weights keep their format, and all others become bf16 or int8.
WeightFormat = Literal["auto", "bf16", "f32", "int8"]

_KEEP_QUANTIZED: tuple[WeightFormat, ...] = ("auto", "int8")
_OF_DTYPE: dict[Dtype, WeightFormat] = {"auto": "auto", "bfloat16": "bf16", "float32": "f32"}
# The smallest packed format that holds a stored one.
_PACKED: dict[Format, abi.PackedFormat] = {
    "q4_0": "int4_symmetric",
    "q4_1": "int4",
    "q4_k": "int4",
    "q5_0": "int6",
    "q5_1": "int6",
    "q5_k": "int6",
    "q6_k": "int6",
    "q8_0": "int8",
}
# Bits of a value, and scales and minima of a group.
_STORES: dict[abi.PackedFormat, tuple[int, int]] = {
    "int4": (4, 2),
    "int4_16": (4, 2),
    "int4_symmetric": (4, 1),
    "int4_symmetric_16": (4, 1),
    "code4": (4, 1),
    "code4_16": (4, 1),
    "int8": (8, 1),
    "int8_minimum": (8, 2),
    "fp8": (8, 1),
}
_WITH_MINIMUM = frozenset({"int4", "int4_16", "int6", "int8_minimum"})


@dataclass(frozen=True, slots=True)
class PanelLayout:
    """A packed format, and for quantized weights how many columns share a scale: 16 or a multiple of 32."""

    format: abi.PackedFormat
    group: int = BLOCK

    @property
    def kind(self) -> str:
        """The kind of values, as in `Grouping`."""
        return self.format.partition("_")[0]

    @property
    def minimum(self) -> bool:
        """Whether groups have a minimum."""
        return self.format in _WITH_MINIMUM

    @property
    def floats(self) -> bool:
        """Whether weights are not quantized."""
        return self.format in ELEMENT_BYTES

    @property
    def span(self) -> int:
        """Blocks of 32 columns that share scales; 0 for floats."""
        return 0 if self.floats else max(1, self.group // BLOCK)

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row, with its scales (panels.h)."""
        if self.floats:
            return columns * ELEMENT_BYTES[self.format]
        if self.format == "int6":
            return columns * 3 // 4 + columns // BLOCK * 6
        bits, numbers = _STORES[self.format]
        return columns * bits // 8 + columns // self.group * 2 * numbers


_FLOATS = PanelLayout("bf16")


@dataclass(frozen=True, slots=True)
class PackedPart:
    """Matrices that are packed in one layout, one below the other or interleaved.

    If `ordered`, their columns stay in the order of the file (act-order), and the input is put in that order. `unkept`:
    why quantized weights become floats although their format was to be kept; else empty.
    """

    layout: PanelLayout
    matrices: tuple[Matrix, ...]
    ordered: bool = False
    unkept: str = ""

    @property
    def grouped(self) -> bool:
        """Whether its rows have factors: those of quantized matrices that are read in pieces."""
        return not self.layout.floats and isinstance(self.matrices[0], GroupedMatrix)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights, without the padding of the last panel."""
        rows, cols = sum(m.shape[0] for m in self.matrices), self.matrices[0].shape[1]
        return rows * (self.layout.row_bytes(cols) + (4 if self.grouped else 0))


def weight_format(dtype: Dtype, quantization: Quantization = "auto") -> WeightFormat:
    """The format of weights. Raises SettingsError for a quantization without kernels, or beside another dtype."""
    if quantization == "auto":
        return _OF_DTYPE[dtype]
    if quantization != "int8":
        raise SettingsError(f"quantization {quantization} needs a GPU; on a CPU use int8 or auto", "quantization")
    if dtype != "auto":
        raise SettingsError(f"quantization int8 has no {dtype} weights: leave dtype at auto", "dtype")
    return "int8"


def packed_parts(
    matrices: Sequence[Matrix], wanted: WeightFormat, arrangement: int = abi.CONCATENATED
) -> tuple[PackedPart, ...]:
    """How a matrix fused of `matrices` is packed: with "auto" and "int8" in formats that keep quantized weights.

    Concatenated matrices of different formats become parts, where these are whole panels. Interleaved ones share
    panels, so they need a format that holds both; if there is none, they become bf16.

    Matrices with different orders of columns (act-order) become bf16, because they have one input. Methods that sort
    columns by their activations give matrices with one input one order, so no published checkpoint is known to need
    this. An outline has no orders of its own: for such a file it foresees the size of quantized weights, too little.
    """
    if wanted in {"bf16", "f32"}:
        return (PackedPart(PanelLayout(cast("abi.PackedFormat", wanted)), tuple(matrices)),)
    ordered = input_order(matrices) is not None
    kept = [_kept(matrix, wanted, ordered=ordered) for matrix in matrices]
    layouts, reasons = [layout for layout, _ in kept], [reason for _, reason in kept]
    keys = [_key(matrix, layout) for matrix, layout in zip(matrices, layouts, strict=True)]
    if len(set(keys)) == 1:
        return (PackedPart(layouts[0], tuple(matrices), ordered, _joined(reasons)),)
    ends = np.cumsum([matrix.shape[0] for matrix in matrices])
    borders = [int(end) for end, key, after in zip(ends, keys, keys[1:], strict=False) if key != after]
    if arrangement == abi.INTERLEAVED or any(border % WIDEST_PANEL for border in borders):
        layout = _common(matrices, layouts)
        if layout is None:
            reasons.append(f"{_joined(map(_described, matrices), ' and ')} in one linear, without a common format")
        return (PackedPart(layout or _FLOATS, tuple(matrices), ordered, _joined(reasons)),)
    parts: list[PackedPart] = []
    for number, (layout, matrix, reason) in enumerate(zip(layouts, matrices, reasons, strict=True)):
        if number and keys[number] == keys[number - 1]:
            last = parts.pop()
            parts.append(PackedPart(layout, (*last.matrices, matrix), ordered, _joined((last.unkept, reason))))
        else:
            parts.append(PackedPart(layout, (matrix,), ordered, reason))
    return tuple(parts)


def router_format(routers: Sequence[Tensor]) -> Literal["bf16", "f32"]:
    """The format that keeps a router exactly: the product is in float32 whatever the weights' format is."""
    return "bf16" if all(router.format == "bf16" for router in routers) else "f32"


def input_order(matrices: Sequence[Matrix]) -> np.ndarray[tuple[int], np.dtype[np.int32]] | None:
    """The order of the input's elements that the matrices share (act-order); None if it is that of the columns."""
    orders = [matrix.order if isinstance(matrix, GroupedMatrix) else None for matrix in matrices]
    first = orders[0]
    if first is None or not all(order is not None and np.array_equal(order, first) for order in orders):
        return None
    return first


def packed_bytes(weights: Weights, wanted: WeightFormat) -> int:
    """Bytes that `pack` allocates for matrices, without the padding of their last panels."""
    linears = sum(matrix_bytes(matrices, wanted, arrangement) for matrices, arrangement in _linears(weights))
    return linears + expansion_bytes(weights, wanted) + _router_bytes(weights)


def largest_unpacked(weights: Weights) -> int:
    """Bytes for which a thread needs memory to unpack a panel, at most: of any linear, format and variant."""
    return max(
        unpacked_bytes(packed_parts(matrices, wanted, arrangement), WIDEST_PANEL, tiles=tiles)
        for matrices, arrangement in _linears(weights)
        for wanted in _KEEP_QUANTIZED
        for tiles in (False, True)
    )


def unpacked_bytes(parts: Iterable[PackedPart], panel: int, *, tiles: bool) -> int:
    """Bytes of the largest panel that a thread unpacks: tiles unpack quantized weights to bf16, others fp8 to f32."""
    unpacked = [part for part in parts if not part.layout.floats and (tiles or part.layout.format == "fp8")]
    return max((part.matrices[0].shape[1] * panel * (2 if tiles else 4) for part in unpacked), default=0)


def _linears(weights: Weights) -> Iterator[tuple[tuple[Matrix, ...], int]]:
    """The matrices of each packed one, and their arrangement; not those of routers."""
    for layer in weights.layers:
        if layer.latent is not None:
            yield from ((matrices, abi.CONCATENATED) for matrices in _latent_linears(layer.latent))
        elif layer.q is not None:
            gate = () if layer.attention_gate is None else (layer.attention_gate,)
            yield (layer.q, required(layer.k), required(layer.v), *gate), abi.CONCATENATED
        if layer.o is not None:
            yield (layer.o,), abi.CONCATENATED
        if layer.state is not None:
            yield layer.state.inputs, abi.CONCATENATED
            yield (layer.state.output,), abi.CONCATENATED
        if layer.experts is not None:
            yield from _expert_linears(layer.experts)
        elif layer.up is not None:
            yield _gate_up(layer.gate, layer.up)
            yield (required(layer.down),), abi.CONCATENATED
    yield (weights.lm_head,), abi.CONCATENATED


def _latent_linears(weights: LatentWeights) -> Iterator[tuple[Matrix, ...]]:
    """The matrices of each packed one, without the expansions."""
    if weights.q_up is None:
        yield required(weights.q), weights.kv_down
    else:
        yield required(weights.q_down), weights.kv_down
        yield (weights.q_up,)


def expansion_bytes(weights: Weights, wanted: WeightFormat) -> int:
    """Bytes of the packed expansions of all layers."""
    latents = [layer.latent for layer in weights.layers if layer.latent is not None]
    rows = [matrix.shape for latent in latents for matrix in (latent.k_up, latent.v_up)]
    return sum(height * width for height, width in rows) * ELEMENT_BYTES[expansion_format(wanted)]


def expansion_format(wanted: WeightFormat) -> WeightFormat:
    """Expansions are multiplied as floats: they are small, and each head has its own."""
    return "f32" if wanted == "f32" else "bf16"


def _expert_linears(experts: ExpertWeights) -> Iterator[tuple[tuple[Matrix, ...], int]]:
    for gate, up in zip(experts.gate or (None,) * len(experts.up), experts.up, strict=True):
        yield _gate_up(gate, up)
    yield from (((matrix,), abi.CONCATENATED) for matrix in experts.down)
    if experts.shared_up is not None:
        yield _gate_up(experts.shared_gate, experts.shared_up)
        yield (required(experts.shared_down),), abi.CONCATENATED


def _gate_up(gate: Matrix | None, up: Matrix) -> tuple[tuple[Matrix, ...], int]:
    return ((up,), abi.CONCATENATED) if gate is None else ((gate, up), abi.INTERLEAVED)


def _router_bytes(weights: Weights) -> int:
    mixtures = [layer.experts for layer in weights.layers if layer.experts is not None]
    routers = [[each for each in (experts.router, experts.shared_router) if each is not None] for experts in mixtures]
    return sum(math.prod(each.shape) * ELEMENT_BYTES[router_format(both)] for both in routers for each in both)


def matrix_bytes(matrices: Sequence[Matrix], wanted: WeightFormat, arrangement: int) -> int:
    """Bytes of one packed matrix, without the padding of its last panel."""
    parts = packed_parts(matrices, wanted, arrangement)
    return sum(part.nbytes for part in parts) + (4 * matrices[0].shape[1] if parts[0].ordered else 0)


def group_layout(grouping: Grouping, columns: int) -> PanelLayout | None:
    """The packed layout of groups, None if there is none: columns that are no whole blocks, groups of odd sizes."""
    kind = "int8" if grouping.kind == "code4" and grouping.minimum else grouping.kind
    return None if columns % BLOCK else _layout_of(kind, grouping.group, minimum=grouping.minimum)


def _layout_of(kind: str, group: int, *, minimum: bool) -> PanelLayout | None:
    """The layout of a kind with the largest groups that divide `group`."""
    whole = group % BLOCK == 0
    if not whole and (group % _HALF or kind in {"int8", "fp8"}):
        return None
    format_ = {
        ("int4", True): "int4",
        ("int4", False): "int4_symmetric",
        ("code4", False): "code4",
        ("int8", True): "int8_minimum",
        ("int8", False): "int8",
        ("fp8", False): "fp8",
    }.get((kind, minimum))
    if format_ is None:
        return None
    return PanelLayout(cast("abi.PackedFormat", format_ if whole else format_ + "_16"), group if whole else _HALF)


def _kept(matrix: Matrix, wanted: WeightFormat, *, ordered: bool) -> tuple[PanelLayout, str]:
    """The layout that keeps a matrix; that of floats with the reason, if quantized weights have no other."""
    rounded = PanelLayout("int8") if wanted == "int8" and matrix.shape[1] % BLOCK == 0 else _FLOATS
    if isinstance(matrix, Tensor):
        return (PanelLayout(_PACKED[matrix.format]) if matrix.format in _PACKED else rounded), ""
    layout = group_layout(matrix.grouping, matrix.shape[1])
    if layout is None:
        rows = f", in rows of {matrix.shape[1]}" if matrix.shape[1] % BLOCK else ""
        return _FLOATS, _described(matrix) + rows
    if matrix.order is not None and not ordered:
        return _FLOATS, f"{_described(matrix)} in an order of columns (act-order) that not all of the linear has"
    return layout, ""


def _described(matrix: Matrix) -> str:
    """A format as logs name it."""
    if isinstance(matrix, Tensor):
        return matrix.format
    minimum = " with a minimum" if matrix.grouping.minimum else ""
    return f"{matrix.format} ({matrix.grouping.kind}{minimum}) in groups of {matrix.grouping.group}"


def _joined(reasons: Iterable[str], between: str = "; ") -> str:
    """Different reasons in one line."""
    return between.join(dict.fromkeys(filter(None, reasons)))


def _key(matrix: Matrix, layout: PanelLayout) -> tuple[object, ...]:
    """What matrices of one part have in common. Those of groups have factors, others have none."""
    return (layout.format,) if layout.floats else (layout, levels_of(matrix), type(matrix))


def _common(matrices: Sequence[Matrix], layouts: Sequence[PanelLayout]) -> PanelLayout | None:
    """A layout that holds matrices in several formats without loss, None if there is none."""
    formats = {layout.format for layout in layouts}
    if all(isinstance(matrix, Tensor) for matrix in matrices) and formats <= {"int4", "int4_symmetric", "int6"}:
        return PanelLayout("int6" if "int6" in formats else "int4")
    groupings = [matrix.grouping for matrix in matrices if isinstance(matrix, GroupedMatrix)]
    if len(groupings) == len(matrices) and "bf16" not in formats:
        kinds = {grouping.kind for grouping in groupings}
        if kinds == {"fp8"} or kinds <= {"int4", "int8", "code4"}:
            group = math.gcd(*(grouping.group for grouping in groupings))
            kind = kinds.pop() if kinds in ({"fp8"}, {"int4"}) else "int8"
            return _layout_of(kind, group, minimum=any(grouping.minimum for grouping in groupings))
    return None


def levels_of(matrix: Matrix) -> tuple[float, ...]:
    """The 16 levels of a matrix of code4, else none."""
    return matrix.grouping.levels if isinstance(matrix, GroupedMatrix) else ()


def of_integers(parts: Iterable[PackedPart]) -> bool:
    """Whether a kernel of any part reads activations in 8 bits."""
    return any(not part.layout.floats and part.layout.format != "fp8" for part in parts)

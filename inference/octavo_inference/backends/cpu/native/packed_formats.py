"""Which packed formats keep a matrix, or the parts of a fused one. Pure: nothing is read but shapes and formats."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, cast

import numpy as np

from octavo_inference.backends.cpu.native import abi
from octavo_inference.common.errors import SettingsError
from octavo_inference.config.engine import Dtype, Quantization
from octavo_inference.models.groups import GroupedMatrix, Grouping
from octavo_inference.models.weights import Format, Matrix, Tensor, Weights

ELEMENT_BYTES = {"f32": 4, "bf16": 2}
BLOCK = 32  # of int8.h
_HALF = 16
WIDEST_PANEL = 32  # of all variants: parts of a fused matrix are multiples of it
# With "auto" and "int8" quantized weights keep their format, and all others become bf16 or int8.
WeightFormat = Literal["auto", "bf16", "f32", "int8"]

_LOG = logging.getLogger(__name__)
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
        return _STORES[self.format][1] == 2

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

    If `ordered`, their columns stay in the order of the file (act-order), and the input is put in that order.
    """

    layout: PanelLayout
    matrices: tuple[Matrix, ...]
    ordered: bool = False

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
    """
    if wanted in {"bf16", "f32"}:
        return (PackedPart(PanelLayout(cast("abi.PackedFormat", wanted)), tuple(matrices)),)
    ordered = input_order(matrices) is not None
    layouts = [_kept(matrix, wanted, ordered=ordered) for matrix in matrices]
    keys = [_key(matrix, layout) for matrix, layout in zip(matrices, layouts, strict=True)]
    if len(set(keys)) == 1:
        return (PackedPart(layouts[0], tuple(matrices), ordered),)
    ends = np.cumsum([matrix.shape[0] for matrix in matrices])[:-1]
    if arrangement == abi.INTERLEAVED or (ends % WIDEST_PANEL).any():
        return (PackedPart(_common(matrices, layouts), tuple(matrices), ordered),)
    parts: list[PackedPart] = []
    for number, (layout, matrix) in enumerate(zip(layouts, matrices, strict=True)):
        if number and keys[number] == keys[number - 1]:
            parts[-1] = PackedPart(layout, (*parts[-1].matrices, matrix), ordered)
        else:
            parts.append(PackedPart(layout, (matrix,), ordered))
    return tuple(parts)


def input_order(matrices: Sequence[Matrix]) -> np.ndarray[tuple[int], np.dtype[np.int32]] | None:
    """The order of the input's elements that the matrices share (act-order); None if it is that of the columns."""
    orders = [matrix.order if isinstance(matrix, GroupedMatrix) else None for matrix in matrices]
    first = orders[0]
    if first is None or not all(order is not None and np.array_equal(order, first) for order in orders):
        return None
    return first


def packed_bytes(weights: Weights, wanted: WeightFormat) -> int:
    """Bytes that `pack` allocates for matrices, without the padding of their last panels."""
    return sum(
        matrix_bytes(fused, wanted, arrangement)
        for la in weights.layers
        for fused, arrangement in (
            ((la.q, la.k, la.v), abi.CONCATENATED),
            ((la.o,), abi.CONCATENATED),
            ((la.gate, la.up), abi.INTERLEAVED),
            ((la.down,), abi.CONCATENATED),
        )
    ) + matrix_bytes((weights.lm_head,), wanted, abi.CONCATENATED)


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


def _kept(matrix: Matrix, wanted: WeightFormat, *, ordered: bool) -> PanelLayout:
    """The layout that keeps a matrix, or that of floats."""
    rounded = PanelLayout("int8") if wanted == "int8" and matrix.shape[1] % BLOCK == 0 else _FLOATS
    if isinstance(matrix, Tensor):
        return PanelLayout(_PACKED[matrix.format]) if matrix.format in _PACKED else rounded
    layout = group_layout(matrix.grouping, matrix.shape[1])
    if layout is None:
        _warn(f"{matrix.format} in groups of {matrix.grouping.group} of {matrix.shape[1]} columns")
    elif matrix.order is not None and not ordered:
        _warn(
            f"{matrix.format} with an order of columns (act-order) that another part of the same linear does not have"
        )
    else:
        return layout
    return _FLOATS


def _key(matrix: Matrix, layout: PanelLayout) -> tuple[object, ...]:
    """What matrices of one part have in common. Those of groups have factors, others have none."""
    return (layout.format,) if layout.floats else (layout, levels_of(matrix), type(matrix))


def _common(matrices: Sequence[Matrix], layouts: Sequence[PanelLayout]) -> PanelLayout:
    """A layout that holds matrices in several formats without loss, else that of floats."""
    formats = {layout.format for layout in layouts}
    if all(isinstance(matrix, Tensor) for matrix in matrices) and formats <= {"int4", "int4_symmetric", "int6"}:
        return PanelLayout("int6" if "int6" in formats else "int4")
    groupings = [matrix.grouping for matrix in matrices if isinstance(matrix, GroupedMatrix)]
    if len(groupings) == len(matrices) and "bf16" not in formats:
        kinds = {grouping.kind for grouping in groupings}
        if kinds <= {"int4", "int8", "code4"}:
            group = math.gcd(*(grouping.group for grouping in groupings))
            kind = "int4" if kinds == {"int4"} else "int8"
            found = _layout_of(kind, group, minimum=any(grouping.minimum for grouping in groupings))
            if found is not None:
                return found
    _warn(" and ".join(dict.fromkeys(matrix.format for matrix in matrices)) + " in one linear")
    return _FLOATS


def levels_of(matrix: Matrix) -> tuple[float, ...]:
    """The 16 levels of a matrix of code4, else none."""
    return matrix.grouping.levels if isinstance(matrix, GroupedMatrix) else ()


@cache
def _warn(what: str) -> None:
    """Log once that weights lose their format."""
    _LOG.warning("the CPU kernels have no packed format for %s: these weights become bfloat16", what)


def of_integers(parts: Iterable[PackedPart]) -> bool:
    """Whether a kernel of any part reads activations in 8 bits."""
    return any(not part.layout.floats and part.layout.format != "fp8" for part in parts)

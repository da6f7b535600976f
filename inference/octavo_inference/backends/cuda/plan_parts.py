"""The parts that a plan of weights consists of: matrices of the device, each of one layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from octavo_inference.backends.cuda.kernels.weight_layouts import Layout
from octavo_inference.backends.cuda.packing import Dense, PlaneType, Quantization, layout_of, plane_shapes
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.weights import Matrix, Tensor

_BYTES: dict[PlaneType, int] = {"f32": 4, "bf16": 2, "f16": 2, "u8": 1}


@dataclass(frozen=True, slots=True)
class Part:
    """A matrix of the device: `sources` of one layout stacked by rows, `biases` one for each, or None.

    The sources of a part have the same `order` of columns, or none.
    """

    layout: Layout
    sources: tuple[Matrix, ...]
    biases: tuple[Tensor | None, ...]
    order: NDArray[np.int32] | None = None

    @property
    def rows(self) -> int:
        """Rows of all sources."""
        return sum(source.shape[0] for source in self.sources)

    @property
    def cols(self) -> int:
        """Columns of each source."""
        return self.sources[0].shape[1]

    @property
    def bias_type(self) -> PlaneType | None:
        """The type of the biases on the device, None without any."""
        # Libraries expect a bias in the type of their weights; our kernels add it to float32 sums.
        if all(bias is None for bias in self.biases):
            return None
        return "bf16" if self.layout.form == "bf16" else "f32"

    @property
    def nbytes(self) -> int:
        """Bytes of planes and biases."""
        planes = plane_shapes(self.layout, self.rows, self.cols).values()
        bias = 0 if self.bias_type is None else self.rows * _BYTES[self.bias_type]
        whole = 2 * len(self.layout.levels) + (0 if self.order is None else 4 * self.cols)
        return sum(_BYTES[kind] * math.prod(shape) for kind, shape in planes) + whole + bias


def parts_of(
    tensors: Sequence[Matrix], biases: Sequence[Tensor | None], dense: Dense, quantization: Quantization
) -> tuple[Part, ...]:
    """Merge neighbours of one layout and order of columns into one matrix.

    Others stay separate, although each costs a launch. Q4_K_M files keep q and k in one format and v in another, and a
    layout for both would grow q and k by three quarters.
    """

    def kind(pair: tuple[Matrix, Tensor | None]) -> tuple[Layout, bytes | None]:
        layout = layout_of(pair[0], dense, quantization)
        order = _order(pair[0], layout)
        return layout, None if order is None else order.tobytes()

    pairs = zip(tensors, biases, strict=True)
    parts = []
    for (layout, _), group in groupby(pairs, kind):
        sources, given = zip(*group, strict=True)
        parts.append(Part(layout, sources, given, _order(sources[0], layout)))
    return tuple(parts)


def _order(matrix: Matrix, layout: Layout) -> NDArray[np.int32] | None:
    """The order of a matrix's columns on the device: floats have their own."""
    return matrix.order if isinstance(matrix, GroupedMatrix) and layout.form not in {"f32", "bf16"} else None

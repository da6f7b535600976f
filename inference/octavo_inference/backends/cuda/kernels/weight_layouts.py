"""Layouts of weights on the device, and a matrix in one of them: the argument of all kernels that read weights.

    weight = (level(value) * scale + minimum) * factor

    dense  values [rows, cols] of a float type: the weights themselves
    int8   values uint8 [rows, cols]; level(value) = value - zero
    int4   values uint8 [rows, cols / 2], two values in a byte; level(value) = value - zero
    code4  values as in int4; level(value) = levels[value], of 16 in fp16
    fp4    values as in int4, the bits of float4_e2m1
    fp8    values uint8 [rows, cols], the bits of float8_e4m3fn

`scales` and `minimums` [rows, cols / group] belong to a group of 16, 32, 64 or 128 columns: fp16, or float32 in fp8.
`factors` [rows] float32 belong to a row, and keep the scales within fp16's range. Each of the three is optional.

Two values share a byte as follows. In each run of max(32, group) columns the low nibbles are its first half, and the
high ones its second. So a kernel multiplies both with adjacent columns of x, in their lanes, and 16 adjacent bytes
have one scale for their low nibbles and one for their high ones, which are the same from groups of 32 on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # layouts are needed where torch is not installed
    from torch import Tensor

Form = Literal["f32", "bf16", "int4", "int8", "code4", "fp4", "fp8"]
Stored = Literal["dense", "int4", "int8", "code4", "fp4", "fp8"]
FOUR_BITS = ("int4", "code4", "fp4")

_PAIRED = 32  # the shortest run of columns whose halves share bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """How values become weights. `group` is how many columns share a scale, 0 without scales; `levels` of code4."""

    form: Form
    group: int = 0
    minimum: bool = False
    factors: bool = False
    levels: tuple[float, ...] = ()

    @property
    def zero(self) -> int:
        """The stored integer whose weight is the minimum alone."""
        if self.minimum or self.form not in {"int4", "int8"}:
            return 0
        return 8 if self.form == "int4" else 128

    @property
    def pair(self) -> int:
        """Columns of a run, half of which are low nibbles."""
        return max(_PAIRED, self.group)


@dataclass(frozen=True, slots=True)
class DeviceMatrix:
    """Rows [rows, cols] in one layout, by its planes.

    With an `order` [cols] int32, column j of the planes is multiplied with column order[j] of x: kernels read no
    order, and expect columns of x that are sorted already (`linear.Linear`).
    """

    layout: Layout
    cols: int
    values: Tensor
    scales: Tensor | None = None
    minimums: Tensor | None = None
    factors: Tensor | None = None
    levels: Tensor | None = None
    order: Tensor | None = None

    @property
    def rows(self) -> int:
        """Number of outputs: rows of the matrix."""
        return self.values.shape[0]

    @property
    def form(self) -> Stored:
        """The kernels' name for its layout."""
        form = self.layout.form
        return "dense" if form == "f32" or form == "bf16" else form  # noqa: PLR1714  mypy narrows no set

    @property
    def groups(self) -> int:
        """Number of scales of a row."""
        return self.cols // self.layout.group if self.layout.group else 0

    def within(self, rows: slice) -> DeviceMatrix:
        """Some of the rows; views."""
        scales, minimums, factors = (
            None if plane is None else plane[rows] for plane in (self.scales, self.minimums, self.factors)
        )
        return replace(self, values=self.values[rows], scales=scales, minimums=minimums, factors=factors)

    @property
    def planes(self) -> tuple[Tensor, ...]:
        """The tensors that it consists of."""
        found = (self.values, self.scales, self.minimums, self.factors, self.levels, self.order)
        return tuple(plane for plane in found if plane is not None)

"""Matrices quantized in groups of columns: the one form into which loaders read every published format.

    weight = level(value) * scale + minimum

A value is 4 or 8 bits. `scale` and `minimum` belong to a row and a group of adjacent columns. By `kind`:

    int4, int8   level(value) = value - zero: 8 and 128, or 0 where weights have a minimum
    code4        level(value) = levels[value], one of 16: NF4, FP4 (MXFP4, NVFP4), the grids of IQ formats
    fp8          level(value) is the float8_e4m3fn of these bits

Zero points become minimums: (q - zero) * scale = q * scale + (-zero * scale).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from octavo_inference.common.memory_advice import release

Kind = Literal["int4", "int8", "code4", "fp8"]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

TWICE_E2M1 = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0)
"""Twice the numbers of float4_e2m1: a sign, two bits of exponent, one of mantissa. Whole numbers suit kernels that
multiply integers."""
_LEVELS = 16
# Weights that are dequantized at a time.
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Grouping:
    """How values become weights. `group` is how many columns share a scale, and divides the number of columns."""

    kind: Kind
    group: int
    minimum: bool = False
    levels: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Kinds of integers have no levels, code4 has 16."""
        if (len(self.levels) == _LEVELS) != (self.kind == "code4"):
            raise ValueError(f"{self.kind} with {len(self.levels)} levels")

    @property
    def zero(self) -> int:
        """The value of integer kinds whose weight is the minimum, or 0."""
        if self.minimum or self.kind in {"code4", "fp8"}:
            return 0
        return 8 if self.kind == "int4" else 128


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows in memory: `values` [rows, columns], one in each byte; `scale`, `minimum` [rows, columns / group]."""

    values: Bytes
    scale: Floats
    minimum: Floats | None = None

    def rows(self, start: int, end: int) -> Groups:
        """Some rows; views."""
        minimum = None if self.minimum is None else self.minimum[start:end]
        return Groups(self.values[start:end], self.scale[start:end], minimum)

    def columns(self, start: int, end: int) -> Groups:
        """Some columns, in groups of `cut_group` columns; values are a view."""
        group = self.values.shape[1] // self.scale.shape[1]
        part = np.arange(start, end, cut_group(group, start, end)) // group
        minimum = None if self.minimum is None else self.minimum[:, part]
        return Groups(self.values[:, start:end], self.scale[:, part], minimum)

    def regrouped(self, group: int) -> Groups:
        """The same weights with more, smaller groups of `group` columns."""
        times = self.values.shape[1] // self.scale.shape[1] // group
        if times == 1:
            return self
        minimum = None if self.minimum is None else np.repeat(self.minimum, times, axis=1)
        return Groups(self.values, np.repeat(self.scale, times, axis=1), minimum)

    def dequantize(self, grouping: Grouping) -> Floats:
        """The weights, [rows, columns]."""
        rows, columns = self.values.shape
        levels, result = _levels(grouping), np.empty((rows, columns), np.float32)
        for part in _pieces(rows, columns):
            np.take(levels, self.values[part], out=result[part], mode="clip")  # other modes need a buffer
            groups = result[part].reshape(-1, columns // grouping.group, grouping.group)
            groups *= self.scale[part, :, None]
            if self.minimum is not None:
                groups += self.minimum[part, :, None]
        return result


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """A matrix [rows, columns] that is read from its files in pieces.

    `read(start, end)` gives rows of it; it is called from several threads. `format` is the published format's name, for
    messages. `stored` is the memory of the mapped files that `read` reads, of slices that of the whole. Where `order`
    is given, column j of the values belongs to column order[j] of the matrix: GPTQ sorts columns by group
    ("act-order").
    """

    format: str
    shape: tuple[int, int]
    grouping: Grouping
    read: Callable[[int, int], Groups]
    stored: tuple[NDArray[np.generic], ...] = ()
    order: NDArray[np.int32] | None = None

    def rows(self, start: int, end: int) -> GroupedMatrix:
        """Some rows."""
        read = self.read
        return replace(self, shape=(end - start, self.shape[1]), read=lambda a, b: read(start + a, start + b))

    def columns(self, start: int, end: int) -> GroupedMatrix:
        """Some columns; groups that are cut become smaller ones. Not of a matrix with an `order`."""
        read = self.read
        grouping = replace(self.grouping, group=cut_group(self.grouping.group, start, end))
        return replace(
            self,
            shape=(self.shape[0], end - start),
            grouping=grouping,
            read=lambda a, b: read(a, b).columns(start, end),
        )

    def split(self, *sizes: int) -> list[GroupedMatrix]:
        """Split into matrices of `sizes` rows."""
        ends = np.cumsum(sizes).tolist()
        return [self.rows(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def release(self) -> None:
        """Give the pages of mapped files that were read back to the system."""
        for part in self.stored:
            release(part)

    def dequantize(self) -> Floats:
        """The whole matrix in float32, its columns in their own order. It is read in pieces."""
        result = np.empty(self.shape, np.float32)
        for part in _pieces(*self.shape):
            values = self.read(part.start, part.stop).dequantize(self.grouping)
            if self.order is None:
                result[part] = values
            else:
                result[part, self.order] = values
        return result


def common_group(columns: int, group: int) -> int:
    """The largest number of columns that groups of `group` can be divided into and that divides `columns`."""
    return math.gcd(columns, group)


def cut_group(group: int, start: int, end: int) -> int:
    """The largest number of columns into which the columns `start` to `end` of groups of `group` can be divided."""
    return math.gcd(group, start, end - start)


def stacked(parts: Sequence[Groups]) -> Groups:
    """Rows below rows."""
    minimums = [part.minimum for part in parts if part.minimum is not None]
    return Groups(
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.scale for part in parts]),
        np.concatenate(minimums) if minimums else None,
    )


def _pieces(rows: int, columns: int) -> Iterator[slice]:
    """Rows of at most `_PIECE` weights."""
    step = max(1, _PIECE // max(1, columns))
    return (slice(at, min(at + step, rows)) for at in range(0, rows, step))


def _levels(grouping: Grouping) -> Floats:
    """The level of each of 256 values."""
    if grouping.kind == "fp8":
        return e4m3_levels()
    if grouping.kind == "code4":
        return np.resize(np.array(grouping.levels, np.float32), 256)
    return np.arange(256, dtype=np.float32) - np.float32(grouping.zero)


@cache
def e4m3_levels() -> Floats:
    """The number of each float8_e4m3fn: a sign, four bits of exponent, three of mantissa; 127 and 255 are NaN."""
    bits = np.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    size[[127, 255]] = np.nan
    return np.where(bits & 128, -size, size).astype(np.float32)


@cache
def e8m0_levels() -> Floats:
    """The number of each float8_e8m0: 2 ** (bits - 127); 255 is NaN."""
    powers = np.ldexp(1.0, np.arange(255) - 127).astype(np.float32)
    return np.append(powers, np.float32(np.nan))

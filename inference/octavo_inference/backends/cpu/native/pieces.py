"""Pieces of quantized matrices as the kernels pack them: what a format stores of values, scales and minima."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.packed_formats import PackedPart, PanelLayout
from octavo_inference.common.errors import ModelError
from octavo_inference.models.groups import Bytes, Floats, GroupedMatrix, Grouping, Groups
from octavo_inference.models.weights import Matrix, Tensor, dequantize

_LARGEST_LEVEL = 127
_FLOAT8_NAN = np.uint8(0x7F)  # but for the sign
# The largest scale or minimum of a row is between half of it and itself. Those 2^21 times smaller are fp16 of full
# precision, and sums of products stay far below the range of float32.
_TOP_EXPONENT = 8
_LEAST_EXPONENT = -126  # of float32
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in memory: floats; or groups with weight = factor * (scale * value + minimum), `factor` [rows]."""

    values: Bytes | Floats
    scale: Floats | None = None
    minimum: Floats | None = None
    factor: Floats | None = None


def read_piece(part: PackedPart, arrangement: int, panel: int, panels: range) -> list[Rows]:
    """Rows of some panels, for each of the kernels' sources: one below the other, or two that are interleaved."""
    matrices = part.matrices
    if arrangement == abi.INTERLEAVED:
        start, end = panels.start * panel // 2, panels.stop * panel // 2
        return [_joined([_read(m, start, min(end, m.shape[0]), part)]) for m in matrices]
    start, end = panels.start * panel, panels.stop * panel
    found = []
    for matrix in matrices:
        rows = matrix.shape[0]
        if start < rows and end > 0:
            found.append(_read(matrix, max(start, 0), min(end, rows), part))
        start, end = start - rows, end - rows
    return [_joined(found)]


def _read(matrix: Matrix, start: int, end: int, part: PackedPart) -> Rows:
    if isinstance(matrix, Tensor):
        return Rows(dequantize(matrix.rows(start, end)))
    if part.layout.floats:
        ordered = replace(matrix, order=None) if part.ordered else matrix
        return Rows(ordered.rows(start, end).dequantize())
    return packable_rows(matrix.read(start, end), matrix.grouping, part.layout)


def _joined(rows: list[Rows]) -> Rows:
    def stack(parts: list[NDArray[np.generic] | None]) -> Any:
        known = [part for part in parts if part is not None]
        return np.ascontiguousarray(known[0] if len(known) == 1 else np.concatenate(known)) if known else None

    return Rows(*(stack([getattr(part, field.name) for part in rows]) for field in fields(Rows)))


def checked(matrix: Matrix, name: str) -> Matrix:
    """The matrix; if it is read in pieces, `read` raises `ModelError` for numbers that are not finite."""
    return replace(matrix, read=partial(_finite, matrix, name)) if isinstance(matrix, GroupedMatrix) else matrix


def _finite(matrix: GroupedMatrix, name: str, start: int, end: int) -> Groups:
    groups = matrix.read(start, end)
    numbers = [groups.scale] if groups.minimum is None else [groups.scale, groups.minimum]
    finite = all(bool(np.isfinite(array).all()) for array in numbers)
    nan = matrix.grouping.kind == "fp8" and bool(((groups.values & _FLOAT8_NAN) == _FLOAT8_NAN).any())
    if nan or not finite:
        rows = f"rows {start} to {end - 1}"
        raise ModelError(f"{name} ({matrix.format}) has numbers that are not finite in {rows}: the file is damaged")
    return groups


def packable_rows(groups: Groups, grouping: Grouping, into: PanelLayout) -> Rows:
    """Rows in the terms of a packed format that holds them: its kind of values, its groups, its minima."""
    groups = groups.regrouped(into.group)
    values, scale = groups.values, groups.scale
    minimum = groups.minimum if groups.minimum is not None else np.zeros_like(scale)
    if into.kind == "code4" or (into.kind == "int8" and grouping.kind == "code4"):
        unit, levels = integer_levels(grouping.levels)
        scale = scale * np.float32(unit)
        if into.kind == "int8":
            values = levels.view(np.uint8)[values]
    elif into.kind == "int8" and grouping.kind == "int8":
        # As signed bytes. Rows of small values stay: the larger minimum of shifted ones is rounded more coarsely.
        shifted = np.full((len(values), 1), fill_value=True) if grouping.zero else values.max(1, keepdims=True) > 127
        values = values ^ np.where(shifted, np.uint8(128), np.uint8(0))  # the byte of value - 128
        if grouping.zero == 0:
            minimum = minimum + np.where(shifted, 128 * scale, np.float32(0))
    elif grouping.kind == "int4" and grouping.zero == 8 and (into.kind == "int8" or into.minimum):
        minimum = -8 * scale
        if not into.minimum:
            values, minimum = values - np.uint8(8), np.zeros_like(scale)
    return _with_factors(values, scale, minimum if into.minimum else None)


def _with_factors(values: Bytes, scale: Floats, minimum: Floats | None) -> Rows:
    """Divide the scales of a row by a factor: the scale, if the row has only one, else a power of two."""
    top = np.abs(scale).max(1)
    if minimum is not None:
        np.maximum(top, np.abs(minimum).max(1), out=top)
    exponent = np.maximum(np.frexp(top)[1] - _TOP_EXPONENT, _LEAST_EXPONENT)
    power = np.where(top == 0, np.float32(1), np.ldexp(np.float32(1), exponent))
    first = np.abs(scale[:, 0])
    alone = (scale == scale[:, :1]).all(1) & (first >= 2.0**_LEAST_EXPONENT) & (top <= first * 2.0**_TOP_EXPONENT)
    factor: Floats = np.where(alone, scale[:, 0], power).astype(np.float32)
    divisor = factor[:, None]
    divided: Floats = scale / divisor
    lowest: Floats | None = None if minimum is None else minimum / divisor
    return Rows(values, divided, lowest, factor)


@cache
def integer_levels(levels: tuple[float, ...]) -> tuple[float, NDArray[np.int8]]:
    """Levels as integers from -127 to 127 times a unit: exactly if that is possible, else with the least square error.

    Levels of MXFP4, NVFP4 and of the grids of IQ formats are exact. Those of NF4 have an error of up to 0.4 % of the
    largest. Of bitsandbytes' FP4 only the smallest has one, of 0.3 %.
    """
    exact = np.array(levels, np.float64)
    largest = np.abs(exact).max()
    if largest == 0:
        return 1.0, np.zeros(len(levels), np.int8)
    best, found = np.inf, (1.0, np.zeros(len(levels), np.int8))
    for steps in range(1, _LARGEST_LEVEL + 1):
        unit = largest / steps
        rounded = np.rint(exact / unit)
        error = float(((rounded * unit - exact) ** 2).sum())
        if error < best * (1 - 1e-9) and error < best - 1e-14 * largest**2:
            best, found = error, (float(unit), rounded.astype(np.int8))
    return found


def in_threads(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """`map` in threads that are at most one item each ahead, so that few results are in memory."""
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[Future[R]] = deque()
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

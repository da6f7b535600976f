"""The row table on the device: tokens, block table and sampling parameters of each running sequence.

The host's table (core/input_batch.py) sends its changes; the sampler writes sampled tokens directly on the device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor as Torch

from octavo_inference.backends.cuda.buffers import StepLimits, TablePlace, table_places
from octavo_inference.backends.cuda.kernels.rows import HEADER, LONGEST, write_rows
from octavo_inference.backends.cuda.staging import Staging
from octavo_inference.core.model_input import Int32, RowChange, TableField


@dataclass(frozen=True, slots=True)
class DeviceRowTable:
    """Views in int32, each of rows + 1 rows: those of `core.model_input.RowTable`.

    The last row belongs to no sequence: padding rows of a graph write their sampled tokens there.
    """

    tokens: Torch
    blocks: Torch
    sampling: Torch
    rules: Torch
    mask: Torch

    @classmethod
    def of(cls, buffer: Torch, limits: StepLimits) -> DeviceRowTable:
        """Views of a flat buffer."""
        rows, places = limits.rows + 1, table_places(limits)

        def view(field: TableField) -> Torch:
            place = places[field]
            return buffer[place.start :][: rows * place.width].view(rows, place.width)

        blocks = view("blocks").view(rows, limits.groups, limits.columns)
        return cls(view("tokens"), blocks, view("sampling"), view("rules"), view("mask"))


@dataclass(slots=True)
class _Runs:
    """Runs of integers that one copy sends to the device; their destinations do not overlap."""

    headers: list[tuple[int, int, int]] = field(default_factory=list)
    values: list[Int32] = field(default_factory=list)
    size: int = 0
    written: dict[tuple[TableField, int], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))


class DeviceRows:
    """Mirrors the host's table in the flat `buffer` by way of `staged`, both int32 on the device.

    Changes of any size pass through `staged`, in pieces of at most its size.
    """

    def __init__(self, buffer: Torch, staged: Torch, limits: StepLimits) -> None:
        self.table = DeviceRowTable.of(buffer, limits)
        self._buffer = buffer
        self._staged = staged
        self._staging = Staging(staged.nbytes, staged.device)
        self._places = table_places(limits)

    def apply(self, changes: Iterable[RowChange]) -> None:
        """Apply the changes, in order, before later launches."""
        for runs in _together(changes, self._places, len(self._staged)):
            self._write(runs)

    def _write(self, runs: _Runs) -> None:
        count = len(runs.headers)
        begin, end = count * HEADER, count * HEADER + runs.size
        half = self._staging.fill().view(np.int32)
        headers = half[:begin].reshape(count, HEADER)
        headers[:, :2] = np.array([place for place, _, _ in runs.headers], np.int64).view(np.int32).reshape(count, 2)
        headers[:, 2:] = [(start, length) for _, start, length in runs.headers]
        np.concatenate(runs.values, out=half[begin:end])
        self._staging.copy(self._staged[:end])
        write_rows(self._buffer, self._staged[:begin].view(count, HEADER), self._staged[begin:end])


def _together(changes: Iterable[RowChange], places: dict[TableField, TablePlace], room: int) -> Iterator[_Runs]:
    """Cut changes into runs, and merge runs that may be written concurrently and fit into `room` integers."""
    runs = _Runs()
    for change in changes:
        base, width = places[change.field].start, places[change.field].width
        first, end = change.column, change.column + len(change.values)
        if end > width:
            raise ValueError(f"a change of {change.field} up to column {end} of a row; a row has {width}")
        written = runs.written[change.field, change.row]
        if runs.headers and any(first < other_end and other < end for other, other_end in written):
            yield runs
            runs = _Runs()
        for start in range(0, end - first, LONGEST):
            values = change.values[start : start + LONGEST]
            if (len(runs.headers) + 1) * HEADER + runs.size + len(values) > room:
                yield runs
                runs = _Runs()
            runs.headers.append((base + change.row * width + first + start, runs.size, len(values)))
            runs.values.append(values)
            runs.size += len(values)
        runs.written[change.field, change.row].append((first, end))
    if runs.headers:
        yield runs

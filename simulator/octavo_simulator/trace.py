"""Request traces: types, and a loader for common CSV formats. Pure except for `load`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from itertools import pairwise
from math import isfinite, nan
from pathlib import Path
from typing import Final

# Plausibility limit: a longer request is a corrupt line, and would stall the simulation.
LONGEST: Final = 10_000_000
_LONGEST_SPAN: Final = 31 * 86400

_ARRIVAL: Final = ("timestamp", "arrival", "arrived", "time", "arrival_time", "arrived_at")
_INPUT: Final = ("contexttokens", "input", "input_length", "input_tokens", "prompt_tokens", "num_prefill_tokens")
_OUTPUT: Final = ("generatedtokens", "output", "output_length", "output_tokens", "num_decode_tokens")
_SESSION: Final = ("session", "session_id", "conversation", "conversation_id")
_PREFIX: Final = ("prefix", "prefix_id")
_SHARED: Final = ("prefix_tokens", "prefix_length", "shared_tokens")


class TraceError(ValueError):
    """A trace is invalid; the message names line, field, value and fix."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: arrival in seconds from the trace's start, lengths in tokens.

    `prefix` identifies the first `shared` prompt tokens, which other requests have in common; -1 for none. With `turn`
    the whole sequence, output included, extends that prefix: a conversation.
    """

    at: float
    prompt: int
    output: int
    prefix: int = -1
    shared: int = 0
    turn: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival. `seconds`: duration of the trace. `notes`: corrections made on loading.

    `start`: Unix time of the start, None if the trace has no dates.
    """

    name: str
    requests: tuple[TraceRequest, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    start: float | None = None


def load(path: Path) -> Trace:
    """Read a CSV file. Raises `TraceError` with a one-line message."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}; give the path of a CSV file") from error
    return parse(data, path.stem, str(path))


def parse(data: bytes, name: str, where: str = "trace") -> Trace:
    """A trace from CSV with a header line. `where` prefixes errors. Raises `TraceError` with a one-line message.

    Arrival is a number (seconds) or an ISO 8601 date, the same in all lines; the first arrival becomes 0. Lines out of
    order, as in traces merged from several gateways, are sorted with a note.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TraceError(f"{where}: line {line} is not UTF-8; save the file as UTF-8 text") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise TraceError(f"{where}: line {line} has a NUL character; expected CSV text")
    reader = csv.reader(StringIO(text, newline=""))
    try:
        header = next(reader, [])
        columns = _Columns.of(header, where)
        found = [columns.request(row, reader.line_num, where) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise TraceError(f"{where}: line {reader.line_num}: {error}; expected comma-separated values") from error
    if not found:
        raise TraceError(f"{where}: no requests; expected a header and at least one line")
    return _ordered(name, found, columns, where)


def cut(trace: Trace, start: float, end: float, name: str = "") -> Trace:
    """The part of a trace in [start, end), with times relative to `start`."""
    kept = tuple(
        TraceRequest(r.at - start, r.prompt, r.output, r.prefix, r.shared, r.turn)
        for r in trace.requests
        if start <= r.at < end
    )
    return Trace(name or trace.name, kept, min(end, trace.seconds) - start, trace.notes)


def merge(name: str, traces: Iterable[Trace]) -> Trace:
    """Several traces overlaid. Prefixes of different traces stay different."""
    traces = tuple(traces)
    requests: list[TraceRequest] = []
    offset = 0
    for trace in traces:
        requests += [
            TraceRequest(r.at, r.prompt, r.output, r.prefix + offset if r.prefix >= 0 else -1, r.shared, r.turn)
            for r in trace.requests
        ]
        offset += 1 + max((r.prefix for r in trace.requests), default=-1)
    return Trace(name, tuple(sorted(requests, key=lambda r: r.at)), max(trace.seconds for trace in traces))


@dataclass(frozen=True, slots=True)
class _Columns:
    """Column indices of the fields, -1 for missing ones. `names`: the names in the header."""

    names: Sequence[str]
    at: int
    prompt: int
    output: int
    session: int
    prefix: int
    shared: int

    @classmethod
    def of(cls, header: Sequence[str], where: str) -> _Columns:
        names = [name.strip() for name in header]
        lower = [name.lower().replace(" ", "_").replace("-", "_") for name in names]

        def find(known: Sequence[str]) -> int:
            return next((lower.index(name) for name in known if name in lower), -1)

        at, prompt, output = find(_ARRIVAL), find(_INPUT), find(_OUTPUT)
        for place, what, known in (
            (at, "arrival", _ARRIVAL),
            (prompt, "input length", _INPUT),
            (output, "output length", _OUTPUT),
        ):
            if place < 0:
                found = ",".join(names)[:200] or "an empty line"
                expected = f"expected one named {known[0]} or {known[1]}"
                raise TraceError(f"{where}: line 1 has no column for the {what}; found {found}, {expected}")
        return cls(names, at, prompt, output, find(_SESSION), find(_PREFIX), find(_SHARED))

    def request(self, row: Sequence[str], line: int, where: str) -> tuple[datetime | float, int, int, str, int, bool]:
        """Arrival, prompt, output, key of the shared prefix, shared tokens, and whether it is a conversation."""
        if len(row) != len(self.names):
            raise TraceError(f"{where}: line {line} has {len(row)} values; the header has {len(self.names)}")
        at = _when(row[self.at], self.names[self.at], line, where)
        prompt = _tokens(row[self.prompt], self.names[self.prompt], line, where, least=1)
        output = _tokens(row[self.output], self.names[self.output], line, where, least=0)
        if self.prefix >= 0 and row[self.prefix].strip():
            shared = prompt
            if self.shared >= 0:
                shared = min(prompt, _tokens(row[self.shared], self.names[self.shared], line, where, least=0))
            return at, prompt, output, f"p{row[self.prefix].strip()}", shared, False
        if self.session >= 0 and row[self.session].strip():
            return at, prompt, output, f"s{row[self.session].strip()}", prompt, True
        return at, prompt, output, "", 0, False


def _ordered(
    name: str, found: list[tuple[datetime | float, int, int, str, int, bool]], columns: _Columns, where: str
) -> Trace:
    dated = isinstance(found[0][0], datetime)
    if any(isinstance(row[0], datetime) != dated for row in found):
        column = columns.names[columns.at]
        raise TraceError(f"{where}: column {column} has both dates and plain numbers; use one of them in all lines")
    times = [row[0].timestamp() if isinstance(row[0], datetime) else row[0] for row in found]
    first = min(times)
    ids: dict[str, int] = {}
    for row in found:
        if row[3]:
            ids.setdefault(row[3], len(ids))
    requests = [
        TraceRequest(at - first, prompt, max(1, output), ids.get(prefix, -1), shared, turn)
        for at, (_, prompt, output, prefix, shared, turn) in zip(times, found, strict=True)
    ]
    if max(times) - first > _LONGEST_SPAN:
        raise TraceError(
            f"{where}: column {columns.names[columns.at]} spans {(max(times) - first) / 86400:.0f} days; "
            "expected at most 31: are the times in seconds?"
        )
    notes = []
    late = sum(after < before for before, after in pairwise(times))
    if late:
        notes.append(f"{late} lines were out of order: sorted by {columns.names[columns.at]}")
        requests.sort(key=lambda r: r.at)
    silent = sum(row[2] == 0 for row in found)
    if silent:
        notes.append(f"{silent} requests without output tokens: counted as one token")
    return Trace(name, tuple(requests), requests[-1].at + 1e-3, tuple(notes), first if dated else None)


def _when(text: str, field: str, line: int, where: str) -> datetime | float:
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        try:
            date = datetime.fromisoformat(text)
        except ValueError:
            raise TraceError(
                f"{where}: line {line}: {field} is {text[:40]!r}; "
                "expected seconds or a date such as 2023-11-16 18:17:03"
            ) from None
        return date if date.tzinfo else date.replace(tzinfo=UTC)
    if not isfinite(number) or abs(number) > 1e12:
        raise TraceError(f"{where}: line {line}: {field} is {text[:40]!r}; expected a finite number of seconds")
    return number


def _tokens(text: str, field: str, line: int, where: str, *, least: int) -> int:
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not isfinite(number) or number != int(number):
        raise TraceError(f"{where}: line {line}: {field} is {text[:40]!r}; expected a whole number of tokens")
    if not least <= number <= LONGEST:
        raise TraceError(f"{where}: line {line}: {field} is {text[:40]}; expected {least} to {LONGEST} tokens")
    return int(number)

"""Profiles an engine's steps: the host's work, its waits, and the device's busy time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from bench.gpu.timing import Timer
from octavo_inference.core.engine import Engine

Span = tuple[float, float]
"""Begin and end, in seconds."""
MANY_ROWS = 200
"""Minimum sequences of a decode for the separate host times."""
Named = Callable[[str], AbstractContextManager[object]]


@dataclass(slots=True)
class Step:
    """One step of a backend: its numbers of sequences and query tokens, and the spans of the host's launch and wait.

    `first` and `last` are events on the device, before and after its work.
    """

    sequences: int
    tokens: int
    launch: Span
    first: Any
    last: Any
    collect: Span = (0.0, 0.0)


@dataclass(slots=True)
class Times:
    """Steps in launch order, and the span of each call of the engine's step.

    `anchors`: the same moment by the host's clock and as an event on the device, at the start and at the end.
    """

    steps: list[Step]
    turns: list[Span]
    anchors: list[tuple[float, Any]]


@contextmanager
def watched(engine: Engine, timer: Timer, named: Named = lambda _: nullcontext()) -> Iterator[Times]:
    """Record the engine's steps inside the block. `named` wraps each call, for a profiler.

    The only overhead on the device is two events per step.
    """
    times = Times([], [], [])
    backend: Any = engine.backend
    launch, turn = backend.launch, engine.step
    now = time.perf_counter

    def anchor() -> None:
        timer.wait()
        times.anchors.append((now(), timer.mark()))

    class Watching:
        """A `Launched`."""

        def __init__(self, launched: Any, step: Step) -> None:
            self._launched, self._step = launched, step

        def __getattr__(self, name: str) -> Any:
            return getattr(self._launched, name)

        def collect(self) -> Any:
            begin = now()
            with named("wait"):
                result = self._launched.collect()
            self._step.collect = (begin, now())
            return result

    def launching(work: Any) -> Watching:
        begin, first = now(), timer.mark()
        with named("launch"):
            launched = launch(work)
        last = timer.mark()
        step = Step(len(work.seq_len), int(work.query_start[-1]), (begin, now()), first, last)
        times.steps.append(step)
        return Watching(launched, step)

    def turning() -> Any:
        begin = now()
        with named("turn"):
            outputs = turn()
        times.turns.append((begin, now()))
        return outputs

    anchor()
    backend.launch, engine.step = launching, turning  # type: ignore[method-assign]
    try:
        yield times
    finally:
        backend.launch, engine.step = launch, turn  # type: ignore[method-assign]
        anchor()


def device_spans(timer: Timer, times: Times) -> tuple[list[Span], list[Span]]:
    """The device's span for each step, upper and lower bound, in seconds since the start of the recording.

    A step's first event completes when the previous step ends, even while the host still prepares the launch. So its
    work began between that time and the end of its launch; a graph's began at the end of its launch.
    """
    timer.wait()
    (host, zero), (host_end, end) = times.anchors
    # The two clocks drift apart by some milliseconds a minute.
    rate = timer.between(zero, end) / (host_end - host)
    most = [(timer.between(zero, step.first), timer.between(zero, step.last)) for step in times.steps]
    launched = [(step.launch[1] - host) * rate for step in times.steps]
    return most, [(min(max(a, at), b), b) for (a, b), at in zip(most, launched, strict=True)]


def idle_share(spans: Sequence[Span]) -> float:
    """Share of the time from the first start to the last end in which nothing runs. Spans are sorted by start."""
    whole = max(end for _, end in spans) - spans[0][0]
    busy, until = 0.0, spans[0][0]
    for begin, end in spans:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return 1 - busy / whole if whole > 0 else 0.0


def host_times(times: Times) -> list[float]:
    """Seconds of host work in each engine step, without waits for the device."""
    waits = sorted(step.collect for step in times.steps)
    found, at = [], 0
    for begin, end in times.turns:
        waited = 0.0
        while at < len(waits) and waits[at][0] < end:
            if waits[at][0] >= begin:
                waited += waits[at][1] - waits[at][0]
            at += 1
        found.append(end - begin - waited)
    return found


def many_host_times(times: Times, rows: int = MANY_ROWS) -> list[float]:
    """`host_times` of the engine steps that launched only decodes of at least `rows` sequences."""
    found = []
    for (begin, end), seconds in zip(times.turns, host_times(times), strict=True):
        steps = [step for step in times.steps if begin <= step.launch[0] < end]
        if steps and all(step.tokens == step.sequences >= rows for step in steps):
            found.append(seconds)
    return found


def summary(times: Times, spans: Sequence[Span], least: Sequence[Span], rows: int) -> dict[str, Any]:
    """Figures of a load: of all steps, and of the decodes of at least `rows` sequences that such a decode follows.

    `idle` is the share of the time between the device's first and last work without a step, by the spans of
    `device_spans`: this lower bound, and `_most`. It excludes gaps between the kernels of one step.
    """
    periods = [later - begin for (begin, _), (later, _) in pairwise(spans)] or [0.0]
    decodes = [step.tokens == step.sequences >= rows for step in times.steps]
    runs = _runs(decodes)
    found = {
        "steps": len(spans),
        "idle": idle_share(spans),
        "idle_most": idle_share(least),
        "decodes": sum(decodes),
        "decode_idle": _idle_of(runs, spans),
        "decode_idle_most": _idle_of(runs, least),
    }
    for name, values in (
        ("step_ms", periods),
        ("decode_ms", [periods[i] for i in range(len(periods)) if decodes[i] and decodes[i + 1]]),
        ("host_ms", host_times(times)),
        ("many_host_ms", many_host_times(times)),
        ("launch_ms", [end - begin for begin, end in (step.launch for step in times.steps)]),
    ):
        found |= {f"{name}_{share}": _percentile(values, share) for share in ("p50", "p90", "p99")}
    return found


def _runs(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """Ranges of at least two set flags in a row: start and end."""
    found, begin = [], None
    for i, flag in enumerate([*flags, False]):
        if flag and begin is None:
            begin = i
        if not flag and begin is not None:
            if i - begin > 1:
                found.append((begin, i))
            begin = None
    return found


def _idle_of(runs: Sequence[tuple[int, int]], spans: Sequence[Span]) -> float | None:
    busy = sum((1 - idle_share(spans[a:b])) * _length(spans[a:b]) for a, b in runs)
    whole = sum(_length(spans[a:b]) for a, b in runs)
    return 1 - busy / whole if whole else None


def _length(spans: Sequence[Span]) -> float:
    return max(end for _, end in spans) - spans[0][0]


def _percentile(seconds: Sequence[float], share: str) -> float | None:
    return round(float(np.percentile(seconds, int(share[1:]))) * 1e3, 4) if len(seconds) else None

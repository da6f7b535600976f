"""Time on the device: CUDA events, or this process' clock where kernels are interpreted."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from bench.gpu.roofline import Rates


class Timer(Protocol):
    """Marks in the device's stream order, and the seconds between them."""

    def mark(self) -> Any:
        """A mark that is reached when all earlier launches are done."""
        ...

    def between(self, first: Any, last: Any) -> float:
        """Seconds between two marks; call `wait` first."""
        ...

    def wait(self) -> None:
        """Wait until all launches are done."""
        ...


class Events:
    """`Timer` on the current stream of a GPU."""

    def mark(self) -> torch.cuda.Event:  # noqa: D102
        now = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        now.record()
        return now

    def between(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float:  # noqa: D102
        return float(first.elapsed_time(last)) / 1e3

    def wait(self) -> None:  # noqa: D102
        torch.cuda.synchronize()


class Wall:
    """`Timer` where the host computes everything synchronously."""

    def mark(self) -> float:  # noqa: D102
        return time.perf_counter()

    def between(self, first: float, last: float) -> float:  # noqa: D102
        return last - first

    def wait(self) -> None:  # noqa: D102
        return


class Flush:
    """Flushes the L2 cache by writing more than its size. On the GPU that takes longer than a launch on the host."""

    def __init__(self, device: torch.device) -> None:
        self._buffer = torch.empty((1 << 30) if device.type == "cuda" else 1, dtype=torch.uint8, device=device)

    def __call__(self) -> None:
        """Flush once."""
        self._buffer.zero_()


def measured(
    clock: Timer, launch: Callable[[], object], repeats: int, before: Callable[[], object] = lambda: None
) -> float:
    """Median seconds of launches on the device, after a warm-up launch; `before` precedes each one, not counted."""
    launch()
    marks = []
    for _ in range(repeats):
        before()
        begin = clock.mark()
        launch()
        marks.append((begin, clock.mark()))
    clock.wait()
    return statistics.median(clock.between(begin, end) for begin, end in marks)


def peaks(clock: Timer, device: torch.device) -> Rates:
    """Measured peaks of this card: a copy of 2 GiB (reads and writes count), products of large square matrices."""
    gpu = device.type == "cuda"
    flush, size = Flush(device), 8192 if gpu else 64
    source = torch.empty((2 << 30) if gpu else 1 << 20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    repeats = 20 if gpu else 3
    copy = measured(clock, lambda: target.copy_(source), repeats)
    rate, source, target = 2 * source.nbytes / copy, torch.empty(0), torch.empty(0)
    x, y, out = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(3))
    product = measured(clock, lambda: torch.mm(x, y, out=out), repeats, flush)
    if gpu:
        del flush, x, y, out
        torch.cuda.empty_cache()
    return Rates(rate, 2 * size**3 / product)

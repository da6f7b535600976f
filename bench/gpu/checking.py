"""Run every kernel once against its reference, then again for its time."""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from case import Case, Pair, Place
from timing import event, seconds_between

Row = dict[str, Any]
REPEATS = 20


def check_cases(cases: Iterable[Case], place: Place, say: Callable[[str], None]) -> Iterator[Row]:
    """One row for each case: error, bound, verdict, and on a GPU microseconds and share of what a copy reaches."""
    rate = copy_rate(place.device) if place.device.type == "cuda" else None
    for case in cases:
        row: Row = {"kernel": case.kernel, "variant": case.variant}
        try:
            row |= _check(case, place, rate)
        except Exception as error:  # noqa: BLE001  one kernel's fault is not the others'
            row |= {"verdict": "failed", "why": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        say(f"{case.kernel:14} {case.variant:44} {describe(row)}")
        yield row


def describe(row: Row) -> str:
    """A row's figures, for people."""
    if row["verdict"] in {"failed", "refused"}:
        return f"{row['verdict']}: {row['why'].splitlines()[0]}"
    timing = f", {row['us']:.1f} us" if "us" in row else ""
    share = f", {100 * row['of_copy']:.0f} % of a copy's rate" if "of_copy" in row else ""
    return f"{row['verdict']}: error {row['error']:.1e} (bound {row['bound']:.1e}){timing}{share}"


def _check(case: Case, place: Place, rate: float | None) -> Row:
    if case.float8 and place.device.type == "cuda" and torch.cuda.get_device_capability(place.device) < (8, 9):
        return {"verdict": "refused", "why": "no float8 below compute capability 8.9"}
    # Each case draws the same numbers whichever others run.
    torch.manual_seed(0)
    trial = case.prepare(place)
    trial.launch()
    absolute, relative = error(trial.pairs())
    row: Row = {"max_abs": absolute, "error": relative, "bound": trial.bound}
    row["verdict"] = "ok" if relative <= trial.bound else "wrong"
    if rate is not None:
        seconds = timed(trial.launch)
        row |= {"us": round(seconds * 1e6, 2), "of_copy": round(trial.moved / seconds / rate, 3)}
    return row


def error(pairs: list[Pair]) -> tuple[float, float]:
    """Largest absolute error, and largest relative to the largest expected value; infinite where a NaN is not meant.

    Values that are whole numbers (tokens, slots, masks) count by how large a share of them differs.
    """
    absolute = relative = 0.0
    for found, expected in pairs:
        if found.shape != expected.shape:
            raise ValueError(f"found the shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
        if not found.dtype.is_floating_point:
            share = float((found != expected.to(found.device)).double().mean())
            absolute, relative = max(absolute, share), max(relative, share)
            continue
        got, want = found.double(), expected.to(found.device).double()
        same = (got == want) | (got.isnan() & want.isnan())  # infinities too
        off = torch.where(same, 0.0, (got - want).abs())
        off = torch.where(off.isnan(), torch.inf, off)
        most = float(off.max()) if off.numel() else 0.0
        finite = want[want.isfinite()].abs()
        scale = float(finite.max()) if finite.numel() else 0.0
        absolute, relative = max(absolute, most), max(relative, most / (scale or 1.0))
    return absolute, relative


def timed(launch: Callable[[], object]) -> float:
    """Seconds of one launch on the GPU: the median of some, after the caches of code are warm."""
    launch()
    events = [(event(), event()) for _ in range(REPEATS)]
    for begin, end in events:
        begin.record()
        launch()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(seconds_between(begin, end) for begin, end in events)


def copy_rate(device: torch.device) -> float:
    """Bytes per second that a large copy on the device reads and writes."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / timed(lambda: target.copy_(source))

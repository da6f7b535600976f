"""Comparison of scalers: Pareto fronts, cost at equal attainment, one setting for all, confidence intervals. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import fmean, median


@dataclass(frozen=True, slots=True)
class Point:
    """One setting on one workload: GPU-hours, attainment (share of the requests within objectives), and its name."""

    hours: float
    attainment: float
    name: str = ""


def front(points: Iterable[Point]) -> list[Point]:
    """The Pareto front, by rising cost and attainment."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.hours, -p.attainment)):
        if not best or point.attainment > best[-1].attainment:
            best.append(point)
    return best


def hours_at(points: Iterable[Point], attainment: float) -> float | None:
    """GPU-hours for an attainment, interpolated between neighbours on the front; None if no setting reaches it.

    No extrapolation below the cheapest setting: its cost is the minimum for any attainment.
    """
    line = front(points)
    if not line or line[-1].attainment < attainment:
        return None
    if line[0].attainment >= attainment:
        return line[0].hours
    for low, high in pairwise(line):
        if low.attainment < attainment <= high.attainment:
            share = (attainment - low.attainment) / (high.attainment - low.attainment)
            return low.hours + share * (high.hours - low.hours)
    return None


def one_for_all(known: Mapping[str, Mapping[str, Point]], goal: float) -> str:
    """The best single setting for all workloads, from `known[setting][workload]`.

    It reaches `goal` on the most workloads; of several the cheapest, relative to each workload's median cost.
    """
    hours: dict[str, list[float]] = defaultdict(list)
    for points in known.values():
        for workload, point in points.items():
            hours[workload].append(point.hours)
    usual = {workload: median(values) or 1.0 for workload, values in hours.items()}

    def rank(setting: str) -> tuple[int, float]:
        points = known[setting]
        missed = sum(point.attainment < goal for point in points.values())
        return missed, fmean(point.hours / usual[workload] for workload, point in points.items())

    return min(sorted(known), key=rank)


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % confidence interval."""

    value: float
    low: float
    high: float


Windows = Sequence[tuple[int, int, float]]


def paired(ours: Sequence[Windows], theirs: Sequence[Windows], rounds: int = 2000) -> tuple[Interval, Interval]:
    """Ratio of the costs of two scalers, and the difference of their attainments, with bootstrap intervals.

    Both ran the same seeds and windows (requests, good requests, pod-seconds). The bootstrap resamples windows, paired
    over both scalers, so that the difficulty of a window cancels out. All seeds of a window are drawn together: a
    recorded trace is the same for each seed, so its runs are not independent samples.
    """
    own, other = (_by_window(scaler) for scaler in (ours, theirs))
    random = Random(0)
    costs, differences = [], []
    for _ in range(rounds):
        drawn = random.choices(range(len(own)), k=len(own))
        cost, difference = _compare([own[i] for i in drawn], [other[i] for i in drawn])
        costs.append(cost)
        differences.append(difference)
    cost, difference = _compare(own, other)
    return _interval(cost, costs), _interval(difference, differences)


def _by_window(seeds: Sequence[Windows]) -> Windows:
    """Each window's figures, summed over all seeds."""
    return [
        (sum(one[0] for one in same), sum(one[1] for one in same), sum(one[2] for one in same))
        for same in zip(*seeds, strict=True)
    ]


def _compare(own: Windows, other: Windows) -> tuple[float, float]:
    ours, theirs = ([sum(window[i] for window in windows) for i in range(3)] for windows in (own, other))
    return ours[2] / (theirs[2] or 1.0), ours[1] / (ours[0] or 1) - theirs[1] / (theirs[0] or 1)


def _interval(value: float, drawn: Sequence[float]) -> Interval:
    ordered = sorted(drawn)
    return Interval(value, ordered[int(0.025 * len(ordered))], ordered[int(0.975 * len(ordered))])

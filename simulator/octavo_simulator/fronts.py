"""Comparing scalers: fronts of cost and attainment, cost at equal attainment, one setting for all, intervals. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import fmean, median


@dataclass(frozen=True, slots=True)
class Point:
    """One setting on one workload: GPU-hours, share of the requests served as promised, and which setting."""

    hours: float
    attainment: float
    name: str = ""


def front(points: Iterable[Point]) -> list[Point]:
    """The points that no other beats in both, by rising cost and attainment."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.hours, -p.attainment)):
        if not best or point.attainment > best[-1].attainment:
            best.append(point)
    return best


def hours_at(points: Iterable[Point], attainment: float) -> float | None:
    """GPU-hours for an attainment, between the two neighbours on the front; None when no setting gets there.

    Nothing is assumed below the cheapest setting: it is what an attainment costs at least.
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
    """The setting to use everywhere, by `known[setting][workload]`.

    The one that reaches `goal` on most workloads; of these the cheapest, each workload measured by its median cost.
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
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


Windows = Sequence[tuple[int, int, float]]


def paired(ours: Sequence[Windows], theirs: Sequence[Windows], rounds: int = 2000) -> tuple[Interval, Interval]:
    """Cost of one scaler divided by the other's, and the difference of their attainments.

    Both saw the same seeds and windows (requests, good ones, pod seconds): whole windows are drawn again, of both at
    once, so that what makes a window hard for both cancels out; and of all seeds at once, since a recorded trace is the
    same with each of them, and the same run ten times says no more than once.
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
    """Each window's figures, of all seeds together."""
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

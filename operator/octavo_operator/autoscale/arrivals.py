"""Arrival rates in requests per second: mean, lower confidence bound and linear trend. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, copysign, exp, floor, sqrt

BUCKET_SECONDS = 10.0
BUCKETS = 60
# The mean covers at least a minute, and so much more that its standard deviation is at most NOISE replicas.
LEAST_BUCKETS = 6
NOISE = 0.15
# The fast rate is an exponential mean over about this many seconds.
FAST_SECONDS = 6.0
# Standard deviations subtracted from a rate, or from a slope, to get a lower confidence bound.
_SURE_MINUTE = 2.0
_SURE_FAST = 3.0
_TREND_BUCKETS = 30
_SURE_TREND = 1.0
_SURE_FALL = 1.5
# A line fits if the variance around it is at most this many times that of random arrivals.
_LINE = 2.0
_DISPERSION_BUCKETS = 6
_DISPERSION_MOST = 50.0
# The number of largest differences, per ten minutes, that the dispersion ignores.
_STEPS = 2


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests in buckets of 10 s, newest last; the newest bucket begins at Unix time `index * 10`.

    `begun`: when counting began. `fast`: the rate of about the last 6 s.
    """

    buckets: tuple[float, ...] = ()
    index: int = 0
    begun: float = 0.0
    fast: float = 0.0


def count(arrivals: Arrivals, rate: float, elapsed: float, now: float) -> Arrivals:
    """Add arrivals at `rate` per second for the last `elapsed` seconds."""
    if elapsed <= 0:
        return arrivals
    kept = exp(-2 * elapsed / FAST_SECONDS) if arrivals.buckets else 0.0
    fast = kept * arrivals.fast + (1 - kept) * rate
    index, begin = floor(now / BUCKET_SECONDS), now - elapsed
    buckets, begun = list(arrivals.buckets), arrivals.begun
    if not buckets:
        buckets, begun = [0.0], begin
        first = index
    else:
        first = arrivals.index
    buckets += [0.0] * min(index - first, BUCKETS)
    for back in range(min(len(buckets), index - floor(begin / BUCKET_SECONDS) + 1)):
        start = (index - back) * BUCKET_SECONDS
        buckets[-1 - back] += rate * max(0.0, min(now, start + BUCKET_SECONDS) - max(begin, start))
    return Arrivals(tuple(buckets[-BUCKETS:]), index, begun, fast)


def mean_rate(arrivals: Arrivals, now: float, buckets: int) -> float:
    """Requests per second over the newest `buckets` full buckets and the current one."""
    newest = arrivals.buckets[-buckets - 1 :]
    seconds = min(now - arrivals.begun, now - (arrivals.index - len(newest) + 1) * BUCKET_SECONDS)
    return sum(newest) / seconds if newest and seconds > 0 else 0.0


def dispersion(arrivals: Arrivals) -> float:
    """Index of dispersion of the counts in 10 s: variance over mean, between 1 (a Poisson process) and 50.

    Computed from differences of neighbours without the largest: a slow rise, or a single step, is not bursty.
    """
    full = arrivals.buckets[1:-1]
    total = sum(full)
    if len(full) < _DISPERSION_BUCKETS or total <= 0:
        return 1.0
    squares = sorted((b - a) ** 2 for a, b in pairwise(full))[: -_STEPS * len(full) // BUCKETS or None]
    return min(max(sum(squares) / (2 * len(squares)) * len(full) / total, 1.0), _DISPERSION_MOST)


def forecast(arrivals: Arrivals, spread: float, capacity: float, ahead: float, now: float) -> float:
    """Forecast requests per second in `ahead` seconds, for replicas with `capacity` requests per second each.

    `spread`: the dispersion of the arrivals.
    """
    minute = mean_rate(arrivals, now, LEAST_BUCKETS)
    # The variance of a mean over w seconds is rate * spread / w: solved for the w that gives NOISE replicas.
    enough = minute * spread / (NOISE * capacity) ** 2 if capacity > 0 else 0.0
    buckets = min(max(ceil(enough / BUCKET_SECONDS), LEAST_BUCKETS), BUCKETS)
    mean = max(0.0, mean_rate(arrivals, now, buckets) - _fallen(arrivals, spread, buckets))
    return max(
        mean, sure(minute, spread, LEAST_BUCKETS * BUCKET_SECONDS, _SURE_MINUTE), _trend(arrivals, spread, ahead)
    )


def sure(rate: float, spread: float, seconds: float, deviations: float = _SURE_FAST) -> float:
    """Lower confidence bound of a rate counted over `seconds`: the rate minus `deviations` standard deviations."""
    return max(0.0, rate - deviations * sqrt(rate * spread / seconds))


def _trend(arrivals: Arrivals, spread: float, ahead: float) -> float:
    """Linear extrapolation of the last five minutes, at most half their length ahead; 0 without a significant rise."""
    full = arrivals.buckets[-_TREND_BUCKETS - 1 : -1]
    slope = _slope(full, spread, _SURE_TREND)
    if slope <= 0:
        return 0.0
    steps = len(full) / 2 + min(ahead / BUCKET_SECONDS, len(full) / 2)
    return (sum(full) / len(full) + slope * steps) / BUCKET_SECONDS


def _fallen(arrivals: Arrivals, spread: float, buckets: int) -> float:
    """The decrease of a significantly falling load since the middle of the newest `buckets`, in requests per second.

    From a linear fit over these buckets, or over five minutes if that is longer.
    """
    full = arrivals.buckets[-max(buckets, _TREND_BUCKETS) - 1 : -1]
    return max(0.0, -_slope(full, spread, _SURE_FALL)) * buckets / 2 / BUCKET_SECONDS


def _slope(full: Sequence[float], spread: float, deviations: float) -> float:
    """Slope of a linear fit in requests per bucket, reduced by `deviations` standard deviations; 0 if not significant.

    0 also where a line does not fit the counts: a step has a slope, too, but does not continue.
    """
    size, total = len(full), sum(full)
    if size < _TREND_BUCKETS or total <= 0:
        return 0.0
    mean = total / size
    varied = size * (size * size - 1) / 12
    slope = (sum(i * value for i, value in enumerate(full)) - total * (size - 1) / 2) / varied
    off = sum(value * value for value in full) - total * mean - slope * slope * varied
    if off > _LINE * mean * spread * size:
        return 0.0
    return copysign(max(0.0, abs(slope) - deviations * sqrt(mean * spread / varied)), slope)

"""Requests per second: the mean, what is sure to be more than chance, and what the trend makes of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, copysign, exp, floor, sqrt

BUCKET_SECONDS = 10.0
BUCKETS = 60
# The mean covers a minute at least, and as much more as keeps chance from moving it by this many replicas.
LEAST_BUCKETS = 6
NOISE = 0.15
# The rate of the last moments is an exponential mean over about this long.
FAST_SECONDS = 6.0
# A rise that the mean has not followed counts as far as chance would hardly make it: standard deviations.
_SURE_MINUTE = 2.0
_SURE_FAST = 3.0
_TREND_BUCKETS = 30
_SURE_TREND = 1.0
_SURE_FALL = 1.5
# Variance around a line, of that of chance.
_LINE = 2.0
_DISPERSION_BUCKETS = 6
_DISPERSION_MOST = 50.0
# Largest differences that are left out, of those of ten minutes.
_STEPS = 2


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests by buckets of 10 s, newest last: the newest is the one that Unix time `index * 10` begins.

    `begun` is when counting began, `fast` the rate of about the last 6 s.
    """

    buckets: tuple[float, ...] = ()
    index: int = 0
    begun: float = 0.0
    fast: float = 0.0


def count(arrivals: Arrivals, rate: float, elapsed: float, now: float) -> Arrivals:
    """Requests came at `rate` for the last `elapsed` seconds."""
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
    """Requests per second over the newest `buckets` full ones and the one that fills."""
    newest = arrivals.buckets[-buckets - 1 :]
    seconds = min(now - arrivals.begun, now - (arrivals.index - len(newest) + 1) * BUCKET_SECONDS)
    return sum(newest) / seconds if newest and seconds > 0 else 0.0


def dispersion(arrivals: Arrivals) -> float:
    """Variance of the counts of 10 s over their mean, between 1 (chance) and 50.

    From differences of neighbours, without the largest: a load that slowly rises, or rose once, is not bursty.
    """
    full = arrivals.buckets[1:-1]
    total = sum(full)
    if len(full) < _DISPERSION_BUCKETS or total <= 0:
        return 1.0
    squares = sorted((b - a) ** 2 for a, b in pairwise(full))[: -_STEPS * len(full) // BUCKETS or None]
    return min(max(sum(squares) / (2 * len(squares)) * len(full) / total, 1.0), _DISPERSION_MOST)


def forecast(arrivals: Arrivals, spread: float, capacity: float, ahead: float, now: float) -> float:
    """Requests per second to reckon with in `ahead` seconds, for replicas that do `capacity` per second each.

    `spread` is the dispersion of the arrivals.
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
    """What is left of a rate counted over `seconds` when chance has made that many deviations of it."""
    return max(0.0, rate - deviations * sqrt(rate * spread / seconds))


def _trend(arrivals: Arrivals, spread: float, ahead: float) -> float:
    """The rate of a straight line through five minutes, as far ahead as half of them; 0 if it does not surely rise."""
    full = arrivals.buckets[-_TREND_BUCKETS - 1 : -1]
    slope = _slope(full, spread, _SURE_TREND)
    if slope <= 0:
        return 0.0
    steps = len(full) / 2 + min(ahead / BUCKET_SECONDS, len(full) / 2)
    return (sum(full) / len(full) + slope * steps) / BUCKET_SECONDS


def _fallen(arrivals: Arrivals, spread: float, buckets: int) -> float:
    """How far a load that surely falls has fallen since the middle of the newest `buckets`: requests per second.

    By a straight line through these, or through five minutes if that is more.
    """
    full = arrivals.buckets[-max(buckets, _TREND_BUCKETS) - 1 : -1]
    return max(0.0, -_slope(full, spread, _SURE_FALL)) * buckets / 2 / BUCKET_SECONDS


def _slope(full: Sequence[float], spread: float, deviations: float) -> float:
    """Requests per bucket that each bucket has more than the one before, less that many deviations of chance; or 0.

    Only where a line is what the counts lie around: a step is steep too, and is over.
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

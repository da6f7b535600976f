"""Measured times of steps, by the sequences that decode and the guessed tokens that are verified."""

from __future__ import annotations

import math
from bisect import bisect_right

_KEEP = 0.8
"""Weight of the earlier mean when a step is added."""
_FIRST = 3
"""Steps whose shortest time is the first mean: the very first of a size may compile or allocate something."""
_FRESH = 64
"""Steps for which the time without guesses counts as known."""
_STALE = 512
"""Steps after which a time with guesses is forgotten, so that they are tried again."""


class _Mean:
    """The time of one size."""

    def __init__(self, seconds: float, at: int) -> None:
        self.seconds = seconds
        self.count = 1
        self.at = at

    def add(self, seconds: float, at: int) -> None:
        """Note one more step."""
        self.count += 1
        self.at = at
        if self.count <= _FIRST:
            self.seconds = min(self.seconds, seconds)
        else:
            # One slow step of a busy machine must not count for long.
            self.seconds = _KEEP * self.seconds + (1 - _KEEP) * min(seconds, 2 * self.seconds)


class StepTimes:
    """The time of a step without prompts. Rows are counted exactly up to 16, then in ranges; so are guessed tokens."""

    def __init__(self) -> None:
        self._means: dict[int, dict[int, _Mean]] = {}
        self._steps = 0

    def add(self, rows: int, drafted: int, seconds: float, steps: int = 1) -> None:
        """Note a step, or the mean of several."""
        self._steps += steps
        means = self._means.setdefault(_bucket(rows), {})
        if drafted:
            drafted = _middle(_bucket(drafted))
        known = means.get(drafted)
        if known is None or self._steps - known.at > _STALE:
            means[drafted] = _Mean(seconds, self._steps)
        else:
            known.add(seconds, self._steps)

    def alone(self, rows: int) -> float | None:
        """The time without guesses; None if it was not measured lately."""
        known = self._means.get(_bucket(rows), {}).get(0)
        return None if known is None or self._steps - known.at > _FRESH else known.seconds

    def curve(self, rows: int) -> TimeCurve:
        """The times over the number of guessed tokens."""
        means = self._means.get(_bucket(rows), {})
        known = sorted((count, mean.seconds) for count, mean in means.items() if self._steps - mean.at <= _STALE)
        return TimeCurve([count for count, _ in known], [seconds for _, seconds in known])


class TimeCurve:
    """Times between those that are known. More guesses than were ever verified are expected to cost nothing more.

    That is how a number of them gets its first measurement.
    """

    def __init__(self, counts: list[int], seconds: list[float]) -> None:
        self._counts = counts
        self._seconds = seconds

    def seconds(self, drafted: int) -> float:
        """The expected time."""
        above = bisect_right(self._counts, drafted)
        if above == len(self._counts):
            return self._seconds[-1]
        low, high = self._counts[above - 1 : above + 1]
        fast, slow = self._seconds[above - 1 : above + 1]
        return fast + (slow - fast) * (drafted - low) / (high - low)


def _bucket(count: int) -> int:
    """Up to 16 the number itself, then four buckets for each doubling."""
    return count if count <= 16 else 16 + math.floor(4 * math.log2(count / 16))


def _middle(bucket: int) -> int:
    """A number of the bucket."""
    return bucket if bucket <= 16 else round(16 * 2 ** ((bucket - 15.5) / 4))

"""Measured times of steps by their number of query tokens."""

from __future__ import annotations

import math
from bisect import bisect_right

_KEEP = 0.8
"""Weight of the earlier mean when a step is added."""
_STALE = 4096
"""Steps after which a time that was not measured again is forgotten, so that it is tried again."""


class StepTimes:
    """The time of a step with n query tokens, without prompts. Up to 16 tokens each number has its own, then ranges."""

    def __init__(self) -> None:
        # By bucket: its tokens, seconds, and the step in which they were last measured.
        self._measured: dict[int, tuple[float, float, int]] = {}
        self._steps = 0
        # The same in the order of tokens, made when it is asked for.
        self._tokens: list[float] = []
        self._seconds: list[float] = []

    def add(self, tokens: int, seconds: float, steps: int = 1) -> None:
        """Note a step, or the mean of several."""
        self._steps += steps
        self._tokens = []
        bucket = _bucket(tokens)
        before = self._measured.get(bucket)
        if before is None or self._steps - before[2] > _STALE:
            self._measured[bucket] = (float(tokens), seconds, self._steps)
            return
        count, mean, _ = before
        # One slow step of a busy machine must not count for long.
        seconds = min(seconds, 2 * mean)
        kept = _KEEP * count + (1 - _KEEP) * tokens, _KEEP * mean + (1 - _KEEP) * seconds
        self._measured[bucket] = (*kept, self._steps)

    def seconds(self, tokens: int) -> float | None:
        """The expected time; None before anything is known. More tokens than ever are expected to cost nothing more.

        That is how a number of tokens gets its first measurement.
        """
        if not self._tokens:
            known = sorted(each[:2] for each in self._measured.values() if self._steps - each[2] <= _STALE)
            self._tokens, self._seconds = [each[0] for each in known], [each[1] for each in known]
        if not self._tokens:
            return None
        above = bisect_right(self._tokens, tokens)
        if above in {0, len(self._tokens)}:
            return self._seconds[max(0, above - 1)]
        low, high = self._tokens[above - 1 : above + 1]
        fast, slow = self._seconds[above - 1 : above + 1]
        return fast + (slow - fast) * (tokens - low) / (high - low)


def _bucket(tokens: int) -> int:
    """Up to 16 the number itself, then four buckets for each doubling."""
    return tokens if tokens <= 16 else 16 + math.floor(4 * math.log2(tokens / 16))

"""Measures the recent rate of requests sent to pods, for Retry-After. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_SAMPLES = 64
_WINDOW_SECONDS = 60.0


@dataclass(slots=True)
class DispatchRate:
    """The send times of the last requests."""

    _times: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    def sent(self, now: float) -> None:
        """Count a request sent at `now`."""
        self._times.append(now)

    def time_for(self, requests: int, now: float) -> float:
        """Seconds to send so many more requests at the current rate; 0 with too few samples for a rate."""
        recent = [sent for sent in self._times if now - sent <= _WINDOW_SECONDS]
        if len(recent) < 2:
            return 0.0
        return requests * (now - recent[0]) / len(recent)

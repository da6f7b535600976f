"""How fast requests have been sent to pods lately, for Retry-After. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_SAMPLES = 64
_WINDOW_SECONDS = 60.0


@dataclass(slots=True)
class DispatchRate:
    """The times of the last requests that were sent."""

    _times: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    def sent(self, now: float) -> None:
        """Count one."""
        self._times.append(now)

    def time_for(self, requests: int, now: float) -> float:
        """Seconds until so many more will have been sent at this pace; 0 when there is no pace to speak of."""
        recent = [sent for sent in self._times if now - sent <= _WINDOW_SECONDS]
        if len(recent) < 2:
            return 0.0
        return requests * (now - recent[0]) / len(recent)

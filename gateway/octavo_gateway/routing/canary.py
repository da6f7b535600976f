"""A canary's two tracks: which one a request goes to, and what came of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from octavo_protocol.load import TTFT_BOUNDS, CanaryTraffic, TrackTraffic

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class CanaryStats:
    """What one track answered since the canary's step began."""

    requests: int = 0
    errors: int = 0
    ttft: list[int] = field(default_factory=list)

    def answered(self, *, well: bool) -> None:
        """Count an answer: its end, or that there was none."""
        self.requests += 1
        self.errors += not well

    def first_token(self, seconds: float) -> None:
        """Count a stream by how long its first token took."""
        if not self.ttft:
            self.ttft = [0] * (len(TTFT_BOUNDS) + 1)
        self.ttft[bisect_left(TTFT_BOUNDS, seconds)] += 1

    def traffic(self) -> TrackTraffic:
        """For the report."""
        return TrackTraffic(requests=self.requests, errors=self.errors, ttft=list(self.ttft))


@dataclass(slots=True, eq=False)
class Tracks:
    """Both tallies of one step. A request counts for the step it was sent in, whenever it ends."""

    step: str
    stable: CanaryStats = field(default_factory=CanaryStats)
    canary: CanaryStats = field(default_factory=CanaryStats)

    def traffic(self) -> CanaryTraffic:
        """For the report."""
        return CanaryTraffic(step=self.step, stable=self.stable.traffic(), canary=self.canary.traffic())


def split(stable: Sequence[T], canary: Sequence[T], percent: int, random: Callable[[], float]) -> Sequence[T]:
    """The track of one request: by chance, so that nothing about a request decides who answers it.

    A track without a pod that takes requests leaves them to the other.
    """
    if not stable or not canary:
        return stable or canary
    return canary if random() * 100 < percent else stable

"""Counts the answers of both tracks of a canary since its step began, for the operator's analysis."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from octavo_protocol.load import TTFT_BOUNDS, CanaryTraffic, TrackTraffic


@dataclass(slots=True, eq=False)
class TrackStats:
    """Answers of one track. `ttft`: histogram of streams by time to first token, with the bounds `TTFT_BOUNDS`."""

    requests: int = 0
    errors: int = 0
    ttft: list[int] = field(default_factory=list)

    def answered(self, *, ok: bool) -> None:
        """Count a request whose answer ended or never came."""
        self.requests += 1
        self.errors += not ok

    def first_token(self, seconds: float) -> None:
        """Count a stream by its time to first token."""
        if not self.ttft:
            self.ttft = [0] * (len(TTFT_BOUNDS) + 1)
        self.ttft[bisect_left(TTFT_BOUNDS, seconds)] += 1

    def traffic(self) -> TrackTraffic:
        """The counts as a part of the report."""
        return TrackTraffic(requests=self.requests, errors=self.errors, ttft=list(self.ttft))


@dataclass(slots=True, eq=False)
class CanaryStats:
    """Both tracks in one step. A request counts for the step it was sent in, whenever it ends."""

    step: str
    stable: TrackStats = field(default_factory=TrackStats)
    canary: TrackStats = field(default_factory=TrackStats)

    def track(self, *, canary: bool) -> TrackStats:
        """The track of the canary or the stable one."""
        return self.canary if canary else self.stable

    def traffic(self) -> CanaryTraffic:
        """The counts as a part of the report."""
        return CanaryTraffic(step=self.step, stable=self.stable.traffic(), canary=self.canary.traffic())

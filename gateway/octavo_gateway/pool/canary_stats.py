"""What both tracks of a canary answered since its step began, for the operator's analysis."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from octavo_protocol.load import TTFT_BOUNDS, CanaryTraffic, TrackTraffic


@dataclass(slots=True, eq=False)
class TrackStats:
    """What one track answered. `ttft`: streams by the class of the time to their first token."""

    requests: int = 0
    errors: int = 0
    ttft: list[int] = field(default_factory=list)

    def answered(self, *, ok: bool) -> None:
        """Count an answer: its end, or that there was none."""
        self.requests += 1
        self.errors += not ok

    def first_token(self, seconds: float) -> None:
        """Count a stream by how long its first token took."""
        if not self.ttft:
            self.ttft = [0] * (len(TTFT_BOUNDS) + 1)
        self.ttft[bisect_left(TTFT_BOUNDS, seconds)] += 1

    def traffic(self) -> TrackTraffic:
        """For the report."""
        return TrackTraffic(requests=self.requests, errors=self.errors, ttft=list(self.ttft))


@dataclass(slots=True, eq=False)
class CanaryStats:
    """Both tracks in one step. A request counts for the step it was sent in, whenever it ends."""

    step: str
    stable: TrackStats = field(default_factory=TrackStats)
    canary: TrackStats = field(default_factory=TrackStats)

    def track(self, *, canary: bool) -> TrackStats:
        """That of the canary, or the other one."""
        return self.canary if canary else self.stable

    def traffic(self) -> CanaryTraffic:
        """For the report."""
        return CanaryTraffic(step=self.step, stable=self.stable.traffic(), canary=self.canary.traffic())

"""Canary analysis: compares errors and time to first token of the canary with those of the stable revision. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octavo_operator.api.v1alpha1 import Canary
from octavo_protocol.load import TTFT_BOUNDS

# A step waits for this many requests, however long it was held.
MIN_REQUESTS = 20
# This many errors fail a canary before its step was held; fewer can be chance.
ERRORS_AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class TrackAnswers:
    """Requests of one track. `ttft`: histogram of the time to first token of streams, by TTFT_BOUNDS."""

    requests: int = 0
    errors: int = 0
    ttft: Sequence[int] = ()

    @property
    def error_percent(self) -> float:
        """Requests that ended with an error, in percent."""
        return 100 * self.errors / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class AnalysisSample:
    """Requests of both tracks at one step of a canary."""

    stable: TrackAnswers = TrackAnswers()
    canary: TrackAnswers = TrackAnswers()


@dataclass(frozen=True, slots=True)
class AnalysisResult:
    """`wait` for more requests, `pass` or `fail`. The message has the figures."""

    outcome: Literal["wait", "pass", "fail"]
    message: str


def analyze(evidence: AnalysisSample, limits: Canary, percent: int, *, held: bool) -> AnalysisResult:
    """Compare the tracks. `percent`: the canary's share of requests; `held`: the step's hold time is over."""
    stable, canary = evidence.stable, evidence.canary
    excess = canary.error_percent - stable.error_percent
    enough = canary.requests >= MIN_REQUESTS
    if enough and excess > limits.max_error_percent and (held or canary.errors >= ERRORS_AT_ONCE):
        return AnalysisResult(
            "fail",
            f"canary failed {canary.error_percent:.1f} % of {canary.requests:,} requests, stable "
            f"{stable.error_percent:.1f} % of {stable.requests:,}; allowed {limits.max_error_percent} % more",
        )
    if not held:
        return AnalysisResult("wait", "its step is not over")
    if not enough:
        return AnalysisResult("wait", _waiting("the canary"))
    if percent < 100 and stable.requests < MIN_REQUESTS:
        return AnalysisResult("wait", _waiting("the stable pods, to compare with"))
    slower = _slower(stable, canary)
    if slower is not None and slower > limits.max_ttft_regression_percent:
        return AnalysisResult(
            "fail",
            f"canary's median TTFT is {median(canary.ttft):.3g} s over {sum(canary.ttft):,} "
            f"streams, stable's {median(stable.ttft):.3g} s over {sum(stable.ttft):,}: {slower:.0f} % longer; allowed "
            f"{limits.max_ttft_regression_percent} %",
        )
    return AnalysisResult("pass", f"{canary.errors} of {canary.requests:,} requests failed")


def median(counts: Sequence[int]) -> float:
    """Median of a histogram in seconds, by linear interpolation within a bucket."""
    half, passed = sum(counts) / 2, 0
    for index, count in enumerate(counts):
        if count and passed + count >= half:
            low = TTFT_BOUNDS[index - 1] if index else 0.0
            high = TTFT_BOUNDS[min(index, len(TTFT_BOUNDS) - 1)]
            return low + (high - low) * (half - passed) / count
        passed += count
    return 0.0


def _slower(stable: TrackAnswers, canary: TrackAnswers) -> float | None:
    """Increase of the median from stable to canary, in percent; None without data."""
    if min(sum(stable.ttft), sum(canary.ttft)) < MIN_REQUESTS:
        return None
    return 100 * (median(canary.ttft) / median(stable.ttft) - 1)


def _waiting(whose: str) -> str:
    return f"waiting for {MIN_REQUESTS} responses of {whose}; without traffic, set rollout.strategy to Auto"

"""Whether a canary answers as well as what serves already. Pure: counts in, verdict out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octavo_operator.api.v1alpha1 import Canary
from octavo_protocol.load import TTFT_BOUNDS

# Fewer answers say nothing: a step waits for them, however long it was held.
MIN_REQUESTS = 20
# So many errors end a canary before its step was held: one can be chance.
ERRORS_AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class TrackAnswers:
    """What one of the two tracks answered. `ttft`: streams by time to first token, in the classes of TTFT_BOUNDS."""

    requests: int = 0
    errors: int = 0
    ttft: Sequence[int] = ()

    @property
    def error_percent(self) -> float:
        """Share of the requests that ended with an error."""
        return 100 * self.errors / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class AnalysisSample:
    """What the gateways saw at one step of a canary."""

    stable: TrackAnswers = TrackAnswers()
    canary: TrackAnswers = TrackAnswers()


@dataclass(frozen=True, slots=True)
class AnalysisResult:
    """`wait` for more answers, or it may go on (`pass`), or not (`fail`). The message holds the figures."""

    outcome: Literal["wait", "pass", "fail"]
    message: str


def judge(evidence: AnalysisSample, limits: Canary, percent: int, *, held: bool) -> AnalysisResult:
    """Compare the tracks. `percent`: share of requests the canary gets; `held`: its step has lasted long enough."""
    stable, canary = evidence.stable, evidence.canary
    excess = canary.error_percent - stable.error_percent
    seen = canary.requests >= MIN_REQUESTS
    if seen and excess > limits.max_error_percent and (held or canary.errors >= ERRORS_AT_ONCE):
        return AnalysisResult(
            "fail",
            f"canary answered {canary.error_percent:.1f} % of {canary.requests:,} requests with errors, stable "
            f"{stable.error_percent:.1f} % of {stable.requests:,}; allowed {limits.max_error_percent} % more",
        )
    if not held:
        return AnalysisResult("wait", "its step is not over")
    if not seen:
        return AnalysisResult("wait", _waiting("the canary"))
    if percent < 100 and stable.requests < MIN_REQUESTS:
        return AnalysisResult("wait", _waiting("the stable pods, to compare with"))
    slower = _slower(stable, canary)
    if slower is not None and slower > limits.max_ttft_regression_percent:
        return AnalysisResult(
            "fail",
            f"canary's median time to the first token is {median(canary.ttft):.3g} s over {sum(canary.ttft):,} "
            f"streams, stable's {median(stable.ttft):.3g} s over {sum(stable.ttft):,}: {slower:.0f} % longer; allowed "
            f"{limits.max_ttft_regression_percent} %",
        )
    return AnalysisResult("pass", f"{canary.errors} of {canary.requests:,} answers were errors")


def median(counts: Sequence[int]) -> float:
    """Median in seconds of values counted by class, taken to lie evenly within its class."""
    half, passed = sum(counts) / 2, 0
    for index, count in enumerate(counts):
        if count and passed + count >= half:
            low = TTFT_BOUNDS[index - 1] if index else 0.0
            high = TTFT_BOUNDS[min(index, len(TTFT_BOUNDS) - 1)]
            return low + (high - low) * (half - passed) / count
        passed += count
    return 0.0


def _slower(stable: TrackAnswers, canary: TrackAnswers) -> float | None:
    """How much longer the canary's median is, in percent; None when there is nothing to compare."""
    if min(sum(stable.ttft), sum(canary.ttft)) < MIN_REQUESTS:
        return None
    return 100 * (median(canary.ttft) / median(stable.ttft) - 1)


def _waiting(whose: str) -> str:
    return f"waits for {MIN_REQUESTS} answers of {whose}; without requests, rollout.strategy Auto ends the wait"

"""The choice of a pod: least predicted load, ties by power of two choices. Pure.

Load is a share of the pod: KV tokens against its pool, rows against its limit, whichever is nearer to full. Tokens a
pod was sent after its last report are added to what the report says, so that the choice stays right between reports
(staleness costs more than the formula: background/autoscaling-anchors.md, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_low

# Shares that differ by less are a tie: reports are up to a second old, and several gateways choose at the same time.
TIE = 0.02
# Held requests are released onto a pod up to this share of its pool, so that the first pod does not have to preempt.
RELEASE_SHARE = 0.9
# Requests released onto a pod that has not reported yet: it is not known what it can hold.
RELEASE_BLIND = 4


@dataclass(frozen=True, slots=True)
class Report:
    """What routing needs of a pod's load report: tokens and sequences."""

    pool_tokens: int
    used_tokens: int
    rows: int
    max_rows: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """One pod that accepts requests.

    `in_flight`, `in_flight_tokens`: what this gateway has sent and not seen finish. `since`, `since_tokens`: the part
    of it sent after the report was taken. `report` is None when there is none or it is too old to be used.
    """

    key: str
    in_flight: int
    in_flight_tokens: int
    since: int
    since_tokens: int
    report: Report | None


def route(candidates: Sequence[Candidate], tokens: int, random: Callable[[], float]) -> Candidate | None:
    """The pod to send a request of `tokens` prompt tokens to; None when there is no candidate.

    `random` gives numbers in [0, 1).
    """
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    pool, rows = _typical(candidates)
    loads = [_load(candidate, tokens, pool, rows) for candidate in candidates]
    best = min(loads)
    tied = [index for index, load in enumerate(loads) if load <= best + TIE]
    if len(tied) == 1:
        return candidates[tied[0]]
    first = tied.pop(int(random() * len(tied)))
    second = tied[int(random() * len(tied))]
    return candidates[first if loads[first] <= loads[second] else second]


def has_room(candidate: Candidate, tokens: int) -> bool:
    """Whether a held request of `tokens` prompt tokens may be released onto the pod now.

    An empty pod always has room: a request that fits no pod must still get the pod's answer.
    """
    report = candidate.report
    if report is None:
        return candidate.in_flight < RELEASE_BLIND
    used = max(report.used_tokens + candidate.since_tokens, candidate.in_flight_tokens)
    rows = max(report.rows + candidate.since, candidate.in_flight)
    if not rows:
        return True
    return used + tokens <= RELEASE_SHARE * report.pool_tokens and rows < report.max_rows


def _load(candidate: Candidate, tokens: int, pool: int, rows: int) -> float:
    """Predicted share of the pod in use with the request on it."""
    report = candidate.report
    if report is None:
        return max((candidate.in_flight_tokens + tokens) / pool, (candidate.in_flight + 1) / rows)
    used = max(report.used_tokens + candidate.since_tokens, candidate.in_flight_tokens)
    busy = max(report.rows + candidate.since, candidate.in_flight)
    return max((used + tokens) / max(1, report.pool_tokens), (busy + 1) / max(1, report.max_rows))


def _typical(candidates: Sequence[Candidate]) -> tuple[int, int]:
    """Pool and rows assumed of a pod without a report: those of the others, or one of everything."""
    reports = [candidate.report for candidate in candidates if candidate.report]
    if not reports:
        return 1, 1
    pool = median_low(report.pool_tokens for report in reports)
    return max(1, pool), max(1, median_low(report.max_rows for report in reports))

"""Predicts the cost of a request on each pod, in seconds. Pure.

The request's own part: the prompt tokens queued before it, its uncached tokens, and its decoding at the pace of a
fuller pod. Its effect on others: the delay of every row that decodes meanwhile. Where the pod is full, the wait for a
row or for KV tokens is added. So is the load of an adapter that the pod has not loaded. Requests sent after the report
are added to the reported load, so that the choice stays right between reports. A stale load would be a larger error
than that of the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, median_low
from typing import NamedTuple

from octavo_common.step_cost import StepCost
from octavo_gateway.routing.adapter_cost import IN_PLACE, AdapterPlace, load_seconds
from octavo_gateway.routing.candidate import Candidate, Report, RoutingRequest

# Assumed for a pod without a known step cost: seconds of an empty step, with as much again for full rows and for full
# KV tokens. A full budget of prompt tokens takes NEUTRAL_PREFILL times as long. Only ratios matter: with equal costs
# everywhere the pod with the least load is chosen.
NEUTRAL_STEP = 0.02
NEUTRAL_PREFILL = 10.0
# Load that is never over the bound: to avoid so little is not worth computing a prompt again.
FREE_ROWS = 2
FREE_SHARE = 0.125
# Nor is a backlog up to this share of the request's own prompt.
FREE_BACKLOG = 0.25
# Every other gateway is assumed to have sent as much as this one since the report. Upper bound of the estimated number
# of gateways, this one included.
MAX_GATEWAYS = 8.0
# Smoothing: so few rows are weak evidence of the number of gateways.
FEW_ROWS = 4
# Assumed while no pod has reported: an arbitrary size, the same for all.
_BLIND = Report(65_536, 0, 0, 64)


class PodState(NamedTuple):
    """A candidate in the cost model: its current load and its capacity."""

    rows: float
    used: float
    backlog: float
    pool: int
    max_rows: int
    batch: int
    step_cost: StepCost
    adapter: AdapterPlace = IN_PLACE


def pod_states(candidates: Sequence[Candidate]) -> list[PodState]:
    """The candidates in the cost model. A value unknown for one pod is assumed to be that of the others."""
    gateways = _gateways(candidates)
    unknown, common = _assumed([candidate.report for candidate in candidates if candidate.report], len(candidates))
    pods = []
    for candidate in candidates:
        report = candidate.report
        rows: float = candidate.in_flight
        used: float = candidate.in_flight_tokens
        if report is None:
            backlog: float = candidate.prefilling
            step_cost = common or _neutral(unknown)
            size = unknown.pool_tokens, unknown.max_rows, unknown.batch
            pods.append(PodState(rows, used, backlog, *size, step_cost, candidate.adapter))
            continue
        rows = max(rows, report.rows + candidate.since * gateways)
        used = max(used, report.used_tokens + candidate.since_tokens * gateways)
        backlog, batch = report.uncached, report.batch or 1
        step_cost = report.step_cost or common or _neutral(report)
        if backlog and candidate.age and report.step_cost:
            step = step_cost.base + step_cost.row * rows + step_cost.context * used
            backlog = max(0.0, backlog - candidate.age / (step_cost.prefill + step / batch))
        backlog += candidate.since_uncached * gateways
        size = report.pool_tokens or 1, report.max_rows or 1, batch
        pods.append(PodState(rows, used, backlog, *size, step_cost, candidate.adapter))
    return pods


def _gateways(candidates: Sequence[Candidate]) -> float:
    """Estimated number of gateways that send to these pods: reported rows divided by the rows of this gateway.

    Until the next report the same pod is the emptiest for all gateways. So each adds the load that the others have
    likely sent there.
    """
    rows = own = 0
    for candidate in candidates:
        if candidate.report is not None:
            rows += candidate.report.rows
            own += candidate.in_flight - candidate.since
    return min(MAX_GATEWAYS, max(1.0, (rows + FEW_ROWS) / (max(0, own) + FEW_ROWS)))


def _assumed(reports: Sequence[Report], pods: int) -> tuple[Report, StepCost | None]:
    """Assumed report of a pod without one, and assumed step cost of a pod without one: the medians of the others."""
    known = [report.step_cost for report in reports if report.step_cost]
    unknown, common = _BLIND, None
    if reports and len(reports) < pods:
        pool = median_low(report.pool_tokens for report in reports)
        most = median_low(report.max_rows for report in reports)
        batch = median_low(report.batch for report in reports)
        unknown = Report(max(1, pool), 0, 0, max(1, most), batch=max(1, batch))
    if known and len(known) < pods:
        common = _typical(known)
    return unknown, common


def _typical(known: Sequence[StepCost]) -> StepCost:
    return StepCost(
        median(step_cost.base for step_cost in known),
        median(step_cost.prefill for step_cost in known),
        median(step_cost.row for step_cost in known),
        median(step_cost.context for step_cost in known),
    )


def _neutral(report: Report) -> StepCost:
    return StepCost(
        NEUTRAL_STEP,
        NEUTRAL_PREFILL * NEUTRAL_STEP / (report.batch or 1),
        NEUTRAL_STEP / (report.max_rows or 1),
        NEUTRAL_STEP / (report.pool_tokens or 1),
    )


def calm(pod: PodState, tokens: int) -> PodState:
    """Counts a nearly idle pod as idle: the little load that gateways measure on it depends on the moment."""
    if pod.rows < FREE_ROWS and pod.used <= FREE_SHARE * pod.pool and pod.backlog <= FREE_BACKLOG * tokens:
        return pod._replace(rows=0, used=0, backlog=0)
    return pod


def request_cost(pod: PodState, request: RoutingRequest, matched: int) -> float:
    """Seconds that the request takes, plus the seconds by which it delays the others on the pod."""
    rows, used, backlog, pool, max_rows, batch, step_cost, adapter = pod
    tokens, output = request.tokens, request.output
    step = step_cost.base + step_cost.row * rows + step_cost.context * used
    slower = step_cost.row + step_cost.context * tokens
    new = tokens - matched
    first = (backlog + new) * (step_cost.prefill + step / batch)
    cost = first + output * (step + slower) + rows * (new * step_cost.prefill + output * slower)
    if rows >= max_rows or used + tokens > pool:
        # Rows that finish free capacity: all of it within the time that a row stays.
        over = max((rows + 1) / max_rows, (used + tokens) / pool) - 1
        cost += over * (output + 1) * (step + batch * step_cost.prefill)
    if adapter is not IN_PLACE:
        cost += load_seconds(adapter, step_cost.base, step, rows, output)
    return cost


def idle_cost(step_cost: StepCost, request: RoutingRequest) -> float:
    """Seconds that the request would take on an empty pod that has its whole prompt cached."""
    return request.output * (step_cost.base + step_cost.row + step_cost.context * request.tokens)

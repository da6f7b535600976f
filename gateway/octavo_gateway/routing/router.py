"""The choice of a pod: the least predicted cost in seconds, with bounded load. Pure: chance comes in as an argument.

The cost of a request on a pod is the time that it takes there and that it takes from others: the prompt tokens queued
before it, its own tokens that the pod has not cached, its decoding at the pace of a fuller pod, the delay of every row
that decodes meanwhile, and the wait for room. What was sent after the report is added to what the report says, so that
the choice stays right between reports: staleness costs more than the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from statistics import median, median_low
from typing import NamedTuple

from octavo_common.step_cost import StepCost

PREFIX_AWARE = "PrefixAware"
LEAST_LOAD = "LeastLoad"
ROUND_ROBIN = "RoundRobin"
SESSION = "Session"
STRATEGIES = (PREFIX_AWARE, LEAST_LOAD, ROUND_ROBIN, SESSION)

# Costs that differ by less than this share of what load adds are a tie: reports are up to a second old.
TIE = 0.05
# Of a pod that nothing is known of, a step takes this long, as long again when it is full, and so much longer with a
# full budget of prompt tokens. Only ratios matter: equal figures everywhere make the choice one of least load.
NEUTRAL_STEP = 0.02
NEUTRAL_PREFILL = 10.0
NEUTRAL_BATCH = 2048
# Load that is never over the bound: it takes more to be worth a prompt computed anew.
FREE_ROWS = 2
FREE_SHARE = 0.125
# Nor is a queue of so much of the request's own prompt.
FREE_BACKLOG = 0.25
# Other gateways are taken to have sent as much as this one for every report they share in, up to so many of them.
MAX_GATEWAYS = 8.0
# So few rows say little about how many gateways there are.
FEW_ROWS = 4


@dataclass(frozen=True, slots=True)
class Report:
    """What routing needs of a pod's load report: tokens and sequences.

    `uncached` prompt tokens are still to be computed, `batch` tokens fit a step, `running` of the rows do not wait.
    """

    pool_tokens: int
    used_tokens: int
    rows: int
    max_rows: int
    uncached: int = 0
    batch: int = NEUTRAL_BATCH
    figures: StepCost | None = None
    running: int = 0


# Where no pod has reported: some size, the same for all.
_BLIND = Report(65_536, 0, 0, 64)


class Candidate(NamedTuple):
    """One pod that accepts requests.

    `in_flight`, `in_flight_tokens`: what this gateway has sent and not seen finish; `prefilling` is the part of the
    tokens not cached and not answered yet. `since`, `since_tokens`: what it has sent after the report was taken, less
    what finished; `since_uncached` the part of that not cached and not answered yet. `report` was taken `age` seconds
    ago; None when there is none or it is too old to be used. `matched` prompt tokens of the request to be routed are in
    its prefix cache, as far as is known.
    """

    key: str
    in_flight: int
    in_flight_tokens: int
    since: int
    since_tokens: int
    report: Report | None
    since_uncached: int = 0
    prefilling: int = 0
    matched: int = 0
    age: float = 0.0


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to be routed: its prompt tokens and the tokens it will likely generate.

    `anchor` names the start of its prompt: equal for prompts that begin alike, empty for a short one. `conversation`
    names its first turn as a whole, and `presumed` of its tokens are older than the last answer in it: some gateway has
    sent them somewhere. `session` is what sticks to one pod in Session mode, empty without. `turn` counts the
    deployment's requests, for RoundRobin.
    """

    tokens: int
    output: float = 128.0
    anchor: bytes = b""
    conversation: bytes = b""
    presumed: int = 0
    session: bytes = b""
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """How a deployment wants to be routed. A pod above `max_load` times the mean in-flight tokens is over the bound."""

    strategy: str = PREFIX_AWARE
    max_load: float = 1.25


@dataclass(frozen=True, slots=True)
class Choice:
    """The pod, and why: only, affinity, presumed, load, bound, tie, session or turn.

    `against`: another pod has more of the prompt cached.
    """

    candidate: Candidate
    reason: str
    against: bool = False


def route(candidates: Sequence[Candidate], ask: Ask, policy: Policy, random: Callable[[], float]) -> Choice | None:
    """The pod to send a request to; None when there is no candidate.

    `random` gives numbers in [0, 1). Equal inputs give equal choices, whatever the order of the candidates, except
    where chance decides between equals.
    """
    if len(candidates) < 2:
        return Choice(candidates[0], "only") if candidates else None
    if policy.strategy == ROUND_ROBIN:
        ordered = sorted(candidates, key=lambda candidate: candidate.key)
        return Choice(ordered[ask.turn % len(ordered)], "turn")
    pods = _pods(candidates)
    if policy.strategy == LEAST_LOAD:
        return _least_loaded(candidates, pods, ask, random)
    within = _within(pods, ask.tokens, policy.max_load)
    if policy.strategy == SESSION and ask.session:
        allowed = [candidate for candidate, fits in zip(candidates, within, strict=True) if fits]
        return Choice(_rendezvous(ask.session, allowed), "session")
    return _cheapest(candidates, [_calm(pod, ask.tokens) for pod in pods], ask, within, random)


class _Pod(NamedTuple):
    """A candidate in the terms of the cost: its load now, and what it is able to do."""

    rows: float
    used: float
    backlog: float
    pool: int
    max_rows: int
    batch: int
    figures: StepCost


def _cheapest(
    candidates: Sequence[Candidate],
    pods: Sequence[_Pod],
    ask: Ask,
    within: Sequence[bool],
    random: Callable[[], float],
) -> Choice:
    """Least cost, where a prefix counts on pods within the bound."""
    limit = ask.tokens - 1
    matches = [min(one.matched, limit) if fits else 0 for one, fits in zip(candidates, within, strict=True)]
    most = max(matches)
    home = -1
    if ask.anchor and ask.presumed > 2 * most:
        holders = [one for one, match in zip(candidates, matches, strict=True) if match == most]
        home = candidates.index(_rendezvous(ask.conversation if most else ask.anchor, holders))
        if within[home]:
            matches[home] = min(ask.presumed, limit)
    costs = [_cost(pod, ask, matched) for pod, matched in zip(pods, matches, strict=True)]
    chosen, tied = _least(costs, pods, ask)
    if len(tied) > 1:
        longest = max(matches[index] for index in tied)
        tied = [index for index in tied if matches[index] == longest]
        if len(tied) == 1:
            (chosen,) = tied
        elif ask.anchor:
            equals = [candidates[index] for index in tied]
            chosen = candidates.index(_rendezvous(ask.conversation if most else ask.anchor, equals))
        else:
            chosen = _better_of_two(costs, tied, random)
    against = candidates[chosen].matched < max(one.matched for one in candidates)
    if against and not all(fits or one.matched <= most for one, fits in zip(candidates, within, strict=True)):
        reason = "bound"
    elif matches[chosen] > min(matches):
        reason = "presumed" if chosen == home else "affinity"
    else:
        reason = "tie" if len(tied) > 1 else "load"
    return Choice(candidates[chosen], reason, against)


def _least_loaded(
    candidates: Sequence[Candidate], pods: Sequence[_Pod], ask: Ask, random: Callable[[], float]
) -> Choice:
    """Least cost without prefixes."""
    costs = [_cost(pod, ask, 0) for pod in pods]
    chosen, tied = _least(costs, pods, ask)
    if len(tied) > 1:
        chosen = _better_of_two(costs, tied, random)
    return Choice(candidates[chosen], "tie" if len(tied) > 1 else "load")


def _least(costs: Sequence[float], pods: Sequence[_Pod], ask: Ask) -> tuple[int, list[int]]:
    """The least cost, and all that are a tie with it."""
    best = min(costs)
    chosen = costs.index(best)
    limit = best + TIE * max(0.0, best - _idle(pods[chosen].figures, ask))
    return chosen, [index for index, cost in enumerate(costs) if cost <= limit]


def _better_of_two(costs: Sequence[float], tied: list[int], random: Callable[[], float]) -> int:
    """Power of two choices: the better of two by chance, so that gateways that decide at once do not all agree."""
    tied = list(tied)
    first = tied.pop(int(random() * len(tied)))
    second = tied[int(random() * len(tied))]
    return first if costs[first] <= costs[second] else second


def _calm(pod: _Pod, tokens: int) -> _Pod:
    """A pod with next to nothing to do counts as one with nothing: what gateways see of it depends on the moment."""
    if pod.rows < FREE_ROWS and pod.used <= FREE_SHARE * pod.pool and pod.backlog <= FREE_BACKLOG * tokens:
        return pod._replace(rows=0, used=0, backlog=0)
    return pod


def _cost(pod: _Pod, ask: Ask, matched: int) -> float:
    """Seconds: of the request itself, and of the others on the pod because of it."""
    rows, used, backlog, pool, max_rows, batch, figures = pod
    tokens, output = ask.tokens, ask.output
    step = figures.base + figures.row * rows + figures.context * used
    slower = figures.row + figures.context * tokens
    new = tokens - matched
    first = (backlog + new) * (figures.prefill + step / batch)
    cost = first + output * (step + slower) + rows * (new * figures.prefill + output * slower)
    if rows >= max_rows or used + tokens > pool:
        # Room comes back as rows finish: all of it in the time that a row stays.
        over = max((rows + 1) / max_rows, (used + tokens) / pool) - 1
        cost += over * (output + 1) * (step + batch * figures.prefill)
    return cost


def _idle(figures: StepCost, ask: Ask) -> float:
    """What the request would cost on an empty pod that has all of it cached."""
    return ask.output * (figures.base + figures.row + figures.context * ask.tokens)


def _pods(candidates: Sequence[Candidate]) -> list[_Pod]:
    """Candidates in the terms of the cost. What is not known of one is assumed to be as with the others."""
    gateways = _gateways(candidates)
    unknown, common = _assumed([candidate.report for candidate in candidates if candidate.report], len(candidates))
    pods = []
    for candidate in candidates:
        report = candidate.report
        rows: float = candidate.in_flight
        used: float = candidate.in_flight_tokens
        if report is None:
            backlog: float = candidate.prefilling
            figures = common or _neutral(unknown)
            pods.append(_Pod(rows, used, backlog, unknown.pool_tokens, unknown.max_rows, unknown.batch, figures))
            continue
        rows = max(rows, report.rows + candidate.since * gateways)
        used = max(used, report.used_tokens + candidate.since_tokens * gateways)
        backlog, batch = report.uncached, report.batch or 1
        figures = report.figures or common or _neutral(report)
        if backlog and candidate.age and report.figures:
            step = figures.base + figures.row * rows + figures.context * used
            backlog = max(0.0, backlog - candidate.age / (figures.prefill + step / batch))
        backlog += candidate.since_uncached * gateways
        pods.append(_Pod(rows, used, backlog, report.pool_tokens or 1, report.max_rows or 1, batch, figures))
    return pods


def _gateways(candidates: Sequence[Candidate]) -> float:
    """How many gateways seem to send to these pods: the rows of the reports against those of this gateway.

    All of them see the same pod as the emptiest until the next report; each adds what the others likely sent there.
    """
    rows = own = 0
    for candidate in candidates:
        if candidate.report is not None:
            rows += candidate.report.rows
            own += candidate.in_flight - candidate.since
    return min(MAX_GATEWAYS, max(1.0, (rows + FEW_ROWS) / (max(0, own) + FEW_ROWS)))


def _assumed(reports: Sequence[Report], pods: int) -> tuple[Report, StepCost | None]:
    """What is taken to be true of a pod without a report, and of one without figures: what is usual here."""
    known = [report.figures for report in reports if report.figures]
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
        median(figures.base for figures in known),
        median(figures.prefill for figures in known),
        median(figures.row for figures in known),
        median(figures.context for figures in known),
    )


def _neutral(report: Report) -> StepCost:
    return StepCost(
        NEUTRAL_STEP,
        NEUTRAL_PREFILL * NEUTRAL_STEP / (report.batch or 1),
        NEUTRAL_STEP / (report.max_rows or 1),
        NEUTRAL_STEP / (report.pool_tokens or 1),
    )


def _within(pods: Sequence[_Pod], tokens: int, max_load: float) -> list[bool]:
    """Which pods are within the bound; the least loaded one always is.

    As in consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016) the mean counts the new request
    and the pod's own load does not, so that few requests among many pods are not kept from their prefixes.
    """
    bound = max_load * (sum(pod.used for pod in pods) + tokens) / len(pods)
    return [pod.rows < FREE_ROWS or pod.used <= max(bound, FREE_SHARE * pod.pool) for pod in pods]


def _rendezvous(name: bytes, candidates: Sequence[Candidate]) -> Candidate:
    """The pod that every gateway takes for `name` (highest random weight, Thaler and Ravishankar 1998)."""
    return max(candidates, key=lambda c: (blake2b(name + c.key.encode(), digest_size=8).digest(), c.key))

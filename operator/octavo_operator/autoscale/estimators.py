"""Estimators: arrival rate, request sizes, step times and cold starts. Pure.

Estimates are robust against a single pod: of three or more pods, a value far from the median is clipped or ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, inf
from statistics import median

from octavo_common import least_squares
from octavo_operator.autoscale import step_cost
from octavo_operator.autoscale.arrivals import count, dispersion
from octavo_operator.autoscale.capacity import ReplicaLimits, RequestSizes, capacity
from octavo_operator.autoscale.signals import FEW, Signals, answering
from octavo_operator.autoscale.types import (
    GatewayCounters,
    Learned,
    Observation,
    PodSample,
    PodTotals,
    RequestTotals,
    ScalingSettings,
)
from octavo_protocol.load import LoadReport

# Forgetting of request sizes: weight 1/e after five minutes or after 400 requests, whichever is first. So many requests
# determine the mean within some percent, and under high load a changing mix is followed within a minute.
SIZES_SECONDS = 300.0
SIZES_REQUESTS = 400.0
# Forgetting stops at this many requests.
SIZES_LEAST = 20.0
UPDATE_SECONDS = 10.0
# The minimum requests for a mean size, and the minimum steps for a step time.
LEAST_REQUESTS = 3.0
LEAST_STEPS = 20.0
# The last rate of a gateway that does not respond is used for this many seconds.
SILENT_SECONDS = 60.0
# Plausibility limit: no process handles more requests per second.
RATE_MOST = 1e5
COLD_STARTS = 20
# Time constant of the dispersion's decay: bursty clients return.
SPREAD_SECONDS = 1800.0
# The share of its KV pool that a full replica uses: gateways fill it up to this.
POOL_SHARE = 0.9
# The start time of a pod is only known if it was first observed at most this many seconds after its creation.
_SEEN_SECONDS = 10.0
# Values are clipped to this factor around the median; counts may exceed it by _CHANCE.
_FAR = 2.0
_CHANCE = 3.0
# Time constant of `model_ratio`: a queue must persist for about so long before the model counts as wrong; its minimum.
_RATIO_SECONDS = 60.0
_RATIO_LEAST = 0.25
_FULL = 0.9
# Tolerance in seconds: a step that began before the interval counts in it.
_LONG_STEP = 30.0


def learned(
    settings: ScalingSettings, known: Learned, observation: Observation, signals: Signals, now: float
) -> Learned:
    """The estimates after this observation."""
    elapsed = 0.0 if known.at is None else now - known.at
    gateways = _gateways(known.gateways, observation, now)
    rate = _arrival_rate(known, gateways, observation, now)
    starting, cold_starts = _starts(settings, known, observation.pods, now)
    known = replace(
        known,
        at=now,
        gateways=gateways,
        arrivals=known.arrivals if rate is None else count(known.arrivals, rate, elapsed, now),
        starting=starting,
        cold_starts=cold_starts,
    )
    if known.learned_at is not None and now - known.learned_at < UPDATE_SECONDS:
        return known
    return _update(settings, known, observation.pods, signals, now)


def cold_start(settings: ScalingSettings, known: Learned) -> float:
    """The 90th percentile of replica start times, in seconds."""
    if not known.cold_starts:
        return settings.cold_start
    return sorted(known.cold_starts)[ceil(0.9 * len(known.cold_starts)) - 1]


def sizes(totals: RequestTotals) -> RequestSizes | None:
    """Mean sizes of requests; None after too few requests."""
    if totals.requests < LEAST_REQUESTS or totals.finished < LEAST_REQUESTS:
        return None
    prompt, answer = totals.prompt / totals.requests, totals.generated / totals.finished
    hit = min(1.0, totals.hits / totals.prompt) if totals.prompt > 0 else 0.0
    resident = totals.pinned / totals.running if totals.running >= 1 else prompt + answer / 2
    return RequestSizes(prompt, answer, hit, resident)


def _gateways(before: tuple[GatewayCounters, ...], observation: Observation, now: float) -> tuple[GatewayCounters, ...]:
    """Counters of the current gateways, with the rates from their differences."""
    known = {gateway.name: gateway for gateway in before}
    after = []
    for gateway in observation.gateways:
        last = known.get(gateway.name)
        traffic = answering(gateway, now)
        if traffic is None:
            if last is not None and now - last.at < SILENT_SECONDS:
                after.append(last)
            continue
        at = gateway.sampled_at
        if last is not None and at == last.at:
            after.append(last)
            continue
        rate = last.rate if last is not None else None
        if last is not None and last.start_time == gateway.start_time and traffic.arrivals >= last.arrivals:
            rate = min((traffic.arrivals - last.arrivals) / (at - last.at), RATE_MOST) if at > last.at else rate
        after.append(GatewayCounters(gateway.name, gateway.start_time, traffic.arrivals, at, rate))
    return tuple(after)


def _arrival_rate(
    known: Learned, gateways: Sequence[GatewayCounters], observation: Observation, now: float
) -> float | None:
    """Requests per second now: the gateways' counts; if a gateway does not respond, the pods' counts if higher."""
    rates = [gateway.rate for gateway in gateways if gateway.rate is not None]
    complete = bool(observation.gateways) and all(answering(gateway, now) for gateway in observation.gateways)
    if complete and rates:
        return sum(rates)
    counted = known.pod_rate if known.counted is not None and now - known.counted < SILENT_SECONDS else None
    if not rates and counted is None:
        return None
    return max(sum(rates), counted or 0.0)


def _starts(
    settings: ScalingSettings, known: Learned, pods: Iterable[PodSample], now: float
) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Names of the pods observed while they start, and the start times of those that became ready."""
    before = set(known.starting)
    new = now if known.at is None else known.at - _SEEN_SECONDS
    starting = tuple(p.name for p in pods if p.phase == "pending" and (p.name in before or p.created > new))
    took = (now - pod.created for pod in pods if pod.phase == "ready" and pod.name in before)
    starts = (*known.cold_starts, *(seconds for seconds in took if 0 < seconds <= settings.overdue_seconds))
    return starting, starts[-COLD_STARTS:]


@dataclass(slots=True)
class _Share:
    """The change of one pod's counters since the last update."""

    load: LoadReport
    before: LoadReport
    elapsed: float
    requests: float
    finished: float
    pace: float = 0.0


def _update(
    settings: ScalingSettings, known: Learned, pods: Iterable[PodSample], signals: Signals, now: float
) -> Learned:
    """Update sizes and step times with the changes of the pods' counters since the last update."""
    before = {totals.name: totals for totals in known.pods}
    after: list[PodTotals] = []
    shares: list[_Share] = []
    for pod in pods:
        load = signals.reports.get(pod.name)
        last = before.get(pod.name)
        if load is None:
            after += [last] if last is not None else []
            continue
        after.append(PodTotals(pod.name, pod.sampled_at, load))
        if last is not None and (share := _share(load, last.load, pod.sampled_at - last.at)):
            shares.append(share)
    elapsed = 0.0 if known.learned_at is None else now - known.learned_at
    faded = 1.0 + (known.spread - 1.0) * exp(-elapsed / SPREAD_SECONDS)
    spread = max(dispersion(known.arrivals), faded)
    totals = _totals(known.totals, shares, signals, elapsed)
    fitted = _fitted(known.fit, shares, elapsed)
    known = replace(known, learned_at=now, pods=tuple(after), totals=totals, fit=fitted, spread=spread)
    if shares:
        # At most twice the median plus one replica's capacity: where most pods are idle, one may have the whole load.
        most = _FAR * median(s.requests / s.elapsed for s in shares) + (known.capacity.rate if known.capacity else inf)
        rates = [min(s.requests / s.elapsed, most) if len(shares) >= FEW else s.requests / s.elapsed for s in shares]
        known = replace(known, pod_rate=sum(rates), counted=now)
    found = sizes(totals)
    if found is None or fitted.model is None or fitted.gram[0][0] < LEAST_STEPS or not signals.rows:
        return known
    limits = ReplicaLimits(
        tokens=POOL_SHARE * signals.pod_tokens,
        rows=signals.rows[len(signals.rows) // 2],
        budget=signals.budget,
        tpot=settings.tpot,
    )
    modelled = capacity(fitted.model, found, limits)
    if modelled is None:
        return known
    ratio = _model_ratio(known.model_ratio, fitted, shares, elapsed, held=signals.held > 0)
    corrected = replace(modelled, rate=modelled.rate * ratio, prefill=modelled.prefill * ratio)
    return replace(known, sizes=found, model_ratio=ratio, capacity=corrected)


def _model_ratio(known: float, fitted: step_cost.Fit, shares: Sequence[_Share], elapsed: float, *, held: bool) -> float:
    """Throughput of overloaded replicas relative to the model's prediction; at most 1.

    A queue that persists reveals time outside of steps, and costs that the model does not have.
    """
    full = [s for s in shares if all(load.waiting or (held and _no_room(load)) for load in (s.load, s.before))]
    if 2 * len(full) <= len(shares):
        return 1.0 - (1.0 - known) * exp(-elapsed / step_cost.MEMORY_SECONDS)
    explained = _clipped(
        [step_cost.expected(fitted, step_cost.between(s.load.steps, s.before.steps)[0]) / s.elapsed for s in full]
    )
    share = min(max(sum(explained) / len(explained), _RATIO_LEAST), 1.0)
    kept = exp(-elapsed / _RATIO_SECONDS)
    return kept * known + (1 - kept) * share


def _no_room(load: LoadReport) -> bool:
    """True if gateways hold requests rather than send them to this replica."""
    return load.running >= _FULL * load.max_running or load.blocks_pinned >= _FULL * load.blocks_total


def _share(load: LoadReport, before: LoadReport, elapsed: float) -> _Share | None:
    """The difference of two reports of one process; None if it is implausible."""
    requests = load.requests - before.requests
    finished = requests - (load.running + load.waiting - before.running - before.waiting)
    grown = (
        requests,
        load.prompt_tokens - before.prompt_tokens,
        load.generation_tokens - before.generation_tokens,
        load.prefix_hit_tokens - before.prefix_hit_tokens,
        load.steps.count - before.steps.count,
    )
    possible = load.start_time == before.start_time and elapsed > 0 and min(grown) >= 0
    if not possible or requests > RATE_MOST * elapsed:
        return None
    # No prompt and no output is longer than the KV pool.
    longest = load.blocks_total * load.block_size
    if max(grown[1], grown[2]) > longest * (requests + before.running + before.waiting):
        return None
    return _Share(load, before, elapsed, float(requests), float(max(0, finished)))


def _totals(totals: RequestTotals, shares: Sequence[_Share], signals: Signals, elapsed: float) -> RequestTotals:
    """The sums with exponential forgetting, which pauses while there is no new request."""
    if not signals.running and not any(s.requests or s.finished for s in shares):
        return totals
    weights, ends = _counts([s.requests for s in shares]), _counts([s.finished for s in shares])
    kept = exp(-max(elapsed / SIZES_SECONDS, sum(weights) / SIZES_REQUESTS))
    if totals.requests > 0:
        kept = min(1.0, max(kept, SIZES_LEAST / totals.requests))
    busy = [(s, weight) for s, weight in zip(shares, weights, strict=True) if s.requests]
    prompt = _clipped([(s.load.prompt_tokens - s.before.prompt_tokens) / s.requests for s, _ in busy])
    hits = _clipped([(s.load.prefix_hit_tokens - s.before.prefix_hit_tokens) / s.requests for s, _ in busy])
    # Output tokens per row, not per finished request: a long output produces tokens long before it ends.
    rows = _clipped([max(1.0, (s.load.running + s.before.running) / 2) for s in shares])
    made = [(s.load.generation_tokens - s.before.generation_tokens) for s in shares]
    speeds = _clipped([tokens / row for tokens, row in zip(made, rows, strict=True)], least=0.0)
    return RequestTotals(
        requests=kept * totals.requests + sum(weights),
        finished=kept * totals.finished + sum(ends),
        prompt=kept * totals.prompt + _product([weight for _, weight in busy], prompt),
        hits=kept * totals.hits + _product([weight for _, weight in busy], hits),
        generated=kept * totals.generated + _product(rows, speeds),
        pinned=kept * totals.pinned + signals.pinned_tokens,
        running=kept * totals.running + signals.running,
    )


def _fitted(known: step_cost.Fit, shares: Sequence[_Share], elapsed: float) -> step_cost.Fit:
    """The step cost fit after this update."""
    timed = []
    for share in shares:
        gram, moment = step_cost.between(share.load.steps, share.before.steps)
        if least_squares.possible(gram, moment) and moment[0] <= 1.2 * share.elapsed + _LONG_STEP:
            expected = step_cost.expected(known, gram)
            timed.append((moment[0] / expected, gram, moment))
    if not timed:
        return known
    middle = median(pace for pace, _, _ in timed)
    near = [(g, m) for pace, g, m in timed if len(timed) < 3 or middle / _FAR <= pace <= middle * _FAR]
    kept = exp(-elapsed / step_cost.MEMORY_SECONDS)
    for number, (gram, moment) in enumerate(near):
        known = step_cost.learn(known, gram, moment, kept if number == 0 else 1.0)
    return step_cost.solve(known, elapsed)


def _clipped(values: list[float], least: float = 1 / _FAR) -> list[float]:
    """The values, if three or more, clipped to `least` times the median and twice the median."""
    if len(values) < FEW:
        return values
    middle = median(values)
    return [min(max(value, middle * least), middle * _FAR) for value in values] if middle > 0 else values


def _counts(values: list[float]) -> list[float]:
    """The counts, if three or more, clipped to twice the median plus `_CHANCE`, as small counts vary randomly."""
    if len(values) < FEW:
        return values
    most = _FAR * median(values) + _CHANCE
    return [min(value, most) for value in values]


def _product(left: Iterable[float], right: Iterable[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))

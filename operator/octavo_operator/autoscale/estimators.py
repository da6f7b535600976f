"""What is learned from one look to the next: how many requests come, their sizes, step times, cold starts. Pure.

No single pod is believed beyond what the others make likely: of three or more, one that is far from the middle counts
as the nearest value that is not, or not at all.
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

# Sizes of five minutes ago count for a third, and those before the last few hundred requests: of as many the mean is
# known within some percent, and a mix that changes is followed within a minute where there is much of it.
SIZES_SECONDS = 300.0
SIZES_REQUESTS = 400.0
# However long ago they were.
SIZES_LEAST = 20.0
LESSON_SECONDS = 10.0
# From this many requests on there is a mean size, from this many steps on a step time.
LEAST_REQUESTS = 3.0
LEAST_STEPS = 20.0
# A gateway that is not heard is taken to go on as before for this long.
SILENT_SECONDS = 60.0
# More requests per second than one process can take are no count.
RATE_MOST = 1e5
COLD_STARTS = 20
# Clients that came in bursts come back: their dispersion fades to a third within this long.
SPREAD_SECONDS = 1800.0
# Of its pool a full replica holds as much: what gateways fill it to.
POOL_SHARE = 0.9
# A pod that was there before it was seen to start has started for nobody knows how long.
_SEEN_SECONDS = 10.0
# How far from the middle of the others a pod may be.
_FAR = 2.0
_CHANCE = 3.0
# A queue has to stay for about so long before it is believed that the model is wrong, and is believed so far.
_SLOWER_SECONDS = 60.0
_SLOWEST = 0.25
_FULL = 0.9
# The clock of a step that began before the interval.
_LONG_STEP = 30.0


def learned(
    settings: ScalingSettings, known: Learned, observation: Observation, signals: Signals, now: float
) -> Learned:
    """What is known after this look."""
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
    if known.taught is not None and now - known.taught < LESSON_SECONDS:
        return known
    return _lesson(settings, known, observation.pods, signals, now)


def cold_start(settings: ScalingSettings, known: Learned) -> float:
    """Seconds that nine of ten starts of a replica took at most."""
    if not known.cold_starts:
        return settings.cold_start
    return sorted(known.cold_starts)[ceil(0.9 * len(known.cold_starts)) - 1]


def sizes(totals: RequestTotals) -> RequestSizes | None:
    """Mean sizes of requests; None when too few were seen."""
    if totals.requests < LEAST_REQUESTS or totals.finished < LEAST_REQUESTS:
        return None
    prompt, answer = totals.prompt / totals.requests, totals.generated / totals.finished
    hit = min(1.0, totals.hits / totals.prompt) if totals.prompt > 0 else 0.0
    resident = totals.pinned / totals.running if totals.running >= 1 else prompt + answer / 2
    return RequestSizes(prompt, answer, hit, resident)


def _gateways(before: tuple[GatewayCounters, ...], observation: Observation, now: float) -> tuple[GatewayCounters, ...]:
    """Counters of the gateways there are, with the rates that their differences make."""
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
    """Requests per second now: what gateways count; what pods count, if more, where a gateway is not heard."""
    rates = [gateway.rate for gateway in gateways if gateway.rate is not None]
    heard = bool(observation.gateways) and all(answering(gateway, now) for gateway in observation.gateways)
    if heard and rates:
        return sum(rates)
    counted = known.pod_rate if known.counted is not None and now - known.counted < SILENT_SECONDS else None
    if not rates and counted is None:
        return None
    return max(sum(rates), counted or 0.0)


def _starts(
    settings: ScalingSettings, known: Learned, pods: Iterable[PodSample], now: float
) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Pods that were seen to start and do not serve yet, and how long the others took."""
    before = set(known.starting)
    new = now if known.at is None else known.at - _SEEN_SECONDS
    starting = tuple(p.name for p in pods if p.phase == "pending" and (p.name in before or p.created > new))
    took = (now - pod.created for pod in pods if pod.phase == "ready" and pod.name in before)
    starts = (*known.cold_starts, *(seconds for seconds in took if 0 < seconds <= settings.overdue_seconds))
    return starting, starts[-COLD_STARTS:]


@dataclass(slots=True)
class _Share:
    """What one pod did since the last lesson."""

    load: LoadReport
    before: LoadReport
    elapsed: float
    requests: float
    finished: float
    pace: float = 0.0


def _lesson(
    settings: ScalingSettings, known: Learned, pods: Iterable[PodSample], signals: Signals, now: float
) -> Learned:
    """Learn sizes and step times from what the pods did since the last lesson."""
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
    elapsed = 0.0 if known.taught is None else now - known.taught
    faded = 1.0 + (known.spread - 1.0) * exp(-elapsed / SPREAD_SECONDS)
    spread = max(dispersion(known.arrivals), faded)
    totals = _totals(known.totals, shares, signals, elapsed)
    fitted = _fitted(known.fit, shares, elapsed)
    known = replace(known, taught=now, pods=tuple(after), totals=totals, fit=fitted, spread=spread)
    if shares:
        # A replica's worth more than twice the middle one: where most are idle, one may have all there is.
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
    told = capacity(fitted.model, found, limits)
    if told is None:
        return known
    slower = _slower(known.slower, fitted, shares, elapsed, held=signals.held > 0)
    told = replace(told, rate=told.rate * slower, prefill=told.prefill * slower)
    return replace(known, sizes=found, slower=slower, capacity=told)


def _slower(known: float, fitted: step_cost.Fit, shares: Sequence[_Share], elapsed: float, *, held: bool) -> float:
    """What replicas do that have more than they can, as a share of what the model says that they could; 1 at most.

    Time that passes outside of steps, or in ways that the model does not know of, is found where a queue stays.
    """
    full = [s for s in shares if all(load.waiting or (held and _no_room(load)) for load in (s.load, s.before))]
    if 2 * len(full) <= len(shares):
        return 1.0 - (1.0 - known) * exp(-elapsed / step_cost.MEMORY_SECONDS)
    explained = _near(
        [step_cost.expected(fitted, step_cost.between(s.load.steps, s.before.steps)[0]) / s.elapsed for s in full]
    )
    share = min(max(sum(explained) / len(explained), _SLOWEST), 1.0)
    kept = exp(-elapsed / _SLOWER_SECONDS)
    return kept * known + (1 - kept) * share


def _no_room(load: LoadReport) -> bool:
    """Whether gateways rather hold a request than send it there."""
    return load.running >= _FULL * load.max_running or load.blocks_pinned >= _FULL * load.blocks_total


def _share(load: LoadReport, before: LoadReport, elapsed: float) -> _Share | None:
    """The difference of two reports of one process; None when it cannot be one."""
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
    # No prompt and no answer is longer than the pool.
    longest = load.blocks_total * load.block_size
    if max(grown[1], grown[2]) > longest * (requests + before.running + before.waiting):
        return None
    return _Share(load, before, elapsed, float(requests), float(max(0, finished)))


def _totals(totals: RequestTotals, shares: Sequence[_Share], signals: Signals, elapsed: float) -> RequestTotals:
    """Sums that forget, but only while there is something new."""
    if not signals.running and not any(s.requests or s.finished for s in shares):
        return totals
    weights, ends = _counts([s.requests for s in shares]), _counts([s.finished for s in shares])
    kept = exp(-max(elapsed / SIZES_SECONDS, sum(weights) / SIZES_REQUESTS))
    if totals.requests > 0:
        kept = min(1.0, max(kept, SIZES_LEAST / totals.requests))
    came = [(s, weight) for s, weight in zip(shares, weights, strict=True) if s.requests]
    prompt = _near([(s.load.prompt_tokens - s.before.prompt_tokens) / s.requests for s, _ in came])
    hits = _near([(s.load.prefix_hit_tokens - s.before.prefix_hit_tokens) / s.requests for s, _ in came])
    # Tokens come long before the end of a long answer, and rows make them equally fast.
    rows = _near([max(1.0, (s.load.running + s.before.running) / 2) for s in shares])
    made = [(s.load.generation_tokens - s.before.generation_tokens) for s in shares]
    speeds = _near([tokens / row for tokens, row in zip(made, rows, strict=True)], least=0.0)
    return RequestTotals(
        requests=kept * totals.requests + sum(weights),
        finished=kept * totals.finished + sum(ends),
        prompt=kept * totals.prompt + _product([weight for _, weight in came], prompt),
        hits=kept * totals.hits + _product([weight for _, weight in came], hits),
        generated=kept * totals.generated + _product(rows, speeds),
        pinned=kept * totals.pinned + signals.pinned_tokens,
        running=kept * totals.running + signals.running,
    )


def _fitted(known: step_cost.Fit, shares: Sequence[_Share], elapsed: float) -> step_cost.Fit:
    """The step time after this lesson."""
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


def _near(values: list[float], least: float = 1 / _FAR) -> list[float]:
    """The values, none further from the middle of three or more than it may be: from `least` times it to twice."""
    if len(values) < FEW:
        return values
    middle = median(values)
    return [min(max(value, middle * least), middle * _FAR) for value in values] if middle > 0 else values


def _counts(values: list[float]) -> list[float]:
    """Counts, none much larger than the middle of three or more; a few more may be chance."""
    if len(values) < FEW:
        return values
    most = _FAR * median(values) + _CHANCE
    return [min(value, most) for value in values]


def _product(left: Iterable[float], right: Iterable[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))

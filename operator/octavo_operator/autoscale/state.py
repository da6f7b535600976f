"""The policy's state between decisions: windows, changes, counters. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from octavo_operator.autoscale.estimators import cold_start
from octavo_operator.autoscale.signals import Signals
from octavo_operator.autoscale.types import (
    Demand,
    Learned,
    Observation,
    PodCounters,
    PodSample,
    PolicyState,
    ScalingSettings,
)
from octavo_protocol.load import LoadReport

# Hysteresis in replicas for the rate, which is an estimate: scale up only when it exceeds the current replicas by this
# much, or by half of its headroom if that is less; scale down without it. So a demand near a whole number cannot flap.
UP_MARGIN = 0.25
# Stock and queue fluctuate more than the rate: scale down only if this part of a replica stays free.
FACTS_MARGIN = 0.25
# The minimum duration of a surge, in seconds.
SURGE_SECONDS = 60.0
# After this many seconds without a decision, or after a clock step backwards, the stored times are invalid.
GAP_SECONDS = 120.0
_BACK_SECONDS = 1.0
# So many consecutive failed starts mean that the next replica would not start, either.
FAILED_STARTS = 3
EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class DecisionInput:
    """The complete input of a decision. `preempting`: the number of pods that preempted since the last decision."""

    settings: ScalingSettings
    state: PolicyState
    observation: Observation
    signals: Signals
    demand: Demand
    preempting: int
    now: float

    @property
    def odd(self) -> int:
        """1 if only a few of many pods preempt: they are, or claim to be, more loaded; they add one replica."""
        return int(bool(self.preempting) and not self.signals.many(self.preempting))

    @property
    def rate(self) -> float:
        """Replicas that the rate demands, with the hysteresis for scale-up."""
        return self.demand.rate - min(UP_MARGIN, self.demand.room / 2)

    @property
    def need(self) -> float:
        """Replicas needed by the known load; pods without a sample add nothing."""
        demanded = self.demand
        return max(self.rate, demanded.stock, demanded.queue, demanded.ttft) + self.odd

    @property
    def cautious_need(self) -> float:
        """Replicas needed for scale-down: assumes that every pod without a sample is exactly at its target."""
        demanded = self.demand
        facts = max(demanded.stock + self.signals.missing, demanded.queue, demanded.ttft)
        return max(demanded.rate, facts + FACTS_MARGIN) + self.odd


def current(state: PolicyState, now: float) -> PolicyState:
    """The state, without its times if they are invalid at `now`."""
    last = state.learned.at
    if last is None or -_BACK_SECONDS <= now - last <= GAP_SECONDS:
        return state
    return without_times(state)


def without_times(state: PolicyState) -> PolicyState:
    """The state with only its estimates for replicas and requests, which hold at any time."""
    known = state.learned
    kept = Learned(
        totals=known.totals,
        fit=known.fit,
        cold_starts=known.cold_starts,
        sizes=known.sizes,
        capacity=known.capacity,
        model_ratio=known.model_ratio,
    )
    return PolicyState(pod_tokens=state.pod_tokens, learned=kept)


def window(settings: ScalingSettings, known: Learned) -> float:
    """The scale-down window in seconds: as configured, but at least the observed cold start.

    A replica removed too early has to start again and is missing for that time.
    """
    return max(settings.down_stabilization, cold_start(settings, known) if known.cold_starts else 0.0)


def remember(inputs: DecisionInput) -> PolicyState:
    """The state after this observation, with updated windows and counters."""
    settings, state, observation, signals, now = (
        inputs.settings,
        inputs.state,
        inputs.observation,
        inputs.signals,
        inputs.now,
    )
    replicas = observation.current
    started = now if state.started is None else state.started
    highest = ceil(inputs.cautious_need - EPSILON) + min(1, signals.broken)
    lowest = ceil(inputs.need - EPSILON)
    seconds = window(settings, state.learned)
    highs = (*(h for h in state.highs if h[1] > highest and now - h[0] < seconds), (now, highest))
    lows = (*(low for low in state.lows if low[1] < lowest and now - low[0] < settings.up_stabilization), (now, lowest))
    difference = 0 if state.current is None else replicas - state.current
    period = max(settings.up_period, settings.down_period)
    changes = tuple(change for change in state.changes if now - change[0] < period)
    if difference:
        changes = (*changes, (now, difference))
    active = signals.busy or signals.pending or difference or observation.wake or state.started is None
    active = active or _requests_arrived(state.counters, signals.reports)
    panic = signals.many(inputs.preempting)
    demanded = inputs.demand
    surge_until = now + max(SURGE_SECONDS, demanded.cold_start) if demanded.surge else state.surge_until
    surging = surge_until is not None and now < surge_until
    return replace(
        state,
        started=started,
        current=replicas,
        highs=highs,
        lows=lows,
        changes=changes,
        counters=_counters(state.counters, observation.pods, signals.reports),
        pod_tokens=signals.pod_tokens,
        panic_until=now + seconds if panic else state.panic_until,
        surge_until=surge_until,
        surge_arrivals=max(state.surge_arrivals, demanded.lately) if surging else 0.0,
        last_active=now if active else state.last_active,
        woken=now if observation.wake else state.woken,
        missing_since=(state.missing_since or now) if signals.missing else None,
    )


def preempting(state: PolicyState, signals: Signals) -> int:
    """The number of pods that preempted running requests since the last decision."""
    known = {(counters.name, counters.start_time): counters for counters in state.counters}
    return sum(
        load.preemptions > counters.preemptions
        for name, load in signals.reports.items()
        if (counters := known.get((name, load.start_time)))
    )


def budget(changes: tuple[tuple[float, int], ...], max_step: int, period: float, now: float) -> int:
    """Replicas that may still be added within the period, or removed if `max_step` is negative."""
    sign = 1 if max_step > 0 else -1
    used = sum(sign * change for at, change in changes if sign * change > 0 and now - at < period)
    return max(0, abs(max_step) - used)


def _counters(
    before: tuple[PodCounters, ...], pods: tuple[PodSample, ...], reports: Mapping[str, LoadReport]
) -> tuple[PodCounters, ...]:
    """Counters of the current pods; a pod without a usable report keeps its previous ones."""
    known = {counters.name: counters for counters in before}
    after: list[PodCounters] = []
    for pod in pods:
        load = reports.get(pod.name)
        if load is not None:
            after.append(PodCounters(pod.name, load.start_time, load.preemptions, load.requests))
        elif pod.name in known:
            after.append(known[pod.name])
    return tuple(after)


def _requests_arrived(before: tuple[PodCounters, ...], reports: Mapping[str, LoadReport]) -> bool:
    """True if a pod served a request since the last sample, even one too short to appear in a sample."""
    known = {(counters.name, counters.start_time): counters for counters in before}
    return any(
        load.requests > counters.requests
        for name, load in reports.items()
        if (counters := known.get((name, load.start_time)))
    )

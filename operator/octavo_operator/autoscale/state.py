"""What the policy remembers from one decision to the next: windows, changes, counters. Pure."""

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

# The rate is an estimate: a replica more only when it asks for a quarter of one beyond those there are, and half of the
# room for chance is left. One less only without that quarter: a demand near a whole number must not flap.
UP_MARGIN = 0.25
# What is there now moves more than the rate: one less only when it would leave a quarter of a pod free.
FACTS_MARGIN = 0.25
# The load of the last seconds counts in full for this long at least after it last had to.
SURGE_SECONDS = 60.0
# After so long without a look, or a clock that went back, times that are remembered mean nothing.
GAP_SECONDS = 120.0
_BACK_SECONDS = 1.0
# Replicas that did not start, without one that did since: another one would not either.
FAILED_STARTS = 3
EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class DecisionInput:
    """All that a decision is made from. `preempting`: pods that ran full and preempted since the last look."""

    settings: ScalingSettings
    state: PolicyState
    observation: Observation
    signals: Signals
    demand: Demand
    preempting: int
    now: float

    @property
    def odd(self) -> int:
        """1 when a few pods of many preempt: they are more loaded than the rest, or say so, and get one replica."""
        return int(bool(self.preempting) and not self.signals.many(self.preempting))

    @property
    def rate(self) -> float:
        """Replicas that the rate asks for when there are fewer."""
        return self.demand.rate - min(UP_MARGIN, self.demand.room / 2)

    @property
    def need(self) -> float:
        """Replicas needed for what is known; pods without a sample add nothing."""
        asked = self.demand
        return max(self.rate, asked.stock, asked.queue, asked.ttft) + self.odd

    @property
    def cautious_need(self) -> float:
        """Replicas needed if every pod without a sample is exactly at target: the view for scaling down."""
        asked = self.demand
        facts = max(asked.stock + self.signals.missing, asked.queue, asked.ttft)
        return max(asked.rate, facts + FACTS_MARGIN) + self.odd


def current(state: PolicyState, now: float) -> PolicyState:
    """The state, with all times forgotten when they mean nothing at `now`; what was learned of replicas stays."""
    last = state.learned.at
    if last is None or -_BACK_SECONDS <= now - last <= GAP_SECONDS:
        return state
    return afresh(state)


def afresh(state: PolicyState) -> PolicyState:
    """A state that remembers no times, only what was learned of replicas and requests."""
    known = state.learned
    kept = Learned(
        totals=known.totals,
        fit=known.fit,
        cold_starts=known.cold_starts,
        sizes=known.sizes,
        capacity=known.capacity,
        slower=known.slower,
    )
    return PolicyState(pod_tokens=state.pod_tokens, learned=kept)


def window(settings: ScalingSettings, known: Learned) -> float:
    """Seconds that decide whether a replica may go: as configured, and no less than a start was seen to take.

    What goes too soon has to start again, and is missing for as long.
    """
    return max(settings.down_stabilization, cold_start(settings, known) if known.cold_starts else 0.0)


def remember(inputs: DecisionInput) -> PolicyState:
    """The state after this observation: windows moved on, counters taken over."""
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
    active = active or _requests_came(state.counters, signals.reports)
    panic = signals.many(inputs.preempting)
    asked = inputs.demand
    surge_until = now + max(SURGE_SECONDS, asked.cold_start) if asked.surge else state.surge_until
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
        surge_arrivals=max(state.surge_arrivals, asked.lately) if surging else 0.0,
        last_active=now if active else state.last_active,
        woken=now if observation.wake else state.woken,
        missing_since=(state.missing_since or now) if signals.missing else None,
    )


def preempting(state: PolicyState, signals: Signals) -> int:
    """Pods that preempted running requests since the last look."""
    known = {(counters.name, counters.start_time): counters for counters in state.counters}
    return sum(
        load.preemptions > counters.preemptions
        for name, load in signals.reports.items()
        if (counters := known.get((name, load.start_time)))
    )


def budget(changes: tuple[tuple[float, int], ...], max_step: int, period: float, now: float) -> int:
    """Replicas that may still be added (or removed, with a negative `max_step`) within the current period."""
    sign = 1 if max_step > 0 else -1
    used = sum(sign * change for at, change in changes if sign * change > 0 and now - at < period)
    return max(0, abs(max_step) - used)


def _counters(
    before: tuple[PodCounters, ...], pods: tuple[PodSample, ...], reports: Mapping[str, LoadReport]
) -> tuple[PodCounters, ...]:
    """Counters of the pods that are there; one that gave no usable report keeps those it had."""
    known = {counters.name: counters for counters in before}
    after: list[PodCounters] = []
    for pod in pods:
        load = reports.get(pod.name)
        if load is not None:
            after.append(PodCounters(pod.name, load.start_time, load.preemptions, load.requests))
        elif pod.name in known:
            after.append(known[pod.name])
    return tuple(after)


def _requests_came(before: tuple[PodCounters, ...], reports: Mapping[str, LoadReport]) -> bool:
    """Whether a pod served a request between two samples, short enough to be seen by neither."""
    known = {(counters.name, counters.start_time): counters for counters in before}
    return any(
        load.requests > counters.requests
        for name, load in reports.items()
        if (counters := known.get((name, load.start_time)))
    )

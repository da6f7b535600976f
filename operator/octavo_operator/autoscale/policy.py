"""The scaling policy: stock of KV tokens and depth of the queue against what the pods can hold.

Up at once, down only after a window and only if the remaining pods would hold what is there. Pending pods are supply
until their start is overdue; draining pods are neither supply nor demand (their streams end where they are). A
terminating pod cannot be revived through a Deployment, so a rise during a drain starts a new one.

Pure: the same settings, state, observation and time always give the same decision, so that the operator, the tests and
a replay of recorded inputs run one and the same code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from octavo_operator.autoscale.demand import demand
from octavo_operator.autoscale.learning import learned
from octavo_operator.autoscale.signals import Signals, measure, usable
from octavo_operator.autoscale.types import Decision, Demand, Observation, PodCounters, PodSample, Settings, State

# The rate is an estimate: a replica more only when it asks for a tenth of one beyond those there are.
UP_MARGIN = 0.1
# Down only when the demand would leave a quarter of a pod free: with `ceil` alone a demand near a whole number flaps.
DOWN_MARGIN = 0.25
# Rows the remaining pods may fill after a scale-down, as a share of `max_running`.
ROWS_TARGET = 0.9
# A wake stands until the replica it asked for is seen, even if no gateway's report confirms it in between.
WAKE_SECONDS = 10.0
TICK_SECONDS = 2.0
HELD_TICK_SECONDS = 1.0
ZERO_TICK_SECONDS = 10.0
# At the most replicas demand moves around what they can do: it is said to be limited until it was not for this long.
LIMITED_SECONDS = 60.0

_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class _Look:
    """All that a decision is made from."""

    settings: Settings
    state: State
    observation: Observation
    signals: Signals
    demand: Demand
    preempting: bool
    now: float

    @property
    def need(self) -> float:
        """Replicas needed for what is known; pods without a sample add nothing."""
        return max(self.demand.rate - UP_MARGIN, self.demand.stock, self.demand.queue)

    @property
    def cautious_need(self) -> float:
        """Replicas needed if every pod without a sample is exactly at target: the view for scaling down."""
        return max(self.demand.rate, self.demand.stock + self.signals.missing, self.demand.queue)


def decide(settings: Settings, state: State, observation: Observation, now: float) -> Decision:
    """How many replicas there should be now."""
    signals = measure(settings, state, observation, now)
    preempting = _preemptions_rose(state.counters, observation.pods)
    known = learned(settings, state.learned, observation, signals, now)
    asked = demand(settings, known, signals, now)
    look = _Look(settings, replace(state, learned=known), observation, signals, asked, preempting, now)
    state = _remember(look)
    look = replace(look, state=state)
    desired, reason, message = _choose(look)
    if reason == "ScalingLimited":
        state = replace(state, limited=now)
    elif desired == observation.current == settings.max_replicas and _within(state.limited, LIMITED_SECONDS, now):
        ago = f"{now - (state.limited or 0.0):.0f} s ago"
        reason, message = "ScalingLimited", f"more than maxReplicas ({desired}) replicas were needed {ago}"
    return Decision(
        desired=desired,
        reason=reason,
        message=message,
        inputs=_describe(look, desired),
        state=state,
        requeue=_requeue(signals, observation, desired),
        demand=asked,
    )


_Choice = tuple[int, str, str]


def _choose(look: _Look) -> _Choice:
    settings, signals, current = look.settings, look.signals, look.observation.current
    bounded = min(max(current, settings.min_replicas), settings.max_replicas)
    if bounded != current:
        limit = settings.minimum if bounded > current else "maxReplicas"
        return bounded, "OutOfBounds", f"{current} replicas is outside the bounds: {limit} is {bounded}"
    if current == 0:
        return _wake(look)
    if 2 * signals.missing > signals.ready:
        silent = f"{signals.missing} of {signals.ready} ready pods gave no load report"
        if current < settings.fallback:
            return settings.fallback, "MetricsMissing", f"{silent}: fallbackReplicas is {settings.fallback}"
        return current, "MetricsMissing", f"{silent}: holding"
    raised = _up(look)
    if raised:
        return raised
    if current == 1:
        return _to_zero(look)
    return _down(look)


def _wake(look: _Look) -> _Choice:
    """0 -> n: edge-triggered by the first held request, past every stabilisation."""
    settings, signals = look.settings, look.signals
    if not signals.held and not _within(look.state.woken, WAKE_SECONDS, look.now):
        return 0, "Idle", "no replicas and no request held"
    # The rate of a load that has just begun is chance: what is held is what there is.
    need = max(1, ceil(max(look.demand.stock, look.demand.queue) - _EPSILON))
    desired = min(need, max(1, _budget(look.state.changes, settings.up_max_step, settings.up_period, look.now)))
    return (
        min(desired, settings.max_replicas),
        "RequestsHeld",
        f"{signals.held} requests held while there is no replica",
    )


def _up(look: _Look) -> _Choice | None:
    """More replicas at once, if those there are and those on their way do not suffice; None if they do."""
    settings, state, signals, current = look.settings, look.state, look.signals, look.observation.current
    supply = max(0, current - signals.broken)
    need = state.lows[0][1]
    reason, message = _dominant(look)
    if look.preempting and need <= supply < signals.ready + 1 and not signals.pending and signals.ready:
        # Past the cliff whatever the other signals say: preempted work is computed twice, which keeps the pool full.
        need = supply + 1
        reason, message = "Preemptions", "a pool ran full and preempted running requests"
    if need <= supply:
        return None
    # A broken replica is made up for one at a time: a bad image must not start max_replicas pods.
    wanted = need + min(1, signals.broken)
    allowed = current + _budget(state.changes, settings.up_max_step, settings.up_period, look.now)
    desired = min(wanted, allowed, settings.max_replicas)
    if desired > current:
        return desired, reason, message
    if wanted <= current:
        return None
    if current == settings.max_replicas:
        return current, "ScalingLimited", f"{message}: {wanted} replicas needed, maxReplicas is {current}"
    return (
        current,
        "StepLimited",
        (f"{message}: {wanted} replicas needed, at most {settings.up_max_step} more per {settings.up_period:g} s"),
    )


def _down(look: _Look) -> _Choice:
    """Fewer replicas, if the whole window agrees and the remaining ones hold what is there."""
    settings, state, current = look.settings, look.state, look.observation.current
    floor = max(1, settings.min_replicas)
    if look.cautious_need + DOWN_MARGIN > current - 1 or current <= floor:
        return current, "Steady", "demand matches the replicas"
    blocked = _blocked(look)
    if blocked:
        return current, *blocked
    recommended = max(state.highs[0][1], floor)
    step = _budget(state.changes, -settings.down_max_step, settings.down_period, look.now)
    desired = max(recommended, current - step)
    if desired >= current:
        if recommended >= current:
            window = f"{settings.down_stabilization:g} s"
            return current, "Stabilizing", f"demand fell; {recommended} replicas were needed within the last {window}"
        return current, "StepLimited", f"at most {settings.down_max_step} fewer per {settings.down_period:g} s"
    desired = _consolidated(settings, look.signals, desired, current)
    if desired >= current:
        return current, "ConsolidationRefused", "the remaining replicas would not hold what is running"
    return desired, "LoadLow", f"{desired} replicas hold the load with a margin"


def _to_zero(look: _Look) -> _Choice:
    """1 -> 0, only when nothing has happened for long and a gateway confirms that it will hold the next request."""
    settings, signals = look.settings, look.signals
    if settings.min_replicas > 0:
        return 1, "Steady", "one replica, the minimum"
    if signals.busy or signals.missing:
        return 1, "Steady", "the last replica is in use or did not report"
    idle = look.now - max(look.state.last_active, signals.last_arrival)
    if idle < settings.idle_to_zero:
        return 1, "Steady", f"idle for {max(idle, 0.0):.0f} of {settings.idle_to_zero:g} s"
    if not signals.gateways_answering or signals.gateways_silent:
        return 1, "GatewayMissing", "idle, but not every gateway confirms that it would hold a request"
    blocked = _blocked(look)
    if blocked:
        return 1, *blocked
    return 0, "Idle", f"no request for {idle:.0f} s"


def _blocked(look: _Look) -> tuple[str, str] | None:
    """What forbids any scale-down now, or None."""
    settings, state, signals, now = look.settings, look.state, look.signals, look.now
    if signals.waiting or signals.held:
        return "RequestsWaiting", f"{signals.waiting} requests wait and {signals.held} are held"
    if signals.pending:
        return "PodsPending", f"{signals.pending} pods are still starting"
    if now < state.panic_until:
        return "Preemptions", f"no scale-down for {state.panic_until - now:.0f} s after a preemption"
    if state.started is not None and now - state.started < settings.down_stabilization:
        return "Stabilizing", f"less than one window ({settings.down_stabilization:g} s) observed since the start"
    return None


def _consolidated(settings: Settings, signals: Signals, desired: int, current: int) -> int:
    """The fewest replicas from `desired` up that hold the pinned KV under the target and the running rows.

    Pods without a sample are taken to be full, and the smallest pools are taken to remain.
    """
    for replicas in range(desired, current):
        unknown = max(0, replicas - len(signals.pools))
        room = settings.kv_target * (sum(signals.pools[:replicas]) + unknown * signals.pod_tokens)
        rows = ROWS_TARGET * sum(signals.rows[:replicas])
        pinned = signals.pinned_tokens + signals.missing * settings.kv_target * signals.pod_tokens
        if pinned <= room and signals.running <= rows:
            return replicas
    return current


def _remember(look: _Look) -> State:
    """The state after this observation: windows moved on, counters taken over."""
    settings, state, observation, signals, now = look.settings, look.state, look.observation, look.signals, look.now
    current = observation.current
    started = now if state.started is None else state.started
    highest = ceil(look.cautious_need + DOWN_MARGIN - _EPSILON) + min(1, signals.broken)
    lowest = ceil(look.need - _EPSILON)
    highs = (*(h for h in state.highs if h[1] > highest and now - h[0] < settings.down_stabilization), (now, highest))
    lows = (*(low for low in state.lows if low[1] < lowest and now - low[0] < settings.up_stabilization), (now, lowest))
    difference = 0 if state.current is None else current - state.current
    period = max(settings.up_period, settings.down_period)
    changes = tuple(change for change in state.changes if now - change[0] < period)
    if difference:
        changes = (*changes, (now, difference))
    active = signals.busy or signals.pending or difference or observation.wake or state.started is None
    active = active or _requests_came(state.counters, observation.pods)
    return replace(
        state,
        started=started,
        current=current,
        highs=highs,
        lows=lows,
        changes=changes,
        counters=_counters(state.counters, observation.pods, now),
        pod_tokens=signals.pod_tokens,
        panic_until=now + settings.down_stabilization if look.preempting else state.panic_until,
        last_active=now if active else state.last_active,
        woken=now if observation.wake else state.woken,
    )


def _counters(before: tuple[PodCounters, ...], pods: tuple[PodSample, ...], now: float) -> tuple[PodCounters, ...]:
    """Counters of the pods that are there; one that gave no usable report keeps those it had."""
    known = {counters.name: counters for counters in before}
    after: list[PodCounters] = []
    for pod in pods:
        load = usable(pod, now)
        if load is not None:
            after.append(PodCounters(pod.name, load.start_time, load.preemptions, load.requests))
        elif pod.name in known:
            after.append(known[pod.name])
    return tuple(after)


def _preemptions_rose(before: tuple[PodCounters, ...], pods: tuple[PodSample, ...]) -> bool:
    known = {(counters.name, counters.start_time): counters for counters in before}
    return any(
        pod.load.preemptions > counters.preemptions
        for pod in pods
        if pod.phase == "ready" and pod.load and (counters := known.get((pod.name, pod.load.start_time)))
    )


def _requests_came(before: tuple[PodCounters, ...], pods: tuple[PodSample, ...]) -> bool:
    """Whether a pod served a request between two samples, short enough to be seen by neither."""
    known = {(counters.name, counters.start_time): counters for counters in before}
    return any(
        pod.load.requests > counters.requests
        for pod in pods
        if pod.load and (counters := known.get((pod.name, pod.load.start_time)))
    )


def _budget(changes: tuple[tuple[float, int], ...], max_step: int, period: float, now: float) -> int:
    """Replicas that may still be added (or removed, with a negative `max_step`) within the current period."""
    sign = 1 if max_step > 0 else -1
    used = sum(sign * change for at, change in changes if sign * change > 0 and now - at < period)
    return max(0, abs(max_step) - used)


def _within(at: float | None, seconds: float, now: float) -> bool:
    """Whether that was within the last `seconds`."""
    return at is not None and now - at < seconds


def _dominant(look: _Look) -> tuple[str, str]:
    """What asks for the most replicas, in a word and a sentence."""
    settings, signals, asked = look.settings, look.signals, look.demand
    capacity = look.state.learned.capacity
    if capacity is not None and asked.rate - UP_MARGIN > max(asked.stock, asked.queue):
        return "ArrivalRate", (
            f"{asked.arrivals:.3g} requests per second ask for {asked.rate:.2f} replicas; "
            f"one takes {capacity.rate:.3g} per second"
        )
    if asked.stock >= asked.queue:
        stock = signals.pinned_tokens + signals.waiting_tokens + signals.held_tokens
        return "KVOccupancy", (
            f"{stock} KV tokens pinned, waiting or held; "
            f"one replica takes {settings.kv_target:.0%} of {signals.pod_tokens}"
        )
    return "QueueDepth", (
        f"{signals.waiting + signals.held} requests wait or are held; "
        f"{settings.queued_per_replica} per replica is the target"
    )


def _describe(look: _Look, desired: int) -> str:
    """The figures of a decision in one short line."""
    signals, asked, capacity = look.signals, look.demand, look.state.learned.capacity
    share = f" ({signals.pinned_blocks / signals.total_blocks:.0%})" if signals.total_blocks else ""
    parts = [f"kv {signals.pinned_blocks}/{signals.total_blocks} blocks pinned{share}", f"{signals.running} running"]
    parts.append(f"{signals.waiting} waiting")
    optional = {
        "held": signals.held,
        "ready": signals.ready,
        "pending": signals.pending,
        "broken": signals.broken,
        "draining": signals.draining,
        "without report": signals.missing,
    }
    parts += [f"{count} {what}" for what, count in optional.items() if count or what == "ready"]
    if capacity is not None:
        parts.append(f"{asked.arrivals:.3g} requests/s of {capacity.rate:.3g} per replica")
    terms = f"rate {asked.rate:.2f}, kv {asked.stock:.2f}, queue {asked.queue:.2f}"
    return f"{', '.join(parts)}, demand by {terms}: {look.observation.current} → {desired}"


def _requeue(signals: Signals, observation: Observation, desired: int) -> float:
    if signals.held:
        return HELD_TICK_SECONDS
    return TICK_SECONDS if observation.pods or observation.current or desired else ZERO_TICK_SECONDS

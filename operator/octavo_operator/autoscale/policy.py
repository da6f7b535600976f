"""The scaling policy: compares demand (arrival rate, KV tokens, queue) with the capacity of the pods.

Scale-up is immediate. Scale-down waits for a window and requires that the remaining pods can hold the current load.
Pending pods count as supply until their start is overdue. Draining pods are neither supply nor demand, as their streams
end on them. A Deployment cannot revive a terminating pod, so a rise during a drain starts a new one.

Pure: equal settings, state, observation and time give equal decisions. So the operator, the tests and a replay of
recorded inputs run the same code.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from octavo_operator.autoscale.demand import demand
from octavo_operator.autoscale.estimators import learned
from octavo_operator.autoscale.messages import described, dominant, failing, notice, silent
from octavo_operator.autoscale.signals import Signals, measure
from octavo_operator.autoscale.state import (
    EPSILON,
    FAILED_STARTS,
    DecisionInput,
    budget,
    current,
    preempting,
    remember,
    window,
)
from octavo_operator.autoscale.types import (
    Decision,
    GatewaySample,
    Observation,
    PodSample,
    PolicyState,
    ScalingSettings,
)

# Rows the remaining pods may fill after a scale-down, as a share of `max_running`.
ROWS_TARGET = 0.9
# Seconds that a wake call is valid: until its replica is observed, even if no gateway report confirms it meanwhile.
WAKE_SECONDS = 10.0
TICK_SECONDS = 2.0
HELD_TICK_SECONDS = 1.0
ZERO_TICK_SECONDS = 10.0
# At maxReplicas demand fluctuates around the capacity: ScalingLimited stays for this long after it last applied.
LIMITED_SECONDS = 60.0


def decide(settings: ScalingSettings, state: PolicyState, observation: Observation, now: float) -> Decision:
    """The desired number of replicas at `now`."""
    state, observation = current(state, now), _deduplicated(observation)
    signals = measure(settings, state, observation, now)
    known = learned(settings, state.learned, observation, signals, now)
    surging = state.surge_until is not None and now < state.surge_until
    demanded = demand(settings, known, signals, now, state.surge_arrivals if surging else 0.0)
    inputs = DecisionInput(
        settings, replace(state, learned=known), observation, signals, demanded, preempting(state, signals), now
    )
    inputs = replace(inputs, state=remember(inputs))
    desired, reason, message = _choose(inputs)
    state = inputs.state
    if reason == "ScalingLimited":
        state = replace(state, limited=now)
    elif desired == observation.current == settings.max_replicas and _within(state.limited, LIMITED_SECONDS, now):
        ago = f"{now - (state.limited or 0.0):.0f} s ago"
        reason, message = "ScalingLimited", f"more than maxReplicas ({desired}) replicas were needed {ago}"
    return Decision(
        desired=desired,
        reason=reason,
        message=message,
        inputs=described(inputs, desired),
        state=state,
        requeue=_requeue(signals, observation, desired),
        demand=demanded,
        notice=notice(inputs, reason, message),
    )


def _deduplicated(observation: Observation) -> Observation:
    """The observation with only the first pod, and the first gateway, of each name."""
    pods: dict[str, PodSample] = {}
    gateways: dict[str, GatewaySample] = {}
    for pod in observation.pods:
        pods.setdefault(pod.name, pod)
    for gateway in observation.gateways:
        gateways.setdefault(gateway.name, gateway)
    if len(pods) == len(observation.pods) and len(gateways) == len(observation.gateways):
        return observation
    return replace(observation, pods=tuple(pods.values()), gateways=tuple(gateways.values()))


_Choice = tuple[int, str, str]


def _choose(inputs: DecisionInput) -> _Choice:
    settings, signals, replicas = inputs.settings, inputs.signals, inputs.observation.current
    bounded = min(max(replicas, settings.min_replicas), settings.max_replicas)
    if bounded != replicas:
        limit = settings.minimum if bounded > replicas else "maxReplicas"
        return bounded, "OutOfBounds", f"{replicas} replicas is outside the bounds: {limit} is {bounded}"
    if replicas == 0:
        return _wake(inputs)
    unknown = _missing(inputs) if signals.blind else None
    if unknown and (unknown[0] > replicas or not signals.gateways_answering):
        return unknown
    # Gateway reports alone suffice for scale-up, but not for scale-down.
    raised = _up(inputs)
    if raised:
        return raised
    if unknown:
        return unknown
    if replicas == 1:
        return _to_zero(inputs)
    return _down(inputs)


def _missing(inputs: DecisionInput) -> _Choice:
    """The decision while most pods give no report: hold, or scale up to `fallbackReplicas`."""
    replicas, fallback = inputs.observation.current, inputs.settings.fallback
    reason = "MetricsPartial" if inputs.signals.gateways_answering else "MetricsUnavailable"
    if replicas < fallback:
        return fallback, reason, f"{silent(inputs.signals)}: fallbackReplicas is {fallback}"
    return replicas, reason, f"{silent(inputs.signals)}: holding"


def _wake(inputs: DecisionInput) -> _Choice:
    """0 -> n: triggered by the first held request, without stabilization."""
    settings, signals = inputs.settings, inputs.signals
    if not signals.held and not _within(inputs.state.woken, WAKE_SECONDS, inputs.now):
        return 0, "Idle", "no replicas and no request held"
    # The arrival rate of a load that has just begun is noise: only held requests count.
    need = max(1, ceil(max(inputs.demand.stock, inputs.demand.queue) - EPSILON))
    desired = min(need, max(1, budget(inputs.state.changes, settings.up_max_step, settings.up_period, inputs.now)))
    return (
        min(desired, settings.max_replicas),
        "RequestsHeld",
        f"{signals.held} requests held while there is no replica",
    )


def _up(inputs: DecisionInput) -> _Choice | None:
    """Scale up at once if ready and pending replicas do not suffice; None if they do."""
    settings, state, signals, replicas = inputs.settings, inputs.state, inputs.signals, inputs.observation.current
    supply = max(0, replicas - signals.broken)
    need = state.lows[0][1]
    reason, message = dominant(inputs)
    if signals.many(inputs.preempting) and need <= supply < signals.ready + 1 and not signals.pending and signals.ready:
        # Overload, whatever the other signals are: preempted work is computed twice, which keeps the KV pool full.
        need = supply + 1
        reason, message = "Preemptions", "a KV pool ran full and preempted running requests"
    if need <= supply:
        return None
    # Broken replicas are replaced one at a time: a bad image must not start max_replicas pods.
    wanted = need + min(1, signals.broken)
    allowed = replicas + budget(state.changes, settings.up_max_step, settings.up_period, inputs.now)
    desired = min(wanted, allowed, settings.max_replicas)
    if desired > replicas and signals.failed_starts >= FAILED_STARTS:
        return replicas, "StartsFail", f"{failing(signals)}: no replica is added until one starts"
    if desired > replicas:
        return desired, reason, message
    if wanted <= replicas:
        return None
    if replicas == settings.max_replicas:
        return replicas, "ScalingLimited", f"{message}: {wanted} replicas are needed, maxReplicas is {replicas}"
    return (
        replicas,
        "StepLimited",
        (f"{message}: {wanted} replicas are needed, at most {settings.up_max_step} more per {settings.up_period:g} s"),
    )


def _down(inputs: DecisionInput) -> _Choice:
    """Scale down if the whole window agrees and the remaining replicas can hold the current load."""
    settings, state, replicas = inputs.settings, inputs.state, inputs.observation.current
    floor = max(1, settings.min_replicas)
    if inputs.cautious_need > replicas - 1 or replicas <= floor:
        return replicas, "Steady", "demand matches the replicas"
    blocked = _blocked(inputs)
    if blocked:
        return replicas, *blocked
    recommended = max(state.highs[0][1], floor)
    step = budget(state.changes, -settings.down_max_step, settings.down_period, inputs.now)
    desired = max(recommended, replicas - step)
    if desired >= replicas:
        if recommended >= replicas:
            seconds = f"{window(settings, state.learned):.0f} s"
            return replicas, "Stabilizing", f"demand fell; {recommended} replicas were needed within the last {seconds}"
        return replicas, "StepLimited", f"at most {settings.down_max_step} fewer per {settings.down_period:g} s"
    desired = _consolidated(inputs, desired)
    if desired >= replicas:
        return replicas, "ConsolidationRefused", "the remaining replicas could not hold the running requests"
    return desired, "LoadLow", f"{desired} replicas hold the load with a margin"


def _to_zero(inputs: DecisionInput) -> _Choice:
    """1 -> 0: only after `idle_to_zero` seconds without a request, and if every gateway would hold the next one."""
    settings, signals = inputs.settings, inputs.signals
    if settings.min_replicas > 0:
        return 1, "Steady", "one replica, the minimum"
    if signals.busy or signals.missing:
        return 1, "Steady", "the last replica is in use or gave no report"
    idle = inputs.now - max(inputs.state.last_active, signals.last_arrival)
    if idle < settings.idle_to_zero:
        return 1, "Steady", f"idle for {max(idle, 0.0):.0f} of {settings.idle_to_zero:g} s"
    if not signals.gateways_answering or signals.gateways_silent:
        return 1, "GatewayMissing", "idle, but not every gateway confirms that it would hold a request"
    blocked = _blocked(inputs)
    if blocked:
        return 1, *blocked
    return 0, "Idle", f"no request for {idle:.0f} s"


def _blocked(inputs: DecisionInput) -> tuple[str, str] | None:
    """Reason and message of a condition that forbids any scale-down now, or None."""
    settings, state, signals, now = inputs.settings, inputs.state, inputs.signals, inputs.now
    if signals.queueing:
        return "RequestsWaiting", f"{signals.waiting:.0f} requests wait and {signals.held} are held"
    if signals.pending:
        return "PodsPending", f"{signals.pending} pods are still starting"
    if state.surge_until is not None and now < state.surge_until:
        return "Surge", inputs.demand.surge or f"no scale-down for {state.surge_until - now:.0f} s after a surge"
    if state.panic_until is not None and now < state.panic_until:
        return "Preemptions", f"no scale-down for {state.panic_until - now:.0f} s after a preemption"
    seconds = window(settings, state.learned)
    if state.started is not None and now - state.started < seconds:
        return "Stabilizing", f"less than one window ({seconds:.0f} s) observed since the start"
    return None


def _consolidated(inputs: DecisionInput, desired: int) -> int:
    """The fewest replicas, at least `desired`, that can hold the pinned KV tokens and running rows fast enough.

    Assumes that pods without a sample are full, and that the pods with the smallest pools remain.
    """
    settings, signals, capacity = inputs.settings, inputs.signals, inputs.state.learned.capacity
    pinned = signals.pinned_tokens + signals.missing * settings.kv_target * signals.pod_tokens
    for replicas in range(desired, inputs.observation.current):
        unknown = max(0, replicas - len(signals.pools))
        room = settings.kv_target * (sum(signals.pools[:replicas]) + unknown * signals.pod_tokens)
        rows = ROWS_TARGET * sum(signals.rows[:replicas])
        fast = capacity is None or signals.running <= max(1.0, capacity.rows) * replicas
        if pinned <= room and signals.running <= rows and fast:
            return replicas
    return inputs.observation.current


def _within(at: float | None, seconds: float, now: float) -> bool:
    """True if `at` is within the last `seconds`."""
    return at is not None and now - at < seconds


def _requeue(signals: Signals, observation: Observation, desired: int) -> float:
    if signals.held:
        return HELD_TICK_SECONDS
    return TICK_SECONDS if observation.pods or observation.current or desired else ZERO_TICK_SECONDS

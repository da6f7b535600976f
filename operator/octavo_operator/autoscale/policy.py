"""The scaling policy: stock of KV tokens and depth of the queue against what the pods can hold.

Up at once, down only after a window and only if the remaining pods would hold what is there. Pending pods are supply
until their start is overdue; draining pods are neither supply nor demand (their streams end where they are). A
terminating pod cannot be revived through a Deployment, so a rise during a drain starts a new one.

Pure: the same settings, state, observation and time always give the same decision, so that the operator, the tests and
a replay of recorded inputs run one and the same code.
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
# A wake stands until the replica it asked for is seen, even if no gateway's report confirms it in between.
WAKE_SECONDS = 10.0
TICK_SECONDS = 2.0
HELD_TICK_SECONDS = 1.0
ZERO_TICK_SECONDS = 10.0
# At the most replicas demand moves around what they can do: it is said to be limited until it was not for this long.
LIMITED_SECONDS = 60.0


def decide(settings: ScalingSettings, state: PolicyState, observation: Observation, now: float) -> Decision:
    """How many replicas there should be now."""
    state, observation = current(state, now), _named_once(observation)
    signals = measure(settings, state, observation, now)
    known = learned(settings, state.learned, observation, signals, now)
    surging = state.surge_until is not None and now < state.surge_until
    asked = demand(settings, known, signals, now, state.surge_arrivals if surging else 0.0)
    inputs = DecisionInput(
        settings, replace(state, learned=known), observation, signals, asked, preempting(state, signals), now
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
        demand=asked,
        notice=notice(inputs, reason, message),
    )


def _named_once(observation: Observation) -> Observation:
    """The observation with the first of those that have the same name."""
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
    # What gateways say is enough to go up, and not to go down.
    raised = _up(inputs)
    if raised:
        return raised
    if unknown:
        return unknown
    if replicas == 1:
        return _to_zero(inputs)
    return _down(inputs)


def _missing(inputs: DecisionInput) -> _Choice:
    """What most pods' silence leads to."""
    replicas, fallback = inputs.observation.current, inputs.settings.fallback
    reason = "MetricsPartial" if inputs.signals.gateways_answering else "MetricsUnavailable"
    if replicas < fallback:
        return fallback, reason, f"{silent(inputs.signals)}: fallbackReplicas is {fallback}"
    return replicas, reason, f"{silent(inputs.signals)}: holding"


def _wake(inputs: DecisionInput) -> _Choice:
    """0 -> n: edge-triggered by the first held request, past every stabilisation."""
    settings, signals = inputs.settings, inputs.signals
    if not signals.held and not _within(inputs.state.woken, WAKE_SECONDS, inputs.now):
        return 0, "Idle", "no replicas and no request held"
    # The rate of a load that has just begun is chance: what is held is what there is.
    need = max(1, ceil(max(inputs.demand.stock, inputs.demand.queue) - EPSILON))
    desired = min(need, max(1, budget(inputs.state.changes, settings.up_max_step, settings.up_period, inputs.now)))
    return (
        min(desired, settings.max_replicas),
        "RequestsHeld",
        f"{signals.held} requests held while there is no replica",
    )


def _up(inputs: DecisionInput) -> _Choice | None:
    """More replicas at once, if those there are and those on their way do not suffice; None if they do."""
    settings, state, signals, replicas = inputs.settings, inputs.state, inputs.signals, inputs.observation.current
    supply = max(0, replicas - signals.broken)
    need = state.lows[0][1]
    reason, message = dominant(inputs)
    if signals.many(inputs.preempting) and need <= supply < signals.ready + 1 and not signals.pending and signals.ready:
        # Past the cliff whatever the other signals say: preempted work is computed twice, which keeps the pool full.
        need = supply + 1
        reason, message = "Preemptions", "a pool ran full and preempted running requests"
    if need <= supply:
        return None
    # A broken replica is made up for one at a time: a bad image must not start max_replicas pods.
    wanted = need + min(1, signals.broken)
    allowed = replicas + budget(state.changes, settings.up_max_step, settings.up_period, inputs.now)
    desired = min(wanted, allowed, settings.max_replicas)
    if desired > replicas and signals.failed_starts >= FAILED_STARTS:
        return replicas, "StartsFail", f"{failing(signals)}: no more are added until one does"
    if desired > replicas:
        return desired, reason, message
    if wanted <= replicas:
        return None
    if replicas == settings.max_replicas:
        return replicas, "ScalingLimited", f"{message}: {wanted} replicas needed, maxReplicas is {replicas}"
    return (
        replicas,
        "StepLimited",
        (f"{message}: {wanted} replicas needed, at most {settings.up_max_step} more per {settings.up_period:g} s"),
    )


def _down(inputs: DecisionInput) -> _Choice:
    """Fewer replicas, if the whole window agrees and the remaining ones hold what is there."""
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
        return replicas, "ConsolidationRefused", "the remaining replicas would not hold what is running"
    return desired, "LoadLow", f"{desired} replicas hold the load with a margin"


def _to_zero(inputs: DecisionInput) -> _Choice:
    """1 -> 0, only when nothing has happened for long and a gateway confirms that it will hold the next request."""
    settings, signals = inputs.settings, inputs.signals
    if settings.min_replicas > 0:
        return 1, "Steady", "one replica, the minimum"
    if signals.busy or signals.missing:
        return 1, "Steady", "the last replica is in use or did not report"
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
    """What forbids any scale-down now, or None."""
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
    """The fewest replicas from `desired` up that hold the pinned KV and the running rows, and are fast enough for them.

    Pods without a sample are taken to be full, and the smallest pools are taken to remain.
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
    """Whether that was within the last `seconds`."""
    return at is not None and now - at < seconds


def _requeue(signals: Signals, observation: Observation, desired: int) -> float:
    if signals.held:
        return HELD_TICK_SECONDS
    return TICK_SECONDS if observation.pods or observation.current or desired else ZERO_TICK_SECONDS

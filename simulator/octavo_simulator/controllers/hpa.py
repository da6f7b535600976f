"""Kubernetes' HorizontalPodAutoscaler with a Pods or an External metric, and default behavior.

Source: kubernetes/kubernetes, pkg/controller/podautoscaler/replica_calculator.go (calcPlainMetricReplicas,
GetExternalPerPodMetricReplicas) and horizontal.go (normalizeDesiredReplicasWithBehaviors). KEDA creates such an object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import ceil

from octavo_operator.autoscale.types import Observation
from octavo_simulator.controllers.view import ControllerView, Window, view
from octavo_simulator.scenario import Controller, ReplicaTarget

SYNC_SECONDS = 15.0
TOLERANCE = 0.1
UP_PERIOD = 15.0
UP_PODS = 4
SCRAPE_SECONDS = 2.0

Metric = Callable[[ControllerView, float], Mapping[str, float]]
"""A pod metric: values of the pods that have one, by name."""


def of_pods(values: Iterable[float], target: float, *, current: int, ready: int, pending: int) -> int:
    """Metric of type Pods: `values` of the ready pods that have one.

    Pods without a value count as on target for scale-down and as idle for scale-up; pending pods count as idle for
    scale-up.
    """
    given = list(values)
    if not given:
        return current
    ratio = sum(given) / len(given) / target
    missing, unready = ready - len(given), pending if ratio > 1 else 0
    if not missing and not unready:
        return current if abs(1 - ratio) <= TOLERANCE else ceil(ratio * ready)
    assumed = given + [target if ratio < 1 else 0.0] * missing + [0.0] * unready
    again = sum(assumed) / len(assumed) / target
    if abs(1 - again) <= TOLERANCE or (ratio < 1 < again) or (again < 1 < ratio):
        return current
    wanted = ceil(again * len(assumed))
    turned = (again < 1 and wanted > current) or (again > 1 and wanted < current)
    return current if turned else wanted


def external(total: float, target: float, *, current: int) -> int:
    """Metric of type External with an AverageValue, independent of pods."""
    if current and abs(1 - total / (target * current)) <= TOLERANCE:
        return current
    return ceil(total / target)


def limited_up(wanted: int, at_period_start: int) -> int:
    """The scale-up limit: in 15 seconds at most twice the replicas or four more, whichever is larger."""
    return min(wanted, max(2 * at_period_start, at_period_start + UP_PODS))


def behaviour(wanted: Callable[[Observation, float], int | None], down_window: float) -> Controller:
    """The control loop: evaluates the metric every 15 s; scale-down uses the highest recommendation of the window."""
    window = Window(down_window)
    changes: deque[tuple[float, int]] = deque()
    due = 0.0

    def control(observation: Observation, now: float) -> ReplicaTarget:
        nonlocal due
        current = observation.current
        recommended = wanted(observation, now)
        if now < due and not observation.wake:
            return ReplicaTarget(current, SCRAPE_SECONDS)
        due = now + SYNC_SECONDS
        if recommended is None:
            return ReplicaTarget(current, SCRAPE_SECONDS, "MetricsMissing")
        window.add(now, recommended)
        desired = min(int(window.highest()), current) if recommended < current else recommended
        desired = max(desired, recommended)
        while changes and changes[0][0] <= now - UP_PERIOD:
            changes.popleft()
        before = current - sum(step for _, step in changes)
        desired = max(current, limited_up(desired, before)) if desired > current else desired
        if desired > current:
            changes.append((now, desired - current))
        return ReplicaTarget(desired, SCRAPE_SECONDS, "Metric" if desired != current else "")

    return control


def on_pods(metric: Metric, target: float, down_window: float = 300.0) -> Controller:
    """HPA with a metric of type Pods. From zero a held request starts one replica at once, as with KEDA."""

    def wanted(observation: Observation, now: float) -> int | None:
        state = view(observation, now)
        values = metric(state, now)
        if not state.current:
            return int(state.held > 0)
        if not values:
            return None
        return of_pods(values.values(), target, current=state.current, ready=state.ready, pending=state.pending)

    return behaviour(wanted, down_window)


def on_queue_outside(target: float, down_window: float = 300.0) -> Controller:
    """HPA with a metric of type External: all waiting requests in pods and gateways, as a KEDA scaler reports."""

    def wanted(observation: Observation, now: float) -> int | None:
        state = view(observation, now)
        if not state.loads and not state.gateways_answering:
            return None
        waiting = sum(load.waiting for load in state.loads.values()) + state.held
        return external(waiting, target, current=state.current)

    return behaviour(wanted, down_window)


def queue(state: ControllerView, _: float) -> Mapping[str, float]:
    """Waiting requests of each pod, plus an equal share of the gateways' held requests."""
    share = state.held / len(state.loads) if state.loads else 0.0
    return {name: load.waiting + share for name, load in state.loads.items()}


def duty_cycle(window: float = 30.0) -> Metric:
    """GPU utilization as drivers measure it: the share of time in which any kernel ran."""
    windows: dict[str, Window] = {}
    before: dict[str, tuple[float, float]] = {}

    def metric(state: ControllerView, now: float) -> Mapping[str, float]:
        for name, load in state.loads.items():
            at, busy = before.get(name, (now, load.steps.seconds))
            if now > at:
                share = min(1.0, (load.steps.seconds - busy) / (now - at))
                windows.setdefault(name, Window(window)).add(now, share)
            before[name] = (now, load.steps.seconds)
        return {name: windows[name].mean() for name in state.loads if name in windows}

    return metric

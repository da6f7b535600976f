"""Knative's pod autoscaler on concurrency.

Source: knative/serving, pkg/autoscaler/scaling/autoscaler.go (Scale) and pkg/reconciler/autoscaling/kpa/scaler.go.
Concurrency counts running requests and those in the activator (here: held by gateways), averaged over a stable and a
panic window. Rates are Knative's defaults: 1000 up, 2 down; panic mode at twice the capacity of the ready pods.
"""

from __future__ import annotations

from math import ceil, floor, inf

from octavo_operator.autoscale.types import Observation
from octavo_simulator.controllers.view import Window, view
from octavo_simulator.scenario import Controller, ReplicaTarget

TICK_SECONDS = 2.0
UP_RATE = 1000.0
DOWN_RATE = 2.0
PANIC_THRESHOLD = 2.0
PANIC_SHARE = 0.1


def kpa(
    target: float, stable: float = 60.0, *, delay: float = 0.0, idle_to_zero: float = inf, least: int = 1
) -> Controller:
    """`target`: concurrency of one pod, including the target utilization. `delay`: scale-down delay in seconds.

    Scales down to `least`; to zero after `idle_to_zero` seconds (stable window and grace period) without a request.
    """
    stable_window, panic_window = Window(stable), Window(stable * PANIC_SHARE)
    delayed = Window(max(delay, 1e-9))
    panic_at, most, idle_since = -inf, 0, 0.0

    def control(observation: Observation, now: float) -> ReplicaTarget:
        nonlocal panic_at, most, idle_since
        state = view(observation, now)
        if not state.gateways_answering:
            return ReplicaTarget(state.current, TICK_SECONDS, "MetricsMissing")
        stable_window.add(now, state.active)
        panic_window.add(now, state.active)
        if state.active:
            idle_since = now
        ready = max(1, state.ready)
        by_stable = ceil(stable_window.mean() / target)
        by_panic = ceil(panic_window.mean() / target)
        up, down = ceil(UP_RATE * ready), floor(ready / DOWN_RATE)
        desired = min(max(by_stable, down), up)
        over = by_panic / ready >= PANIC_THRESHOLD
        if over:
            if panic_at == -inf:
                most = 0
            panic_at = now
        elif panic_at + stable < now:
            panic_at = -inf
        if panic_at > -inf:
            most = max(most, desired, min(max(by_panic, down), up))
            desired = most
        delayed.add(now, desired)
        desired = int(delayed.highest())
        if now - idle_since < idle_to_zero and state.current:
            desired = max(1, desired)
        return ReplicaTarget(max(least, desired), TICK_SECONDS, "Panic" if panic_at > -inf else "")

    return control

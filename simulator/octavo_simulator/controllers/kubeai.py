"""KubeAI's rule: active requests, averaged over ten minutes, divided by a target.

Source: substratusai/kubeai, internal/modelautoscaler/autoscaler.go: every 10 s; scale-down requires as many consecutive
recommendations as fit into the scale-down delay (30 s).
"""

from __future__ import annotations

from math import ceil

from octavo_operator.autoscale.types import Observation
from octavo_simulator.controllers.view import Window, view
from octavo_simulator.scenario import Controller, ReplicaTarget

TICK_SECONDS = 10.0


def kubeai(target: float, window: float = 600.0, delay: float = 30.0) -> Controller:
    """`target`: active requests of one replica."""
    average = Window(window)
    needed = ceil(delay / TICK_SECONDS)
    downs = 0

    def control(observation: Observation, now: float) -> ReplicaTarget:
        nonlocal downs
        state = view(observation, now)
        if not state.gateways_answering:
            return ReplicaTarget(state.current, TICK_SECONDS, "MetricsMissing")
        average.add(now, state.active)
        desired = ceil(average.mean() / target)
        if not state.current and state.held:
            desired = max(1, desired)  # the proxy itself requests the first replica
        downs = downs + 1 if desired < state.current else 0
        if desired < state.current and downs <= needed:
            desired = state.current
        return ReplicaTarget(desired, TICK_SECONDS, "")

    return control

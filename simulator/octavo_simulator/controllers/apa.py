"""AIBrix's APA on KV occupancy.

Source: vllm-project/aibrix, pkg/controller/podautoscaler/algorithm/apa.go: with tolerances of 10 % around the target,
at most twice and at least half of the replicas in one step, scale-down by the highest recommendation of 300 s. The
factor applies to ready pods: with all pods it would double every ten seconds while the first ones start.
"""

from __future__ import annotations

from math import ceil, floor
from statistics import fmean

from octavo_operator.autoscale.types import Observation
from octavo_simulator.controllers.view import Window, view
from octavo_simulator.scenario import Controller, ReplicaTarget

TICK_SECONDS = 10.0
TOLERANCE = 0.1
RATE = 2.0


def recommendation(usage: float, target: float, current: int) -> int:
    """Replicas for the mean `usage` of the current pods."""
    ratio = usage / target
    if ratio > 1 + TOLERANCE:
        return min(ceil(current * ratio), ceil(RATE * current))
    if ratio < 1 - TOLERANCE:
        return max(ceil(current * ratio), floor(current / RATE))
    return current


def apa(target: float, down_window: float = 300.0) -> Controller:
    """`target`: KV occupancy of a replica, 0..1."""
    window = Window(down_window)

    def control(observation: Observation, now: float) -> ReplicaTarget:
        state = view(observation, now)
        if not state.current:
            return ReplicaTarget(int(state.held > 0), TICK_SECONDS, "")
        if not state.loads:
            return ReplicaTarget(state.current, TICK_SECONDS, "MetricsMissing")
        recommended = recommendation(fmean(load.kv_occupancy for load in state.loads.values()), target, state.ready)
        window.add(now, recommended)
        desired = min(state.current, int(window.highest())) if recommended < state.current else recommended
        return ReplicaTarget(max(1, desired), TICK_SECONDS, "")

    return control

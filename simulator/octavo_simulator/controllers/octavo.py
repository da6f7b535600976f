"""Octavo: the operator's own `decide` with the operator's input."""

from __future__ import annotations

from collections.abc import Callable

from octavo_operator.autoscale.decision_record import Recorder
from octavo_operator.autoscale.policy import decide
from octavo_operator.autoscale.types import Observation, PolicyState, ScalingSettings
from octavo_simulator.scenario import Controller, ReplicaTarget

KEY = "simulation/model"


def octavo(settings: Callable[[float], ScalingSettings], record: Callable[[bytes], object] | None = None) -> Controller:
    """The scaling policy with its state; `settings` is a function of time, because of schedules.

    `record` gets each decision in the format of the operator's log.
    """
    state, recorder = PolicyState(), Recorder()

    def control(observation: Observation, now: float) -> ReplicaTarget:
        nonlocal state
        wanted = settings(now)
        decision = decide(wanted, state, observation, now)
        if record is not None:
            record(recorder.line(KEY, wanted, state, observation, now, decision))
        state = decision.state
        return ReplicaTarget(decision.desired, decision.requeue, decision.reason)

    return control


def static(replicas: int) -> Controller:
    """A fixed number of replicas."""
    return lambda _observation, _now: ReplicaTarget(replicas, 60.0, "Static")

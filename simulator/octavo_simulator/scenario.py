"""The input of a simulation: a trace, a pod profile, latency objectives, and faults. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from octavo_gateway.routing.candidate import PREFIX_AWARE
from octavo_operator.autoscale.types import Observation
from octavo_simulator.steptime import PodProfile
from octavo_simulator.trace import Trace


@dataclass(frozen=True, slots=True)
class Promise:
    """Latency objectives of a good request: TTFT and mean TPOT in seconds."""

    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class Faults:
    """Injected faults. Times are seconds from the trace's start.

    `loss`: share of the operator's samples that are lost. `outage`: interval in which all are lost. `failed_starts`:
    share of starts that crash, retried after `BACKOFF` seconds. `kills`: times at which a node with a pod fails.
    `slow_starts`: time from which starts take twice as long. `forget`: time from which pods keep losing their cached
    prefixes.
    """

    loss: float = 0.0
    outage: tuple[float, float] = (0.0, 0.0)
    failed_starts: float = 0.0
    kills: tuple[float, ...] = ()
    slow_starts: float = float("inf")
    forget: float = float("inf")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One workload on one kind of pod.

    `spread`: sigma of the log-normal start time around `profile.start`; 0.355 fits 7,531 production model loads (p99
    is 2.3 times p50). `patience`: client timeout in seconds for the first token. `tuning`: seconds at the start on
    which settings may be chosen; the rest is judged. `strategy`: `spec.routing.strategy`.
    `grace`: seconds in which no scaler goes below `initial`, because at first averaging scalers see no load.
    """

    name: str
    trace: Trace
    profile: PodProfile
    promise: Promise
    initial: int = 1
    least: int = 1
    most: int = 64
    grace: float = 0.0
    gateways: int = 2
    spread: float = 0.355
    patience: float = 60.0
    tuning: float = 1200.0
    strategy: str = PREFIX_AWARE
    faults: Faults = field(default_factory=Faults)


@dataclass(frozen=True, slots=True)
class ReplicaTarget:
    """A controller's decision: replicas, and seconds until the next decision."""

    replicas: int
    again: float
    reason: str = ""


Controller = Callable[[Observation, float], ReplicaTarget]
"""Decides from the operator's observation and the time; keeps its own state. Created for each run."""

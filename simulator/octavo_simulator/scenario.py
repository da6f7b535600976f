"""What is simulated: a trace, a kind of pod, what is promised, and what goes wrong. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from octavo_gateway.routing.router import PREFIX_AWARE
from octavo_operator.autoscale.types import Observation
from octavo_simulator.steptime import PodProfile
from octavo_simulator.trace import Trace


@dataclass(frozen=True, slots=True)
class Promise:
    """What a request must get to count: seconds to the first token, and between tokens on average."""

    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong. Times are seconds from the trace's start.

    `loss`: share of the operator's samples that do not come. `outage`: from when to when none does. `failed_starts`:
    share of starts that end in a crash, tried again after `BACKOFF` seconds. `kills`: when a node with a pod dies.
    `slow_starts`: from when on starts take twice as long. `forget`: when every pod loses its cached prefixes, and keeps
    losing them.
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

    `spread`: sigma of the log-normal seconds of a start around `profile.start`; 0.355 is the shape of 7,531 production
    loads (p99 2.3 times p50). `patience`: seconds after which a client goes that got no token. `tuning`: seconds at the
    start that configurations may be chosen on; what is judged comes after. `strategy`: `spec.routing.strategy`.
    `grace`: seconds in which nobody goes below `initial`: at first who averages sees that nothing is needed.
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
    """A controller's answer: replicas, and seconds until it looks again."""

    replicas: int
    again: float
    reason: str = ""


Controller = Callable[[Observation, float], ReplicaTarget]
"""Decides from what the operator sees, with the time; keeps its own state. Made anew for each run."""

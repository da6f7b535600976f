"""What the scaling policy is given and what it answers. Values only: no cluster, no clock.

All times are Unix seconds, all spans seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo_protocol.load import LoadReport, ModelTraffic

Phase = Literal["pending", "ready", "draining", "failed"]


@dataclass(frozen=True, slots=True)
class PodSample:
    """One server pod as last seen.

    `draining`: terminating or marked for it, no longer one of the Deployment's replicas.
    `failed`: still one of the Deployment's replicas, but cannot serve (crash loop, image that cannot be pulled).
    """

    name: str
    phase: Phase
    created: float
    load: LoadReport | None = None
    sampled_at: float = 0.0


@dataclass(frozen=True, slots=True)
class GatewaySample:
    """What one gateway replica last said of this deployment.

    `traffic` is None when it did not answer or does not list the deployment: it will not hold a request for it.
    """

    name: str
    traffic: ModelTraffic | None = None
    sampled_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    """`spec.autoscaling` (and `spec.probes.startupTimeoutSeconds`) of one LLMDeployment.

    `minimum` is the field that says `min_replicas`; `fallback` the fewest replicas while most give no report, 0 to keep
    as many as there are.
    `kv_target` is a share of the pool, 0..1; `overdue_seconds` the age from which a pending pod is no longer supply.
    """

    min_replicas: int
    max_replicas: int
    kv_target: float = 0.75
    queued_per_replica: int = 4
    up_stabilization: float = 0.0
    up_max_step: int = 4
    up_period: float = 30.0
    down_stabilization: float = 300.0
    down_max_step: int = 1
    down_period: float = 60.0
    idle_to_zero: float = 900.0
    overdue_seconds: float = 1800.0
    minimum: str = "minReplicas"
    fallback: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at the world.

    `current` is the child Deployment's `spec.replicas`; `wake` is set when a gateway asked for the deployment since the
    last decision.
    """

    current: int
    pods: tuple[PodSample, ...] = ()
    gateways: tuple[GatewaySample, ...] = ()
    wake: bool = False


@dataclass(frozen=True, slots=True)
class PodCounters:
    """The growing counters of one pod at the previous decision; another `start_time` starts them afresh."""

    name: str
    start_time: float
    preemptions: int
    requests: int


@dataclass(frozen=True, slots=True)
class State:
    """What the policy remembers from one decision to the next. A restart begins with `State()`.

    `highs`/`lows`: recommendations of the down/up window as (time, replicas), kept as monotone queues: the first one is
    the window's maximum/minimum and the length stays small. `changes`: (time, difference) of `current` as observed.
    `pod_tokens`: KV tokens of one pod, kept so that the size of the first pod is known while there is none.
    `woken`: when a gateway last asked. `limited`: when more than the allowed replicas were last needed.
    """

    started: float | None = None
    current: int | None = None
    highs: tuple[tuple[float, int], ...] = ()
    lows: tuple[tuple[float, int], ...] = ()
    changes: tuple[tuple[float, int], ...] = ()
    counters: tuple[PodCounters, ...] = ()
    pod_tokens: int = 0
    panic_until: float = 0.0
    last_active: float = 0.0
    woken: float = float("-inf")
    limited: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Decision:
    """Replicas to write, why, and what was known.

    `reason` is CamelCase for conditions and metrics, `message` a sentence, `inputs` the figures it was made from.
    `requeue`: seconds until the next look.
    """

    desired: int
    reason: str
    message: str
    inputs: str
    state: State
    requeue: float

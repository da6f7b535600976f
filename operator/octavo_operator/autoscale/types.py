"""Input and output types of the scaling policy. Values only: no cluster, no clock.

All times are Unix seconds, all durations seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from octavo_operator.autoscale.arrivals import Arrivals
from octavo_operator.autoscale.capacity import ReplicaCapacity, RequestSizes
from octavo_operator.autoscale.step_cost import Fit
from octavo_protocol.load import LoadReport, ModelTraffic

Phase = Literal["pending", "ready", "draining", "failed"]


@dataclass(frozen=True, slots=True)
class PodSample:
    """One server pod at its last sample.

    `draining`: terminating or annotated for it, no longer one of the Deployment's replicas.
    `failed`: still one of the Deployment's replicas, but unable to serve (crash loop, failed image pull).
    """

    name: str
    phase: Phase
    created: float
    load: LoadReport | None = None
    sampled_at: float = 0.0


@dataclass(frozen=True, slots=True)
class GatewaySample:
    """The last report of one gateway replica on this deployment.

    `traffic` is None if the gateway did not respond or does not list the deployment: it would hold no request for it.
    The counters restart at 0 with another `start_time`.
    """

    name: str
    traffic: ModelTraffic | None = None
    sampled_at: float = 0.0
    start_time: float = 0.0


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """`spec.autoscaling` (and `spec.probes.startupTimeoutSeconds`) of one LLMDeployment.

    `minimum` is the field that sets `min_replicas`; `fallback` the minimum while most pods give no report, 0 to
    keep the current number.
    `kv_target` is a share of the pool, 0..1; `overdue_seconds` the age from which a pending pod is no longer supply.
    `ttft`, `tpot` are target seconds to the first token and per token, 0 for none; `cold_start` is the assumed start
    time of a replica until one was observed.
    """

    min_replicas: int
    max_replicas: int
    kv_target: float = 0.85
    queued_per_replica: int = 4
    up_stabilization: float = 0.0
    up_max_step: int = 4
    up_period: float = 30.0
    down_stabilization: float = 120.0
    down_max_step: int = 1
    down_period: float = 60.0
    idle_to_zero: float = 900.0
    overdue_seconds: float = 1800.0
    minimum: str = "minReplicas"
    fallback: int = 0
    ttft: float = 0.0
    tpot: float = 0.0
    cold_start: float = 60.0


@dataclass(frozen=True, slots=True)
class Observation:
    """One observation of the deployment.

    `current` is the child Deployment's `spec.replicas`; `wake`: a gateway made a wake call since the last decision.
    """

    current: int
    pods: tuple[PodSample, ...] = ()
    gateways: tuple[GatewaySample, ...] = ()
    wake: bool = False


@dataclass(frozen=True, slots=True)
class PodCounters:
    """The counters of one pod at the previous decision; they restart at 0 with another `start_time`."""

    name: str
    start_time: float
    preemptions: int
    requests: int


@dataclass(frozen=True, slots=True)
class GatewayCounters:
    """The request counter of one gateway at time `at`, and the rate per second; None before a second sample."""

    name: str
    start_time: float
    arrivals: int
    at: float
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class PodTotals:
    """The report of one pod at the last update of the estimates."""

    name: str
    at: float
    load: LoadReport


@dataclass(frozen=True, slots=True)
class RequestTotals:
    """Exponentially decaying sums over the last minutes: requests arrived and finished, and their tokens.

    `pinned` KV tokens and `running` rows are summed over the samples at each update.
    """

    requests: float = 0.0
    finished: float = 0.0
    prompt: float = 0.0
    hits: float = 0.0
    generated: float = 0.0
    pinned: float = 0.0
    running: float = 0.0


@dataclass(frozen=True, slots=True)
class Learned:
    """Estimates of load and replicas. `at`: the last decision; `learned_at`: the last update from the pods' reports.

    `pod_rate`: requests per second that pods counted, at time `counted`. `starting`: pods observed while they start;
    `cold_starts`: the latest start times in seconds. `capacity`: that of the step model times `model_ratio`, the share
    of the model's throughput that full replicas reach. `spread`: the maximum dispersion of arrivals, decaying.
    """

    at: float | None = None
    learned_at: float | None = None
    gateways: tuple[GatewayCounters, ...] = ()
    arrivals: Arrivals = field(default_factory=Arrivals)
    pods: tuple[PodTotals, ...] = ()
    pod_rate: float | None = None
    counted: float | None = None
    totals: RequestTotals = field(default_factory=RequestTotals)
    fit: Fit = field(default_factory=Fit)
    starting: tuple[str, ...] = ()
    cold_starts: tuple[float, ...] = ()
    sizes: RequestSizes | None = None
    capacity: ReplicaCapacity | None = None
    model_ratio: float = 1.0
    spread: float = 1.0


@dataclass(frozen=True, slots=True)
class PolicyState:
    """The policy's state between decisions. After a restart it is `PolicyState()`.

    `highs`/`lows`: recommendations of the down/up window as (time, replicas), kept as monotone queues: the first one is
    the window's maximum/minimum and the length stays small. `changes`: (time, difference) of the observed `current`.
    `pod_tokens`: KV tokens of one pod, kept so that the size is known while there is no pod.
    `panic_until`: no scale-down after preemptions. `surge_until`: end of the surge, in which the load of the last
    seconds counts in full; `surge_arrivals` is its maximum so far.
    `woken`: time of the last wake call. `limited`: when the demand last exceeded maxReplicas.
    `missing_since`: since when some ready pod gives no report. None means never.
    """

    started: float | None = None
    current: int | None = None
    highs: tuple[tuple[float, int], ...] = ()
    lows: tuple[tuple[float, int], ...] = ()
    changes: tuple[tuple[float, int], ...] = ()
    counters: tuple[PodCounters, ...] = ()
    pod_tokens: int = 0
    panic_until: float | None = None
    surge_until: float | None = None
    surge_arrivals: float = 0.0
    last_active: float = 0.0
    woken: float | None = None
    limited: float | None = None
    missing_since: float | None = None
    learned: Learned = field(default_factory=Learned)


@dataclass(frozen=True, slots=True)
class Demand:
    """Replicas needed by each term, not rounded; an unknown term is 0.

    `rate`: arriving requests. `stock`: KV tokens pinned, waiting and held. `queue`: requests waiting and held.
    `ttft`: prompts that would still wait when a replica started now is ready.
    `arrivals`: forecast requests per second when a replica started now is ready, after `cold_start` seconds.
    `surge`: why the load of the last seconds counts in full, as text; `lately`: lower confidence bound of their rate.
    `room`: the headroom for random variation in `rate`.
    """

    rate: float = 0.0
    stock: float = 0.0
    queue: float = 0.0
    ttft: float = 0.0
    arrivals: float = 0.0
    dispersion: float = 1.0
    cold_start: float = 0.0
    surge: str = ""
    lately: float = 0.0
    room: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """The desired replicas, with reason and inputs.

    `reason` is CamelCase for conditions and metrics, `message` a sentence, `inputs` a line with the input figures.
    `requeue`: seconds until the next decision. `notice`: reason and message of a lasting state, for a condition.
    """

    desired: int
    reason: str
    message: str
    inputs: str
    state: PolicyState
    requeue: float
    demand: Demand = field(default_factory=Demand)
    notice: tuple[str, str] | None = None

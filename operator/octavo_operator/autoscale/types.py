"""What the scaling policy is given and what it answers. Values only: no cluster, no clock.

All times are Unix seconds, all spans seconds.
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

    `traffic` is None when it did not answer or does not list the deployment: it will not hold a request for it. Its
    counters begin anew with another `start_time`.
    """

    name: str
    traffic: ModelTraffic | None = None
    sampled_at: float = 0.0
    start_time: float = 0.0


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """`spec.autoscaling` (and `spec.probes.startupTimeoutSeconds`) of one LLMDeployment.

    `minimum` is the field that says `min_replicas`; `fallback` the fewest replicas while most give no report, 0 to keep
    as many as there are.
    `kv_target` is a share of the pool, 0..1; `overdue_seconds` the age from which a pending pod is no longer supply.
    `ttft`, `tpot` are target seconds to the first token and per token, 0 for none; `cold_start` is how long a replica
    takes to start as long as none was seen to.
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
class GatewayCounters:
    """Requests one gateway had counted at time `at`, and their rate per second then; None before a difference."""

    name: str
    start_time: float
    arrivals: int
    at: float
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class PodTotals:
    """What one pod said at the last lesson."""

    name: str
    at: float
    load: LoadReport


@dataclass(frozen=True, slots=True)
class RequestTotals:
    """Sums of the last minutes, older ones counting less: requests that came and that ended, and their tokens.

    `pinned` KV tokens over `running` rows, both at the moments of the lessons.
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
    """What was learned of load and replicas. `at` is the last look, `taught` the last lesson from the pods.

    `pod_rate`: requests per second that pods counted, at time `counted`. `starting`: pods seen to start; `cold_starts`:
    seconds that the last ones took. `capacity` is that of the model times `slower`, what full replicas were seen to do
    of it. `spread` is the largest dispersion of arrivals lately, fading.
    """

    at: float | None = None
    taught: float | None = None
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
    slower: float = 1.0
    spread: float = 1.0


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What the policy remembers from one decision to the next. A restart begins with `PolicyState()`.

    `highs`/`lows`: recommendations of the down/up window as (time, replicas), kept as monotone queues: the first one is
    the window's maximum/minimum and the length stays small. `changes`: (time, difference) of `current` as observed.
    `pod_tokens`: KV tokens of one pod, kept so that the size of the first pod is known while there is none.
    `panic_until`: no scale-down after preemptions. `surge_until`: the load of the last seconds counts in full,
    at its most so far, `surge_arrivals`.
    `woken`: when a gateway last asked. `limited`: when more than the allowed replicas were last needed.
    `missing_since`: since when some ready pod gives no report. None is never.
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
    """Replicas that are asked for, by what asks for them, not rounded; a term that is not known is 0.

    `rate`: requests that come. `stock`: KV tokens pinned, waiting and held. `queue`: requests waiting and held.
    `ttft`: prompts that would still be there when a replica started now is ready.
    `arrivals` per second are reckoned with when a replica started now is ready, after `cold_start` seconds.
    `surge`: why the load of the last seconds counts in full, in words; `lately`: their requests per second, surely.
    `room`: the part of `rate` that is there for chance.
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
    """Replicas to write, why, and what was known.

    `reason` is CamelCase for conditions and metrics, `message` a sentence, `inputs` the figures it was made from.
    `requeue`: seconds until the next look. `notice`: a state that lasts and is worth a condition, as a word and a
    sentence.
    """

    desired: int
    reason: str
    message: str
    inputs: str
    state: PolicyState
    requeue: float
    demand: Demand = field(default_factory=Demand)
    notice: tuple[str, str] | None = None

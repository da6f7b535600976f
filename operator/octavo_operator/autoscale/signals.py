"""From samples to signals: sums of tokens and requests, with missing and impossible samples set aside.

Demand is a sum over pods divided by what one pod can hold, never an average times the replica count: the sum needs no
correction for pods that are still starting, and lets them count as supply.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low

from octavo_operator.autoscale.types import GatewaySample, Observation, PodSample, Settings, State
from octavo_protocol.load import LoadReport, ModelTraffic

# Pods are sampled every 2 s; one or two lost samples are noise, more are a missing pod.
FRESH_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Signals:
    """Sums over the deployment. Tokens are KV tokens; `pools` are the KV tokens of each sampled ready pod, ascending.

    `missing`: ready pods without a usable sample. `broken`: replicas that cannot be counted on (failed, or pending for
    too long). `kv_demand`, `queue_demand`: replicas that the stock and the queue ask for, not rounded.
    """

    ready: int
    pending: int
    draining: int
    broken: int
    missing: int
    pools: tuple[int, ...]
    rows: tuple[int, ...]
    pod_tokens: int
    pinned_tokens: int
    pinned_blocks: int
    total_blocks: int
    running: int
    waiting: int
    waiting_tokens: int
    held: int
    held_tokens: int
    in_flight: int
    last_arrival: float
    gateways_answering: int
    gateways_silent: int
    budget: int

    @property
    def busy(self) -> bool:
        """Whether any request is known to be waiting, running or on its way."""
        return bool(self.running or self.waiting or self.pinned_tokens or self.held or self.in_flight)


def measure(settings: Settings, state: State, observation: Observation, now: float) -> Signals:
    """Sum up one observation."""
    pods = observation.pods
    ready = [pod for pod in pods if pod.phase == "ready"]
    starting = [pod for pod in pods if pod.phase == "pending"]
    overdue = sum(now - pod.created > settings.overdue_seconds for pod in starting)
    sampled = [load for pod in ready if (load := usable(pod, now))]
    # A pod that flapped to not ready keeps its demand: its requests will come back through another pod.
    loads = sampled + [load for pod in starting if (load := usable(pod, now))]
    pools = tuple(sorted(load.blocks_total * load.block_size for load in sampled))
    pod_tokens = median_low(pools) if pools else state.pod_tokens
    pinned_tokens = sum(load.blocks_pinned * load.block_size for load in loads)
    waiting = sum(load.waiting for load in loads)
    waiting_tokens = sum(load.waiting_tokens for load in loads)
    traffic = [t for gateway in observation.gateways if (t := answering(gateway, now))]
    held = sum(t.held for t in traffic)
    held_tokens = sum(t.held_prompt_tokens for t in traffic)
    return Signals(
        ready=len(ready),
        pending=len(starting) - overdue,
        draining=sum(pod.phase == "draining" for pod in pods),
        broken=overdue + sum(pod.phase == "failed" for pod in pods),
        missing=len(ready) - len(sampled),
        pools=pools,
        rows=tuple(sorted(load.max_running for load in sampled)),
        pod_tokens=pod_tokens,
        pinned_tokens=pinned_tokens,
        pinned_blocks=sum(load.blocks_pinned for load in loads),
        total_blocks=sum(load.blocks_total for load in loads),
        running=sum(load.running for load in loads),
        waiting=waiting,
        waiting_tokens=waiting_tokens,
        held=held,
        held_tokens=held_tokens,
        in_flight=sum(t.in_flight for t in traffic),
        last_arrival=max((t.last_arrival for t in traffic), default=0.0),
        gateways_answering=len(traffic),
        gateways_silent=len(observation.gateways) - len(traffic),
        budget=median_low(load.max_batched_tokens for load in sampled) if sampled else 0,
    )


def usable(pod: PodSample, now: float) -> LoadReport | None:
    """The pod's report, or None when it is too old or cannot be true."""
    load = pod.load
    if load is None or now - pod.sampled_at > FRESH_SECONDS:
        return None
    counts = (load.blocks_pinned, load.running, load.waiting, load.waiting_tokens, load.preemptions, load.requests)
    if min(counts) < 0 or load.block_size <= 0 or not 0 < load.blocks_total >= load.blocks_pinned:
        return None
    return load


def answering(gateway: GatewaySample, now: float) -> ModelTraffic | None:
    """What the gateway says of the deployment, or None when that is too old or cannot be true."""
    traffic = gateway.traffic
    if traffic is None or now - gateway.sampled_at > FRESH_SECONDS:
        return None
    return traffic if min(traffic.held, traffic.held_prompt_tokens, traffic.in_flight) >= 0 else None

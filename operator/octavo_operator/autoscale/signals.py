"""From samples to signals: sums of tokens and requests; missing and impossible samples are excluded.

Demand is a sum over pods divided by the capacity of one pod, never an average times the replica count. The sum needs no
correction for pods that are still starting, so they can count as supply.

Values are robust against a single pod: of three or more, each pod adds at most the median plus one replica's worth.
Another replica would not shorten the queue of a single overloaded pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median_low

from octavo_operator.autoscale.types import GatewaySample, Observation, PodSample, PolicyState, ScalingSettings
from octavo_protocol.load import LoadReport, ModelTraffic

# Pods are sampled every 2 s. A sample is used as it is for FRESH_SECONDS. An older one is combined with the tokens that
# gateways have in flight to the pod. After STALE_SECONDS it is discarded.
FRESH_SECONDS = 5.0
STALE_SECONDS = 30.0
# Plausibility limits: no pool or queue holds so many tokens, no counter reaches so high.
_TOKENS_MOST = 10**12
_COUNT_MOST = 10**15
# From this many pods on a single one cannot determine the median.
FEW = 3


@dataclass(frozen=True, slots=True)
class Signals:
    """Sums over the deployment. Tokens are KV tokens; `pools` are the KV tokens of each sampled ready pod, ascending.

    `reports`: the plausible ones, by pod. `missing`: ready pods without a usable sample. `broken`: replicas that are
    failed or pending for too long; `failed_starts`: those of them that are newer than every ready pod.
    `starting`: ages in seconds of the pending pods. `pinned_tokens` of missing pods are the gateways' in-flight tokens;
    `stock` adds the tokens that waiting sequences will pin. `prompts`: uncached prompt tokens. `crowded`: pods with
    waiting requests.
    """

    ready: int
    pending: int
    draining: int
    broken: int
    failed_starts: int
    missing: int
    reports: Mapping[str, LoadReport]
    pools: tuple[int, ...]
    rows: tuple[int, ...]
    budget: int
    pod_tokens: int
    starting: tuple[float, ...]
    pinned_tokens: float
    pinned_blocks: int
    total_blocks: int
    running: float
    waiting: float
    stock: float
    prompts: float
    crowded: int
    held: int
    held_tokens: int
    oldest_hold: float
    in_flight: int
    last_arrival: float
    gateways_answering: int
    gateways_silent: int

    @property
    def busy(self) -> bool:
        """True if any known request waits, runs or is in flight."""
        return bool(self.running or self.waiting or self.pinned_tokens or self.held or self.in_flight)

    @property
    def queueing(self) -> bool:
        """True if requests wait for replicas: held by gateways, or waiting in more than a few pods."""
        return bool(self.held) or self.many(self.crowded)

    @property
    def blind(self) -> bool:
        """True if most ready pods give no report."""
        return 2 * self.missing > self.ready

    def many(self, pods: int) -> bool:
        """True if `pods` are too many to be outliers: more than a third of the reporting pods."""
        return pods > len(self.reports) // FEW


def measure(settings: ScalingSettings, state: PolicyState, observation: Observation, now: float) -> Signals:
    """The signals of one observation."""
    pods = observation.pods
    ready = [pod for pod in pods if pod.phase == "ready"]
    starting = [pod for pod in pods if pod.phase == "pending"]
    overdue = [pod for pod in starting if now - pod.created > settings.overdue_seconds]
    broken = [*overdue, *(pod for pod in pods if pod.phase == "failed")]
    traffic = [t for gateway in observation.gateways if (t := answering(gateway, now))]
    sent = _sent(traffic)
    # The demand of a pod that became unready still counts: its requests will return through another pod.
    reports = {pod.name: load for pod in (*ready, *starting) if (load := usable(pod, now))}
    sampled = [reports[pod.name] for pod in ready if pod.name in reports]
    pools = tuple(sorted(load.blocks_total * load.block_size for load in sampled))
    pod_tokens = median_low(pools) if pools else state.pod_tokens
    sizes = state.learned.sizes
    growth = sizes.answer / 2 if sizes else 0.0
    pinned: list[int] = []
    stock: list[float] = []
    running, waiting, prompts = [], [], []
    for pod in (*ready, *starting):
        load = reports.get(pod.name)
        if load is None:
            pinned.append(sent.get(pod.name, 0))
            stock.append(pinned[-1])
            continue
        tokens = load.blocks_pinned * load.block_size
        old = now - pod.sampled_at > FRESH_SECONDS
        pinned.append(max(tokens, sent.get(pod.name, 0)) if old else tokens)
        stock.append(pinned[-1] + load.waiting_tokens + growth * load.waiting)
        running.append(load.running)
        waiting.append(load.waiting)
        prompts.append(load.uncached_prompt_tokens)
    replica = settings.kv_target * pod_tokens
    return Signals(
        ready=len(ready),
        pending=len(starting) - len(overdue),
        draining=sum(pod.phase == "draining" for pod in pods),
        broken=len(broken),
        failed_starts=_failed_starts(ready, broken),
        missing=len(ready) - len(sampled),
        reports=reports,
        pools=pools,
        rows=tuple(sorted(load.max_running for load in sampled)),
        budget=median_low(load.max_batched_tokens for load in sampled) if sampled else 0,
        pod_tokens=pod_tokens,
        starting=tuple(max(0.0, now - pod.created) for pod in starting if pod not in overdue),
        pinned_tokens=_robust_sum(pinned, replica),
        pinned_blocks=sum(load.blocks_pinned for load in reports.values()),
        total_blocks=sum(load.blocks_total for load in reports.values()),
        running=_robust_sum(running, median_low(load.max_running for load in sampled) if sampled else 0),
        waiting=_robust_sum(waiting, settings.queued_per_replica),
        stock=_robust_sum(stock, replica),
        prompts=_robust_sum(prompts, replica),
        crowded=sum(count > 0 for count in waiting),
        held=sum(t.held for t in traffic),
        held_tokens=sum(t.held_prompt_tokens for t in traffic),
        oldest_hold=max((t.oldest_hold for t in traffic), default=0.0),
        in_flight=sum(t.in_flight for t in traffic),
        last_arrival=min(max((t.last_arrival for t in traffic), default=0.0), now),
        gateways_answering=len(traffic),
        gateways_silent=len(observation.gateways) - len(traffic),
    )


def usable(pod: PodSample, now: float) -> LoadReport | None:
    """The pod's report, or None if it is stale or implausible."""
    load = pod.load
    if load is None or abs(now - pod.sampled_at) > STALE_SECONDS:
        return None
    counts = (load.blocks_pinned, load.running, load.waiting, load.preemptions, load.requests, load.max_running)
    tokens = (load.waiting_tokens, load.uncached_prompt_tokens, load.max_batched_tokens)
    totals = (load.prompt_tokens, load.generation_tokens, load.prefix_hit_tokens)
    if min(counts) < 0 or min(tokens) < 0 or min(totals) < 0 or load.block_size <= 0:
        return None
    if max(counts) > _COUNT_MOST or max(tokens) > _TOKENS_MOST or max(totals) > _COUNT_MOST:
        return None
    if not 0 < load.blocks_total >= load.blocks_pinned or load.blocks_total * load.block_size > _TOKENS_MOST:
        return None
    return load if isfinite(load.start_time) else None


def answering(gateway: GatewaySample, now: float) -> ModelTraffic | None:
    """The gateway's traffic report on the deployment, or None if it is stale or implausible."""
    traffic = gateway.traffic
    if traffic is None or abs(now - gateway.sampled_at) > STALE_SECONDS / 2:
        return None
    counts = (traffic.held, traffic.held_prompt_tokens, traffic.in_flight, traffic.arrivals)
    possible = min(counts) >= 0 and max(counts) <= _COUNT_MOST
    times = (gateway.start_time, traffic.oldest_hold, traffic.last_arrival)
    return traffic if possible and all(map(isfinite, times)) else None


def _sent(traffic: Sequence[ModelTraffic]) -> dict[str, int]:
    """In-flight tokens of all gateways, by pod."""
    sent: dict[str, int] = {}
    for report in traffic:
        for name, tokens in report.pods.items():
            sent[name] = sent.get(name, 0) + min(max(0, tokens), _TOKENS_MOST)
    return sent


def _robust_sum(values: Sequence[float], replica: float) -> float:
    """The sum of the values, each clipped to the median plus `replica`."""
    if len(values) < FEW:
        return sum(values)
    most = median_low(values) + replica
    return sum(min(value, most) for value in values)


def _failed_starts(ready: Sequence[PodSample], broken: Sequence[PodSample]) -> int:
    newest = max((pod.created for pod in ready), default=float("-inf"))
    return sum(pod.created > newest for pod in broken)

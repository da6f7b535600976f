"""A small model of replicas behind a gateway: requests flow through them by Little's law, two seconds at a time."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

from octavo_operator.autoscale.policy import decide
from octavo_operator.autoscale.types import (
    Decision,
    GatewaySample,
    Observation,
    PodSample,
    PolicyState,
    ScalingSettings,
)
from octavo_protocol.load import LoadReport, ModelTraffic, StepSums

TICK = 2.0
SUBSTEPS = 4


@dataclass
class Server:
    """One replica: `n` requests in work and `q` waiting, as fluids."""

    name: str
    created: float
    ready_at: float
    n: float = 0.0
    q: float = 0.0
    requests: int = 0
    generated: float = 0.0
    sums: dict = field(default_factory=lambda: dict.fromkeys(StepSums.__struct_fields__, 0.0))
    lies: dict = field(default_factory=dict)


@dataclass
class Cluster:
    """Requests of `prompt` and `answer` tokens; `step` is seconds of a step by (base, prefill, row, context)."""

    settings: ScalingSettings
    prompt: float = 500.0
    answer: float = 200.0
    step: tuple = (0.012, 2e-5, 3e-4, 1e-7)
    rows: int = 64
    blocks: int = 4000
    start: float = 60.0
    seed: int = 1
    now: float = 1_000_000.0
    servers: list[Server] = field(default_factory=list)
    state: PolicyState = field(default_factory=PolicyState)
    held: float = 0.0
    arrived: int = 0
    made: int = 0
    current: int = 1
    last_arrival: float = 0.0
    gateway_start: float = 5.0
    lost: float = 0.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.current = max(1, self.settings.min_replicas)
        for _ in range(self.current):
            self._create(ready=True)

    def capacity(self) -> float:
        """Requests per second of one replica that is as full as its rows allow."""
        base, prefill, row, context = self.step
        full = base + self.rows * (
            prefill * self.prompt / self.answer + row + context * (self.prompt + self.answer / 2)
        )
        return self.rows / (self.answer * full)

    def tick(self, lam: float, *, steady: bool = False) -> Decision:
        """Two seconds of load, then a decision that is carried out."""
        came = lam * TICK if steady else self._poisson(lam * TICK)
        self.now += TICK
        self.arrived += round(came)
        self.last_arrival = self.now if came else self.last_arrival
        ready = [s for s in self.servers if s.ready_at <= self.now]
        self.held += round(came)
        if ready:
            # Each request goes to the server with the least, the first of equals.
            heap = [(server.n + server.q, i) for i, server in enumerate(ready)]
            heapq.heapify(heap)
            for _ in range(round(self.held)):
                i = heap[0][1]
                ready[i].q += 1
                ready[i].requests += 1
                heapq.heapreplace(heap, (ready[i].n + ready[i].q, i))
            self.held = 0.0
        for server in ready:
            self._serve(server)
        decision = self.decide(self.settings, self.state, self.observe(), self.now)
        self.state = decision.state
        while len(self.servers) < decision.desired:
            self._create()
        for server in sorted(self.servers, key=lambda s: (-s.ready_at, s.n))[: len(self.servers) - decision.desired]:
            self.servers.remove(server)
            self.held += round(server.n + server.q)
        self.current = decision.desired
        return decision

    def decide(self, settings: ScalingSettings, state: PolicyState, seen: Observation, now: float) -> Decision:
        """The decision of one look."""
        return decide(settings, state, seen, now)

    def observe(self) -> Observation:
        pods = tuple(
            PodSample(s.name, "ready", s.created, self._report(s), self.now)
            if s.ready_at <= self.now
            else PodSample(s.name, "pending", s.created)
            for s in self.servers
        )
        traffic = ModelTraffic(
            namespace="d",
            name="m",
            arrivals=self.arrived,
            arrival_prompt_tokens=round(self.arrived * self.prompt),
            in_flight=0,
            held=round(self.held),
            held_prompt_tokens=round(self.held * self.prompt),
            oldest_hold=0.0,
            last_arrival=self.last_arrival,
        )
        return Observation(self.current, pods, (GatewaySample("gw", traffic, self.now, self.gateway_start),))

    def _create(self, *, ready: bool = False) -> None:
        self.made += 1
        begin = self.now - self.start if ready else self.now
        self.servers.append(Server(f"p{self.made}", begin, begin + self.start))

    def _poisson(self, mean: float) -> int:
        if mean > 50:
            return max(0, round(self.random.gauss(mean, mean**0.5)))
        total, count = self.random.expovariate(1.0), 0
        while total < mean:
            total, count = total + self.random.expovariate(1.0), count + 1
        return count

    def _serve(self, server: Server) -> None:
        base, prefill, row, context = self.step
        mean = self.prompt + self.answer / 2
        for _ in range(SUBSTEPS):
            seconds = (1 - self.lost) * TICK / SUBSTEPS
            begun = min(server.q, self.rows - server.n)
            server.q -= begun
            server.n += begun
            n = server.n
            if n <= 0.01:
                continue
            chunk = prefill * begun * self.prompt
            length = base + row * n + context * n * mean
            count = max(0.0, (seconds - chunk)) / length
            done = min(n, n * count / self.answer)
            server.generated += n * count
            server.n -= done
            x = (begun * self.prompt / count if count else 0.0, n, n * mean)
            timed = chunk / count + length if count else 0.0
            names = ("prefill", "rows", "context")
            s = server.sums
            s["count"] += count
            s["seconds"] += timed * count
            for i, a in enumerate(names):
                s[a] += x[i] * count
                s[f"seconds_{a}"] += timed * x[i] * count
                for j, b in enumerate(names[i:], i):
                    s[f"{a}_{b}"] += x[i] * x[j] * count

    def _report(self, server: Server) -> LoadReport:
        mean = self.prompt + self.answer / 2
        pinned = min(self.blocks, round(server.n * mean / 32))
        steps = {k: v if k.startswith("seconds") else round(v) for k, v in server.sums.items()}
        values = {
            "sequence": 1,
            "start_time": server.ready_at,
            "model": "m",
            "block_size": 32,
            "blocks_total": self.blocks,
            "blocks_pinned": pinned,
            "blocks_cached": 0,
            "running": round(server.n),
            "waiting": round(server.q),
            "waiting_tokens": round(server.q * self.prompt),
            "uncached_prompt_tokens": round(server.q * self.prompt),
            "oldest_wait": 0.0,
            "preemptions": 0,
            "requests": server.requests,
            "prompt_tokens": round(server.requests * self.prompt),
            "generation_tokens": round(server.generated),
            "prefix_hit_tokens": 0,
            "max_running": self.rows,
            "max_batched_tokens": 2048,
            "max_waiting": 1000,
            "ready": True,
            "draining": False,
            "steps": StepSums(**steps),
        }
        return LoadReport(**{**values, **server.lies})

"""A model's pool, and pods that compute one token for each running request in a tick, under virtual time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from octavo_gateway.api.errors import ApiError
from octavo_gateway.discovery.endpoints import Deployment, Endpoint, table
from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.registry import ModelRegistry
from octavo_gateway.pool.reservation import Ending, RequestOutcome, Reservation
from octavo_gateway.queueing.hold_queue import Bounds, QueuedRequest, RequestAttributes
from octavo_gateway.routing.prompt_features import Prompt
from octavo_protocol.load import LoadReport

ZERO = dict.fromkeys([field.name for field in msgspec.structs.fields(LoadReport) if field.type is int], 0)


@dataclass
class Job:
    """A request: `prompt` tokens, `output` tokens to come."""

    attributes: RequestAttributes
    prompt: int
    output: int
    reservation: Reservation
    made: int = 0


@dataclass
class Pod:
    """`peak`: the most requests there at once; `most`: the most KV tokens that they would have taken by their ends."""

    name: str
    blocks: int
    rows: int
    jobs: list[Job] = field(default_factory=list)
    speaks: bool = True
    peak: int = 0
    most: int = 0

    def used(self) -> int:
        return sum(job.prompt + job.made for job in self.jobs)

    def report(self) -> LoadReport:
        fixed = {"start_time": 1.0, "model": "m", "oldest_wait": 0.0, "ready": True, "draining": False}
        return LoadReport(**(ZERO | fixed | {
            "block_size": 16, "blocks_total": self.blocks, "blocks_pinned": min(self.blocks, -(-self.used() // 16)),
            "running": min(self.rows, len(self.jobs)), "waiting": max(0, len(self.jobs) - self.rows),
            "max_running": self.rows, "max_batched_tokens": 512, "max_waiting": 1000,
        }))  # fmt: skip


class Town:
    """`send` a request, `tick` the time. `done` counts answers by tenant, `served` their cost, `refused` errors."""

    def __init__(self, *pods: Pod, bounds: Bounds | None = None, hold: bool = True, gateways: int = 1) -> None:
        self.now = 1000.0
        self.pods = {pod.name: pod for pod in pods}
        self.registry = ModelRegistry(bounds or Bounds(), lambda: self.now, random.Random(1).random)
        self._hold = hold
        self.open()
        self.pool.selector.gateways = gateways
        self.waiting: list[tuple[QueuedRequest[Reservation], int, int]] = []
        self.done: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        self.refused: list[ApiError] = []
        self.order: list[RequestAttributes] = []

    @property
    def pool(self) -> ModelPool:
        found = self.registry.find("m")
        assert found is not None
        return found.pool

    def open(self, *, ready: bool = True) -> None:
        """All pods take requests, or none does."""
        ends = tuple(Endpoint(name, name, name, ready=ready) for name in self.pods)
        self.registry.update(table([Deployment("ns", "d", ("m",), hold=self._hold, endpoints=ends)]))

    def send(self, prompt: int = 10, output: int = 10, attributes: RequestAttributes | None = None) -> bool:
        """One request; False when it was refused at once."""
        attributes = attributes or RequestAttributes()
        asked = Prompt(prompt, 4 * prompt)
        reservation = self.pool.reserve(asked, attributes)
        if reservation is not None:
            self._start(reservation, attributes, prompt, output)
            return True
        try:
            self.waiting.append((self.pool.hold(4 * prompt, asked, attributes), prompt, output))
        except ApiError as error:
            self.refused.append(error)
            return False
        return True

    def tick(self, *, report: bool = True) -> None:
        """Those whose turn came start, every running request makes a token, pods report."""
        self.now += 0.1
        self._begin_granted()
        for pod in self.pods.values():
            for job in list(pod.jobs[: pod.rows]):
                job.made += 1
                job.reservation.progress(1)
                if job.made == job.output:
                    pod.jobs.remove(job)
                    self.done[job.attributes.tenant] += 1
                    self.served[job.attributes.tenant] += job.prompt + 2 * job.output
                    self.end(job)
                    self._begin_granted()
            if report and pod.speaks:
                self.heard(pod)
        self.pool.dispatch()
        self._begin_granted()

    def end(self, job: Job) -> None:
        """The answer of a request ends with what was made of it."""
        self.pool.settle(RequestOutcome(job.reservation, Ending.FINISHED, job.prompt, job.made))

    def heard(self, pod: Pod) -> None:
        """The pod's report comes."""
        replica = self.pool.replicas[pod.name]
        replica.asked(self.now)
        self.pool.take_report(replica, pod.report(), 0)

    def _begin_granted(self) -> None:
        ready = [entry for entry in self.waiting if entry[0].granted.done()]
        self.waiting = [entry for entry in self.waiting if not entry[0].granted.done()] if ready else self.waiting
        for queued, prompt, output in ready:
            error = queued.granted.exception()
            if error is None:
                self._start(queued.granted.result(), queued.attributes, prompt, output)
            else:
                assert isinstance(error, ApiError)
                self.refused.append(error)

    def _start(self, reservation: Reservation, attributes: RequestAttributes, prompt: int, output: int) -> None:
        pod = self.pods[reservation.replica.endpoint.name]
        pod.jobs.append(Job(attributes, prompt, output, reservation))
        pod.peak = max(pod.peak, len(pod.jobs))
        pod.most = max(pod.most, sum(job.prompt + job.output for job in pod.jobs))
        self.order.append(attributes)

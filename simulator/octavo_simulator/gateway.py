"""The gateway's own run-time objects under simulated time: its choice of a pod, its counts and its hold queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from octavo_gateway.endpoints import Deployment, Endpoint
from octavo_gateway.fleet import Backend, Lease
from octavo_gateway.hold import Bounds, HoldQueue, Ticket
from octavo_gateway.prompts import Prompt
from octavo_protocol.load import LoadReport, ModelTraffic
from octavo_simulator.job import Job

NAMESPACE, NAME = "simulation", "model"
# A prompt token is about four bytes of a request's body.
_BYTES_PER_TOKEN = 4


@dataclass(slots=True, eq=False)
class _Turn:
    """Stands for the future that a held request waits on: its turn goes to a list instead of an event loop."""

    job: Job
    turns: list[tuple[Job, Lease]]

    def set_result(self, lease: Lease) -> None:
        self.turns.append((self.job, lease))

    def done(self) -> bool:
        return False

    def cancel(self) -> None:
        """Nobody waits for it."""


class Gateway:
    """One gateway replica in front of one deployment. `clock` is simulated time, `random` gives numbers in [0, 1)."""

    def __init__(self, bounds: Bounds, start: float, clock: Callable[[], float], random: Callable[[], float]) -> None:
        queue: HoldQueue[Lease] = HoldQueue(bounds)
        self._clock = clock
        self._start = start
        self._backend = Backend(self._deployment(()), queue, clock, random)
        self._held: dict[int, Ticket[Lease]] = {}
        # Held requests whose turn has come, for the cluster to send.
        self.turns: list[tuple[Job, Lease]] = []

    @property
    def held(self) -> int:
        """Requests that wait here."""
        return len(self._held)

    def lease(self, job: Job, *, again: bool = False) -> Lease | None:
        """A place on a pod for an arriving request; None when none accepts. `again`: it was counted before."""
        if not again:
            self._backend.arrived(job.request.prompt)
        return self._backend.lease(_prompt(job))

    def hold(self, job: Job) -> bool:
        """Let a request wait; False when the queue is full."""
        tokens = job.request.prompt
        turn = cast("Any", _Turn(job, self.turns))
        ticket: Ticket[Lease] = Ticket(tokens * _BYTES_PER_TOKEN, tokens, self._clock(), turn, _prompt(job))
        if not self._backend.queue.offer(ticket):
            return False
        self._held[job.number] = ticket
        return True

    def granted(self) -> list[tuple[Job, Lease, float]]:
        """Held requests whose turn has come since the last call, and how long they waited."""
        now, turns = self._clock(), list(self.turns)
        self.turns.clear()
        return [(job, lease, now - self._held.pop(job.number).since) for job, lease in turns]

    def give_up(self, job: Job) -> bool:
        """The client of a held request goes; False when it is not held here."""
        ticket = self._held.pop(job.number, None)
        if ticket is not None:
            self._backend.withdraw(ticket)
        return ticket is not None

    def serve(self, pods: Iterable[str]) -> None:
        """The pods that are ready and not about to go."""
        self._backend.serve_by(self._deployment(tuple(pods)))

    def reported(self, pod: str, report: LoadReport) -> None:
        """The poll of a pod's load."""
        upstream = self._backend.upstreams.get(pod)
        if upstream is not None:
            upstream.asked(self._clock())
            self._backend.reported(upstream, report, 0)

    def traffic(self) -> ModelTraffic:
        """What the operator is told."""
        return self._backend.traffic()

    def _deployment(self, pods: tuple[str, ...]) -> Deployment:
        endpoints = tuple(Endpoint(name=pod, url=pod, admin_url=pod) for pod in pods)
        return Deployment(NAMESPACE, NAME, (NAME,), hold=True, cold_start=self._start, endpoints=endpoints)


def _prompt(job: Job) -> Prompt:
    return Prompt(job.request.prompt, job.request.prompt * _BYTES_PER_TOKEN)

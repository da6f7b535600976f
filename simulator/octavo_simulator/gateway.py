"""The gateway's production code under simulated time: routing, accounting and the hold queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Any, cast

from msgspec import structs

from octavo_gateway.discovery.endpoints import Deployment, Endpoint
from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.reservation import Ending, RequestOutcome, Reservation
from octavo_gateway.queueing.hold_queue import Bounds, HoldQueue, QueuedRequest
from octavo_gateway.routing.candidate import PREFIX_AWARE, SESSION, Policy
from octavo_gateway.routing.prefix_chain import COARSE, COARSES, FINE, FINES
from octavo_gateway.routing.prefix_index import PrefixIndex
from octavo_gateway.routing.prompt_features import Prompt, session_key
from octavo_protocol.load import LoadReport, ModelTraffic
from octavo_protocol.prompt import PromptBlocks, chosen, encode_prompt
from octavo_simulator.chains import block_key
from octavo_simulator.job import SimulatedRequest
from octavo_simulator.pod import SimulatedPod
from octavo_simulator.scenario import Scenario

NAMESPACE, NAME = "simulation", "model"
# A prompt token is about four bytes of a request's body.
BYTES_PER_TOKEN = 4
_PIECE = Struct("<ii")


@dataclass(slots=True, eq=False)
class _Turn:
    """Replaces the future of a held request: the reservation goes to a list instead of an event loop."""

    job: SimulatedRequest
    turns: list[tuple[SimulatedRequest, Reservation]]

    def set_result(self, reservation: Reservation) -> None:
        self.turns.append((self.job, reservation))

    def done(self) -> bool:
        return False

    def cancel(self) -> None:
        """Do nothing: no task waits for it."""


class SimulatedGateway:
    """One gateway replica for one deployment.

    `clock` is simulated time, `random` returns numbers in [0, 1); dispatched held requests are appended to `turns`.
    """

    def __init__(
        self,
        bounds: Bounds,
        clock: Callable[[], float],
        random: Callable[[], float],
        turns: list[tuple[SimulatedRequest, Reservation]],
        scenario: Scenario,
    ) -> None:
        queue: HoldQueue[Reservation] = HoldQueue(bounds)
        self._clock = clock
        self._start = scenario.profile.start
        self._policy = Policy(scenario.strategy)
        self._pool = ModelPool(self._deployment(()), queue, PrefixIndex(), clock, random, gateways=scenario.gateways)
        self._held: dict[int, QueuedRequest[Reservation]] = {}
        self._turns = turns

    def reserve(self, job: SimulatedRequest, *, again: bool = False) -> Reservation | None:
        """A reservation for an arriving request; None if no pod accepts it. `again`: a retry, counted before."""
        if not again:
            self._pool.counters.arrived(job.request.prompt)
        return self._pool.reserve(self._prompt(job))

    def hold(self, job: SimulatedRequest) -> bool:
        """Put a request into the hold queue; False if the queue is full."""
        tokens = job.request.prompt
        turn = cast("Any", _Turn(job, self._turns))
        queued: QueuedRequest[Reservation] = QueuedRequest(
            tokens * BYTES_PER_TOKEN, tokens, self._clock(), turn, self._prompt(job)
        )
        if not self._pool.queue.offer(queued):
            return False
        self._held[job.number] = queued
        return True

    def waited(self, job: SimulatedRequest) -> float:
        """The seconds that a dispatched request was held."""
        return self._clock() - self._held.pop(job.number).since

    def give_up(self, job: SimulatedRequest) -> float | None:
        """Withdraw a held request; returns the seconds that it was held, or None if it is not held here."""
        queued = self._held.pop(job.number, None)
        if queued is None:
            return None
        self._pool.cancel(queued)
        return self._clock() - queued.since

    def began(self, job: SimulatedRequest, reservation: Reservation, block_size: int) -> None:
        """Handle the first token, whose response carries the block keys of the prompt."""
        reservation.first_token(job.first - job.arrived)
        request = job.request
        blocks = request.shared // block_size
        if request.prefix >= 0 and blocks:
            marks = _marks(request.prefix, blocks, block_size)
            self._pool.answered(reservation, encode_prompt(PromptBlocks(request.prompt, block_size, marks)))

    def settle(self, job: SimulatedRequest, reservation: Reservation, ending: Ending) -> None:
        """Settle the reservation of a request that has left its pod."""
        request = job.request
        prompt = request.prompt if ending.computed else 0
        output = request.output if ending is Ending.FINISHED else job.made
        self._pool.settle(RequestOutcome(reservation, ending, prompt, output))

    def serve(self, pods: Iterable[str]) -> None:
        """Set the pods that are ready and not draining."""
        self._pool.update(self._deployment(tuple(pods)))

    def reported(self, name: str, pod: SimulatedPod, report: LoadReport) -> None:
        """Handle a poll of a pod's load, with the cache changes since this gateway's last poll."""
        replica = self._pool.replicas.get(name)
        if replica is not None:
            after = self._pool.router.index.sequence(name)
            replica.asked(self._clock())
            if pod.chains.changes:
                report = structs.replace(report, cache=pod.chains.delta(after))
            self._pool.take_report(replica, report, after)

    def traffic(self) -> ModelTraffic:
        """The traffic report for the operator."""
        return self._pool.traffic()

    def _deployment(self, pods: tuple[str, ...]) -> Deployment:
        endpoints = tuple(Endpoint(name=pod, url=pod, admin_url=pod) for pod in pods)
        return Deployment(
            NAMESPACE,
            NAME,
            (NAME,),
            hold=True,
            cold_start=self._start,
            endpoints=endpoints,
            policy=self._policy,
        )

    def _prompt(self, job: SimulatedRequest) -> Prompt:
        """The prompt features for the routing strategy: prefix keys, or a session key made from the prefix."""
        if self._policy.strategy == PREFIX_AWARE:
            return _prompt(job)
        tokens, prefix = job.request.prompt, job.request.prefix
        session = session_key(str(prefix)) if self._policy.strategy == SESSION and prefix >= 0 else b""
        return Prompt(tokens, tokens * BYTES_PER_TOKEN, session=session)


@lru_cache(maxsize=1024)
def _marks(prefix: int, blocks: int, block_size: int) -> tuple[tuple[int, bytes], ...]:
    """End offsets and keys of a shared prefix's blocks; equal for all requests that share as much of it."""
    return tuple((n * block_size, block_key(prefix, n - 1)) for n in chosen(blocks))


def streamed(reservation: Reservation, tokens: int) -> None:
    """Report the output tokens so far: once a second here, with each event in a real gateway."""
    reservation.progress(max(0, tokens - reservation.generated))


def _prompt(job: SimulatedRequest) -> Prompt:
    """The prefix keys of a prompt: one per shared piece, and a unique one for the rest."""
    request = job.request
    size = request.prompt * BYTES_PER_TOKEN
    if request.prefix < 0:
        return Prompt(request.prompt, size)
    shared = _pieces(request.shared * BYTES_PER_TOKEN)
    keys = [_PIECE.pack(request.prefix, number) for number in range(shared)]
    if not request.turn:
        keys.append(_PIECE.pack(-1 - job.number, shared))
    return Prompt(request.prompt, size, tuple(keys))


def _pieces(size: int) -> int:
    """The number of full pieces in a text of `size` bytes."""
    fine = min(size // FINE, FINES)
    return fine + min(max(0, size - FINE * FINES) // COARSE, COARSES)

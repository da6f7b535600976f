"""Sends requests to the engine and routes its outputs back. Lives in the API's event loop, does no I/O.

All requests to the engine pass through this module, so it enforces the queue bound: it counts each request before it
accepts the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo_inference.common.errors import OctavoError, QueueFullError, RequestError
from octavo_inference.core.adapters import EngineAdapter
from octavo_inference.core.counters import GuidanceTotals
from octavo_inference.core.request import ENGINE_GONE, Abort, OfferAdapter, Output, Request, ResetCache, WithdrawAdapter
from octavo_inference.core.speculation.counts import SpeculationTotals
from octavo_inference.engine.ipc import EngineStep
from octavo_inference.engine.kv_events import KvEventLog
from octavo_protocol.load import EngineStats

EXIT_ENGINE_DIED = 1
EXIT_STALLED = 70

LOST = "The server lost the process that computes answers, and this request with it; try again."
SHUTTING_DOWN = "The server is shutting down and cannot finish this request; try again."

Deliver = Callable[[Output], None]
Message = Request | Abort | ResetCache | OfferAdapter | WithdrawAdapter


class EngineDiedError(OctavoError):
    """The engine has ended. The message is its cause in one line, `status` the exit status for the server.

    `for_clients` is a sentence without anything about the server's inside, which the cause may have.
    """

    def __init__(self, message: str, status: int = EXIT_ENGINE_DIED, *, for_clients: str = LOST) -> None:
        super().__init__(message)
        self.status = status
        self.for_clients = for_clients


@dataclass(slots=True)
class _OpenRequest:
    """A request in the engine with `running` unfinished sequences. Outputs of those `stopped` here are dropped."""

    deliver: Deliver
    running: int
    stopped: set[int] = field(default_factory=set)


class OutputRouter:
    """The open requests of a process, and the last state and the failure of the engine."""

    def __init__(self, send: Callable[[Message], None], cache: KvEventLog) -> None:
        self._send = send
        self.cache = cache
        self._open: dict[str, _OpenRequest] = {}
        self._failed: asyncio.Future[EngineDiedError] = asyncio.get_running_loop().create_future()
        self._stats: EngineStats | None = None
        self._stalled = False
        self.on_step: Callable[[EngineStats], None] | None = None
        """Called with the engine's state after each of its steps."""
        self.on_adapters: Callable[[list[EngineAdapter]], None] | None = None
        """Called with the states of all adapters when one has changed."""
        self.guidance = GuidanceTotals()
        """Totals of guided decoding."""
        self.speculation: SpeculationTotals | None = None
        """Totals of speculation; None without."""
        self.sequences = 0
        """Number of sequences sent to the engine and not finished."""
        self.heartbeat = 0
        """Number of engine loop iterations so far."""

    @property
    def stats(self) -> EngineStats:
        """The engine's state after its last iteration. Raises before the model is loaded."""
        if self._stats is None:
            raise OctavoError("the model is still loading")
        return self._stats

    @property
    def failure(self) -> EngineDiedError | None:
        """The cause of the engine's end. All open and all new requests end with it."""
        return self._failed.result() if self._failed.done() else None

    async def failed(self) -> EngineDiedError:
        """Wait until the engine has ended and return the cause. Never returns while the engine is healthy."""
        return await asyncio.shield(self._failed)

    def submit(self, requests: Sequence[Request], deliver: Deliver) -> None:
        """Send requests to the engine, all of them or none. `deliver` receives their outputs in the engine's order.

        Raises `QueueFullError` if too many sequences wait already, and `RequestError` if they are too many for an
        empty server.
        """
        count = sum(request.sampling.n for request in requests)
        self.check_fits(count)
        self._check_queue(count)
        self.sequences += count
        for request in requests:
            self._open[request.id] = _OpenRequest(deliver, request.sampling.n)
            if self.failure is None:
                self._send(request)
            else:
                self._end(request.id, self.failure.for_clients)

    def check_fits(self, count: int, field: str = "n") -> None:
        """Raises `RequestError` for a request of `count` sequences that even an empty server could not accept.

        `field` is the one that says how many sequences a prompt has.
        """
        stats = self.stats
        most = stats.max_running + stats.max_waiting
        if count > most:
            raise RequestError(
                f"{field}: prompts times {field} are {count} sequences; this server accepts {most} at once "
                f"({stats.max_running} running and {stats.max_waiting} waiting); send fewer in one request",
                field,
            )

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Stop a request, or one of its sequences, and drop its further outputs. Unknown ids are ignored."""
        request = self._open.get(request_id)
        if request is None:
            return
        self._send(Abort(id=request_id, index=index))
        if index is None:
            self._finish(request_id, request, request.running)
        else:
            request.stopped.add(index)
            self._finish(request_id, request, 1)

    def send(self, message: OfferAdapter | WithdrawAdapter) -> None:
        """Send a message about an adapter to the engine, if it is there."""
        if self.failure is None:
            self._send(message)

    def reset_cache(self) -> None:
        """Reset the prefix cache: requests submitted from now on match nothing computed before."""
        if self.failure is None:
            self._send(ResetCache())

    def loaded(self, stats: EngineStats) -> None:
        """Record that the engine is ready."""
        self._stats = stats

    def deliver(self, step: EngineStep) -> None:
        """Route a step's outputs to their requests."""
        self._stats, self._stalled = step.stats, step.stalled
        self.guidance = step.guidance or self.guidance
        self.speculation = step.speculation
        self.heartbeat += 1
        if self.on_step is not None:
            self.on_step(step.stats)
        if step.adapters is not None and self.on_adapters is not None:
            self.on_adapters(step.adapters)
        if step.known or step.forgotten:
            self.cache.apply(step.known, step.forgotten)
        for output in step.outputs:
            request = self._open.get(output.id)
            if request is None or output.index in request.stopped:
                continue
            request.deliver(output)
            if output.finish_reason is not None:
                self._finish(output.id, request, 1)

    def fail(self, error: EngineDiedError) -> None:
        """Record the engine's end and end every request with an error. Only the first cause counts."""
        if self._failed.done():
            return
        self._failed.set_result(error)
        for request_id in list(self._open):
            self._end(request_id, error.for_clients)

    def _check_queue(self, count: int) -> None:
        stats = self.stats
        # Sequences sent since the last step wait only if that step left others waiting or all rows are taken.
        rows = stats.running if self._stalled else stats.max_running
        if self.sequences + count > rows + stats.max_waiting:
            raise QueueFullError(max(0, self.sequences - rows), stats.max_waiting)

    def _end(self, request_id: str, message: str) -> None:
        request = self._open[request_id]
        request.deliver(
            Output(id=request_id, index=0, tokens=[], finish_reason="error", stop_reason=ENGINE_GONE, error=message)
        )
        self._finish(request_id, request, request.running)

    def _finish(self, request_id: str, request: _OpenRequest, sequences: int) -> None:
        self.sequences -= sequences
        request.running -= sequences
        if not request.running:
            del self._open[request_id]

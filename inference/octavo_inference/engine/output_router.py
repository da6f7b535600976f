"""Hands requests to the engine and its outputs to those who asked. Lives in the API's event loop, does no I/O.

All requests of the engine pass here, so this is where the queue is bounded: each is counted before the next one comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo_inference.common.errors import OctavoError, QueueFullError
from octavo_inference.core.request import Abort, Output, Request, ResetCache
from octavo_inference.engine.ipc import EngineStep
from octavo_inference.engine.kv_events import KvEventLog
from octavo_protocol.load import EngineStats

EXIT_ENGINE_DIED = 1
EXIT_STALLED = 70

Deliver = Callable[[Output], None]


class EngineDiedError(OctavoError):
    """The engine is gone; the message is its cause in one line, `status` the exit status it asks for."""

    def __init__(self, message: str, status: int = EXIT_ENGINE_DIED) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class _OpenRequest:
    """A request in the engine: `running` of its sequences go on, and of those `stopped` here nothing is wanted."""

    deliver: Deliver
    running: int
    stopped: set[int] = field(default_factory=set)


class OutputRouter:
    """The requests of a process that are in the engine, and the last state and the end of the engine."""

    def __init__(self, send: Callable[[Request | Abort | ResetCache], None], cache: KvEventLog) -> None:
        self._send = send
        self.cache = cache
        self._open: dict[str, _OpenRequest] = {}
        self._failed: asyncio.Future[EngineDiedError] = asyncio.get_running_loop().create_future()
        self._stats: EngineStats | None = None
        self._stalled = False
        self.sequences = 0
        """Sequences handed to the engine and not finished."""
        self.heartbeat = 0
        """Turns of the engine seen so far."""

    @property
    def stats(self) -> EngineStats:
        """The engine's state after its last turn. Raises before the model is loaded."""
        if self._stats is None:
            raise OctavoError("the model is still loading")
        return self._stats

    @property
    def failure(self) -> EngineDiedError | None:
        """Why the engine is gone; every request, also a new one, ends with it."""
        return self._failed.result() if self._failed.done() else None

    async def failed(self) -> EngineDiedError:
        """Returns when the engine is gone; waits for ever on a healthy one."""
        return await asyncio.shield(self._failed)

    def submit(self, requests: Sequence[Request], deliver: Deliver) -> None:
        """Send requests to the engine, all of them or none; `deliver` gets their outputs in the engine's order.

        Raises `QueueFullError` when too many sequences wait already.
        """
        count = sum(request.sampling.n for request in requests)
        self._check_queue(count)
        self.sequences += count
        for request in requests:
            self._open[request.id] = _OpenRequest(deliver, request.sampling.n)
            if self.failure is None:
                self._send(request)
            else:
                self._end(request.id, str(self.failure))

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Stop a request, or one of its sequences, and drop what the engine still puts out. Unknown ids are fine."""
        request = self._open.get(request_id)
        if request is None:
            return
        self._send(Abort(id=request_id, index=index))
        if index is None:
            self._finish(request_id, request, request.running)
        else:
            request.stopped.add(index)
            self._finish(request_id, request, 1)

    def reset_cache(self) -> None:
        """Let no request submitted from now on find what was computed before."""
        if self.failure is None:
            self._send(ResetCache())

    def loaded(self, stats: EngineStats) -> None:
        """The engine can work."""
        self._stats = stats

    def deliver(self, step: EngineStep) -> None:
        """Hand a step's outputs to the requests they belong to."""
        self._stats, self._stalled = step.stats, step.stalled
        self.heartbeat += 1
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
        """The engine is gone: end every request with an error. Only the first cause counts."""
        if self._failed.done():
            return
        self._failed.set_result(error)
        for request_id in list(self._open):
            self._end(request_id, str(error))

    def _check_queue(self, count: int) -> None:
        stats = self.stats
        # What was sent since the last step only waits if that step left others waiting or the rows run out.
        rows = stats.running if self._stalled else stats.max_running
        if self.sequences + count > rows + stats.max_waiting:
            raise QueueFullError(max(0, self.sequences - rows), stats.max_waiting)

    def _end(self, request_id: str, message: str) -> None:
        request = self._open[request_id]
        request.deliver(Output(id=request_id, index=0, tokens=[], finish_reason="error", error=message))
        self._finish(request_id, request, request.running)

    def _finish(self, request_id: str, request: _OpenRequest, sequences: int) -> None:
        self.sequences -= sequences
        request.running -= sequences
        if not request.running:
            del self._open[request_id]

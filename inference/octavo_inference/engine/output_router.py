"""Hands the engine's outputs to the requests that wait for them. Lives in the API's event loop, no I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo_inference.common.errors import OctavoError
from octavo_inference.core.request import Abort, Output, Request, ResetCache
from octavo_inference.engine.ipc import EngineStep
from octavo_inference.engine.kv_events import KvEventLog
from octavo_protocol.load import EngineStats

EXIT_ENGINE_DIED = 1
EXIT_STALLED = 70


class EngineDiedError(OctavoError):
    """The engine is gone; the message is its cause in one line, `status` the exit status it asks for."""

    def __init__(self, message: str, status: int = EXIT_ENGINE_DIED) -> None:
        super().__init__(message)
        self.status = status


class Stream:
    """The outputs of one or more requests, in the order the engine made them. Close it to free what still runs."""

    def __init__(self, hub: OutputRouter) -> None:
        self._hub = hub
        self._ready: list[Output] = []
        self._wake: asyncio.Future[None] | None = None
        self.open: dict[str, int] = {}
        """Sequences still running, per request id."""

    def submit(self, request: Request) -> None:
        """Hand a request to the engine; its outputs come out of this stream."""
        self._hub.submit(request, self)

    def abort(self, request_id: str, index: int) -> None:
        """One sequence is finished for its reader (a stop string): the engine need not go on with it."""
        self._hub.abort_sequence(self, request_id, index)

    def close(self) -> None:
        """Abort everything that still runs."""
        for request_id in list(self.open):
            self._hub.abort_request(self, request_id)

    async def outputs(self, patience: float | None = None) -> list[Output]:
        """All outputs that came since the last call; waits for the first, and `patience` seconds at most."""
        if not self._ready:
            # This runs once per token: a timer of its own is a tenth of what `asyncio.timeout` costs.
            loop = asyncio.get_running_loop()
            self._wake = loop.create_future()
            timer = None if patience is None else loop.call_later(patience, self._rouse)
            try:
                await self._wake
            finally:
                self._wake = None
                if timer is not None:
                    timer.cancel()
        outputs, self._ready = self._ready, []
        return outputs

    def deliver(self, output: Output) -> None:
        """Called by the hub."""
        self._ready.append(output)
        self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class OutputRouter:
    """All streams of a process, what they wait for, and the engine's last word."""

    def __init__(self, send: Callable[[Request | Abort | ResetCache], None], cache: KvEventLog) -> None:
        self._send = send
        self.cache = cache
        self._streams: dict[str, Stream] = {}
        self._stopped: set[tuple[str, int]] = set()
        self._failed: asyncio.Future[EngineDiedError] = asyncio.get_running_loop().create_future()
        self._stats: EngineStats | None = None
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
        """Why the engine is gone; every stream, also a new one, ends with it."""
        return self._failed.result() if self._failed.done() else None

    def open_stream(self) -> Stream:
        """A stream to submit requests to."""
        return Stream(self)

    async def failed(self) -> EngineDiedError:
        """Returns when the engine is gone; waits for ever on a healthy one."""
        return await asyncio.shield(self._failed)

    def submit(self, request: Request, stream: Stream) -> None:
        """Send a request and remember who waits for it."""
        self._streams[request.id] = stream
        stream.open[request.id] = request.sampling.n
        self.sequences += request.sampling.n
        if self.failure is not None:
            self._end(request.id, str(self.failure))
        else:
            self._send(request)

    def abort_sequence(self, stream: Stream, request_id: str, index: int) -> None:
        """Stop one of a request's sequences; what the engine still says of it is dropped."""
        if request_id not in stream.open:
            return
        self._stopped.add((request_id, index))
        if self.failure is None:
            self._send(Abort(id=request_id, index=index))
        self._finish(stream, request_id, 1)

    def abort_request(self, stream: Stream, request_id: str) -> None:
        """Stop a request whole."""
        if self.failure is None:
            self._send(Abort(id=request_id))
        self._finish(stream, request_id, stream.open[request_id])

    def reset_cache(self) -> None:
        """Let no request submitted from now on find what was computed before."""
        if self.failure is None:
            self._send(ResetCache())

    def loaded(self, stats: EngineStats) -> None:
        """The engine can work."""
        self._stats = stats

    def deliver(self, step: EngineStep) -> None:
        """Sort a step's outputs to their streams."""
        self._stats = step.stats
        self.heartbeat += 1
        if step.known or step.forgotten:
            self.cache.apply(step.known, step.forgotten)
        for output in step.outputs:
            stream = self._streams.get(output.id)
            if stream is None or (self._stopped and (output.id, output.index) in self._stopped):
                continue
            stream.deliver(output)
            if output.finish_reason is not None:
                self._finish(stream, output.id, 1)

    def fail(self, error: EngineDiedError) -> None:
        """The engine is gone: end every stream with an error. Only the first cause counts."""
        if self._failed.done():
            return
        self._failed.set_result(error)
        for request_id in list(self._streams):
            self._end(request_id, str(error))

    def _end(self, request_id: str, message: str) -> None:
        stream = self._streams[request_id]
        stream.deliver(Output(id=request_id, index=0, tokens=[], finish_reason="error", error=message))
        self._finish(stream, request_id, stream.open[request_id])

    def _finish(self, stream: Stream, request_id: str, sequences: int) -> None:
        self.sequences -= sequences
        left = stream.open[request_id] - sequences
        if left:
            stream.open[request_id] = left
            return
        del stream.open[request_id]
        del self._streams[request_id]
        if self._stopped:
            self._stopped = {key for key in self._stopped if key[0] != request_id}

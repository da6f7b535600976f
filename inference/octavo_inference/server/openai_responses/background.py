"""A response that is generated without a connection: clients poll it, or follow its events from any point."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable

import msgspec

from octavo_inference.server.errors import ApiError, internal
from octavo_inference.server.generation import Generation, TokenCounts
from octavo_inference.server.openai_responses.outcome import cancelled, failed, finished
from octavo_inference.server.openai_responses.record import Record
from octavo_inference.server.openai_responses.resource import ResponseObject

log = logging.getLogger("octavo.http")
_encode = msgspec.json.Encoder().encode


class BackgroundRun:
    """A running or finished response of the background. `final` is the response at its end, in JSON.

    `size` is the memory of the events in bytes. `grew` counts it in the store, and returns False if there is no room.
    """

    def __init__(self, record: Record, request_id: str) -> None:
        self.final: bytes | None = None
        self.started = False
        """True after the first piece."""
        self.grew: Callable[[], bool] = lambda: True
        self._record = record
        self._request_id = request_id
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[ApiError | None] | None = None

    @property
    def size(self) -> int:
        """Bytes of the events. The final response is counted by the store, which keeps the same JSON."""
        return self._record.size(running=self.final is None)

    def start(
        self, generation: Generation, submitted: contextlib.ExitStack, done: Callable[[ResponseObject, bytes], None]
    ) -> None:
        """Run a generation as a task.

        At its end, `submitted` is closed, which aborts it, and `done` is called with the response and its JSON.
        """
        self._task = asyncio.create_task(self._run(generation), name=f"background {self._record.answer.draft.id}")

        def end(task: asyncio.Task[ApiError | None]) -> None:
            submitted.close()
            final = self._result(task, generation.counts)
            self.final = _encode(final)
            done(final, self.final)
            # The JSON is counted in the store; the objects are not.
            self._record.answer.forget()
            self._task = None
            self._notify()

        self._task.add_done_callback(end)

    async def cancel(self) -> bytes:
        """Stop generating. Returns the response at its end in JSON, whatever ended it."""
        if self._task is not None:
            self._task.cancel()
        while self.final is None:
            await self._changed(None)
        return self.final

    async def follow(self, after: int, patience: float, *, obfuscate: bool) -> AsyncGenerator[bytes | None]:
        """The events with numbers above `after`, until the last one. None after `patience` seconds without any."""
        view = self._record.view(obfuscate=obfuscate)
        index = after + 1
        begun = False
        while True:
            final = self.final
            events = view(index, final)
            if events or not begun:
                begun = True
                index += len(events)
                yield b"".join(events) or None
            if final is not None:
                return
            if not await self._changed(patience):
                yield None

    async def _run(self, generation: Generation) -> ApiError | None:
        """Collect the pieces. Returns what ended them early."""
        try:
            async for ready in generation.pieces():
                for _, piece in ready or ():
                    self._record.add(piece)
                    self.started = True
                if not self.grew():
                    return _too_large()
                self._notify()
        except ApiError as error:
            return error
        return None

    def _result(self, task: asyncio.Task[ApiError | None], counts: TokenCounts) -> ResponseObject:
        answer = self._record.answer
        if task.cancelled():
            return cancelled(answer, counts)
        if (error := task.exception()) is not None:
            log.error("background response failed", exc_info=error, extra={"request_id": self._request_id})
            return failed(answer, internal(self._request_id), counts)
        if (failure := task.result()) is not None:
            return failed(answer, failure, counts)
        return finished(answer, counts)

    def _notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _changed(self, patience: float | None) -> bool:
        """Wait for the next change; False if `patience` seconds pass without one."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(patience):
                await future
        except TimeoutError:
            return False
        return True


def _too_large() -> ApiError:
    return ApiError(503, "The response does not fit in the response store.", code="store_full")

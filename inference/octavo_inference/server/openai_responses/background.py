"""A response that is generated without a connection: clients poll it, or follow its events from any point."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

import msgspec

from octavo_inference.server.errors import ApiError, internal
from octavo_inference.server.generation import Generation, TokenCounts
from octavo_inference.server.openai.responses import ChatLogprob
from octavo_inference.server.openai_responses.answer import Answer
from octavo_inference.server.openai_responses.events import EventWriter, fragment
from octavo_inference.server.openai_responses.resource import ResponseObject
from octavo_inference.tokenizer.detokenizer import Delta

log = logging.getLogger("octavo.http")
_encode = msgspec.json.Encoder().encode

# What a piece takes in memory besides its JSON, and how often its JSON is held while the response is running: as text,
# as objects, and in the response to come.
_PIECE_OVERHEAD = 64
_RUNNING_FACTOR = 6


class Logprobs(Protocol):
    """The log-probabilities of a piece in the form of the API."""

    def __call__(self, piece: Delta) -> list[ChatLogprob]:
        """Return none if the request did not ask for them."""


class BackgroundRun:
    """A running or finished response of the background. `final` is the response at its end, in JSON.

    `size` is the memory in bytes. `grew` counts it in the store, and returns False if there is no room.
    """

    def __init__(self, answer: Answer, logprobs: Logprobs, request_id: str) -> None:
        self.final: bytes | None = None
        self.started = False
        """True after the first piece."""
        self.grew: Callable[[], bool] = lambda: True
        self._answer = answer
        self._logprobs = logprobs
        self._request_id = request_id
        self._fragments: list[bytes] = []
        self._length = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[ResponseObject] | None = None

    @property
    def size(self) -> int:
        """Bytes of the pieces."""
        pieces = len(self._fragments) * _PIECE_OVERHEAD
        if self.final is None:
            return pieces + self._length * _RUNNING_FACTOR
        return pieces + self._length + len(self.final)

    def start(
        self, generation: Generation, submitted: contextlib.ExitStack, done: Callable[[ResponseObject], None]
    ) -> None:
        """Run a generation as a task. At its end, `submitted` is closed, which aborts it, and `done` is called."""
        self._task = asyncio.create_task(self._run(generation), name=f"background {self._answer.draft.id}")

        def end(task: asyncio.Task[ResponseObject]) -> None:
            submitted.close()
            final = self._result(task, generation.counts)
            self.final = _encode(final)
            done(final)
            # The JSON is counted in the store; the objects are not.
            self._answer.texts, self._answer.logprobs, self._task = [], [], None
            self._notify()

        self._task.add_done_callback(end)

    async def cancel(self) -> ResponseObject:
        """Stop generating. Returns the response at its end, whatever ended it."""
        if self._task is not None:
            self._task.cancel()
        while self.final is None:
            await self._changed(None)
        return msgspec.json.decode(self.final, type=ResponseObject)

    async def follow(self, after: int, patience: float, *, obfuscate: bool) -> AsyncGenerator[bytes | None]:
        """The events with numbers above `after`, until the last one. None after `patience` seconds without any."""
        draft, item_id = self._answer.draft, self._answer.item_id
        writer = EventWriter(draft, item_id, obfuscate=obfuscate)
        yield b"".join(_above(after, 0, writer.introduction)) or None
        while not self.started and self.final is None:
            if not await self._changed(patience):
                yield None
        if self.started:
            yield b"".join(_above(after, len(writer.introduction), writer.opening))
        index = max(0, after + 1 - writer.text_starts)
        while True:
            final, count = self.final, len(self._fragments)
            if index < count:
                yield b"".join(writer.delta(i, self._fragments[i]) for i in range(index, count))
                index = count
            if final is not None:
                break
            if not await self._changed(patience):
                yield None
        response = msgspec.json.decode(final, type=ResponseObject)
        first = writer.text_starts + count if response.output else len(writer.introduction)
        yield b"".join(_above(after, first, writer.closing(count, response)))

    async def _run(self, generation: Generation) -> ResponseObject:
        answer, counts = self._answer, generation.counts
        try:
            async for ready in generation.pieces():
                for _, piece in ready or ():
                    self._add(piece)
                if not self.grew():
                    return answer.failed(_too_large(), counts)
                self._notify()
        except ApiError as error:
            return answer.failed(error, counts)
        return answer.finished(counts)

    def _add(self, piece: Delta) -> None:
        logprobs = self._logprobs(piece)
        self._answer.add(piece, logprobs)
        self.started = True
        if piece.text or logprobs:
            self._fragments.append(fragment(piece.text, logprobs))
            self._length += len(self._fragments[-1])
            self._answer.deltas += 1

    def _result(self, task: asyncio.Task[ResponseObject], counts: TokenCounts) -> ResponseObject:
        if task.cancelled():
            return self._answer.cancelled(counts)
        if (error := task.exception()) is not None:
            log.error("background response failed", exc_info=error, extra={"request_id": self._request_id})
            return self._answer.failed(internal(self._request_id), counts)
        return task.result()

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


def _above(after: int, first: int, events: list[bytes]) -> list[bytes]:
    """The events with numbers above `after`; `first` is the number of the first one."""
    return events[max(0, after + 1 - first) :]

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
from octavo_inference.server.openai_responses.events import EventWriter, fragment, fragment_logprobs
from octavo_inference.server.openai_responses.resource import ResponseObject
from octavo_inference.tokenizer.detokenizer import Delta

log = logging.getLogger("octavo.http")
_encode = msgspec.json.Encoder().encode

# What a piece takes in memory besides its JSON. While the response is running, its text is kept, too, and memory for
# the final response is set aside.
_PIECE_OVERHEAD = 64
_RUNNING_OVERHEAD = 128
_RUNNING_FACTOR = 2


class Logprobs(Protocol):
    """The log-probabilities of a piece in the form of the API."""

    def __call__(self, piece: Delta) -> list[ChatLogprob]:
        """Return none if the request did not ask for them."""


class BackgroundRun:
    """A running or finished response of the background. `final` is the response at its end, in JSON.

    `size` is the memory of the pieces in bytes. `grew` counts it in the store, and returns False if there is no room.
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
        self._task: asyncio.Task[ApiError | None] | None = None

    @property
    def size(self) -> int:
        """Bytes of the pieces. The final response is counted by the store, which keeps the same JSON."""
        if self.final is None:
            return len(self._fragments) * _RUNNING_OVERHEAD + self._length * _RUNNING_FACTOR
        return len(self._fragments) * _PIECE_OVERHEAD + self._length

    def start(
        self, generation: Generation, submitted: contextlib.ExitStack, done: Callable[[ResponseObject, bytes], None]
    ) -> None:
        """Run a generation as a task.

        At its end, `submitted` is closed, which aborts it, and `done` is called with the response and its JSON.
        """
        self._task = asyncio.create_task(self._run(generation), name=f"background {self._answer.draft.id}")

        def end(task: asyncio.Task[ApiError | None]) -> None:
            submitted.close()
            self._answer.logprobs = [row for piece in self._fragments for row in fragment_logprobs(piece)]
            final = self._result(task, generation.counts)
            self.final = _encode(final)
            done(final, self.final)
            # The JSON is counted in the store; the objects are not.
            self._answer.texts, self._answer.logprobs, self._task = [], [], None
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

    async def _run(self, generation: Generation) -> ApiError | None:
        """Collect the pieces. Returns what ended them early."""
        try:
            async for ready in generation.pieces():
                for _, piece in ready or ():
                    self._add(piece)
                if not self.grew():
                    return _too_large()
                self._notify()
        except ApiError as error:
            return error
        return None

    def _add(self, piece: Delta) -> None:
        logprobs = self._logprobs(piece)
        # As objects they would take several times the memory of their JSON.
        self._answer.add(piece, [])
        self.started = True
        if piece.text or logprobs:
            self._fragments.append(fragment(piece.text, logprobs))
            self._length += len(self._fragments[-1])
            self._answer.deltas += 1

    def _result(self, task: asyncio.Task[ApiError | None], counts: TokenCounts) -> ResponseObject:
        if task.cancelled():
            return self._answer.cancelled(counts)
        if (error := task.exception()) is not None:
            log.error("background response failed", exc_info=error, extra={"request_id": self._request_id})
            return self._answer.failed(internal(self._request_id), counts)
        if (failure := task.result()) is not None:
            return self._answer.failed(failure, counts)
        return self._answer.finished(counts)

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

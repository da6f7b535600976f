"""The events of a response of the background, kept so that clients can follow them from any point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from octavo_inference.server.generation import Piece
from octavo_inference.server.openai.responses import ChatLogprob
from octavo_inference.server.openai_responses.answer import Answer, AnswerItems
from octavo_inference.server.openai_responses.events import (
    EventWriter,
    fragment,
    fragment_logprobs,
    introduction_of,
    padded,
)
from octavo_inference.server.openai_responses.part_answer import PartAnswer
from octavo_inference.server.openai_responses.resource import ResponseObject

# What an event takes in memory besides its JSON. While the response is running, its text is kept, too, and memory for
# the final response is set aside.
_OVERHEAD = 64
_RUNNING_OVERHEAD = 128
_RUNNING_FACTOR = 2

View = Callable[[int, bytes | None], list[bytes]]
"""The events from this number on, as far as there are any. With the final response in JSON, up to the last one."""


class Logprobs(Protocol):
    """The log-probabilities of a piece in the form of the API."""

    def __call__(self, piece: Piece) -> list[ChatLogprob]:
        """Return none if the request did not ask for them."""


class Record(Protocol):
    """What is kept of a response."""

    @property
    def answer(self) -> AnswerItems:
        """The answer so far."""
        ...

    def add(self, piece: Piece) -> None:
        """Add a piece of the answer."""
        ...

    def size(self, *, running: bool) -> int:
        """Bytes in memory."""
        ...

    def complete(self) -> None:
        """Prepare the answer for the final response."""
        ...

    def release(self) -> None:
        """Forget the answer: the final response has it."""
        ...

    def view(self, *, obfuscate: bool) -> View:
        """The events for one reader."""
        ...


class TextRecord:
    """The record of an answer that is one text."""

    def __init__(self, answer: Answer, logprobs: Logprobs) -> None:
        self.answer = answer
        self._logprobs = logprobs
        self._fragments: list[bytes] = []
        self._length = 0
        self._started = False

    def add(self, piece: Piece) -> None:
        """See `Record`."""
        logprobs = self._logprobs(piece)
        # As objects they would take several times the memory of their JSON.
        self.answer.add(piece, [])
        self._started = True
        if piece.text or logprobs:
            self._fragments.append(fragment(piece.text, logprobs))
            self._length += len(self._fragments[-1])
            self.answer.deltas += 1

    def size(self, *, running: bool) -> int:
        """See `Record`."""
        return _size(len(self._fragments), self._length, running=running)

    def complete(self) -> None:
        """See `Record`."""
        self.answer.logprobs = [row for piece in self._fragments for row in fragment_logprobs(piece)]

    def release(self) -> None:
        """See `Record`."""
        self.answer.texts, self.answer.logprobs = [], []

    def view(self, *, obfuscate: bool) -> View:
        """See `Record`."""
        writer = EventWriter(self.answer.draft, self.answer.item_id, obfuscate=obfuscate)
        before = len(writer.introduction)

        def events(first: int, final: bytes | None) -> list[bytes]:
            found = writer.introduction[first:]
            count = len(self._fragments)
            if self._started:
                found += writer.opening[max(0, first - before) :]
                start = max(0, first - writer.text_starts)
                found += [writer.delta(index, self._fragments[index]) for index in range(start, count)]
            if final is not None:
                response = msgspec.json.decode(final, type=ResponseObject)
                end = writer.text_starts + count if response.output else before
                found += writer.closing(count, response)[max(0, first - end) :]
            return found

        return events


class PartRecord:
    """The record of an answer with thinking or calls."""

    def __init__(self, answer: PartAnswer, logprobs: Logprobs) -> None:
        self.answer = answer
        self._logprobs = logprobs
        self._events = introduction_of(answer.draft)
        self._length = 0

    def add(self, piece: Piece) -> None:
        """See `Record`."""
        events = self.answer.add(piece, self._logprobs(piece))
        self._events += events
        self._length += sum(map(len, events))

    def size(self, *, running: bool) -> int:
        """See `Record`."""
        return _size(len(self._events), self._length, running=running)

    def complete(self) -> None:
        """See `Record`."""

    def release(self) -> None:
        """See `Record`."""
        self.answer.forget()

    def view(self, *, obfuscate: bool) -> View:
        """See `Record`."""

        def events(first: int, final: bytes | None) -> list[bytes]:
            found = self._events[first:]
            if final is not None:
                closing = self.answer.closing(msgspec.json.decode(final, type=ResponseObject))
                found += closing[max(0, first - len(self._events)) :]
            return [padded(event) for event in found] if obfuscate else found

        return events


def _size(events: int, length: int, *, running: bool) -> int:
    if running:
        return events * _RUNNING_OVERHEAD + length * _RUNNING_FACTOR
    return events * _OVERHEAD + length

"""The events of a response of the background, kept so that clients can follow them from any point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from octavo_inference.server.generation import Piece
from octavo_inference.server.openai.responses import ChatLogprob
from octavo_inference.server.openai_responses.answer import Answer
from octavo_inference.server.openai_responses.events import EventWriter, introduction_of
from octavo_inference.server.openai_responses.resource import ResponseObject

# What an event takes in memory besides its JSON. While the response is running, its text is kept, too, and memory for
# the final response is set aside.
_OVERHEAD = 112
_RUNNING_OVERHEAD = 192
_RUNNING_FACTOR = 2

View = Callable[[int, bytes | None], list[bytes]]
"""The events from this number on, as far as there are any. With the final response in JSON, up to the last one."""


class Logprobs(Protocol):
    """The log-probabilities of a piece in the form of the API."""

    def __call__(self, piece: Piece) -> list[ChatLogprob]:
        """Return none if the request did not ask for them."""


class Record:
    """The answer so far, and its events."""

    def __init__(self, answer: Answer, logprobs: Logprobs) -> None:
        self.answer = answer
        self._logprobs = logprobs
        self._events = introduction_of(answer.draft)
        self._length = 0

    def add(self, piece: Piece) -> None:
        """Add a piece of the answer."""
        events = self.answer.add(piece, self._logprobs(piece))
        self._events += events
        self._length += sum(len(event.rest) for event in events)

    def size(self, *, running: bool) -> int:
        """Bytes in memory."""
        if running:
            return len(self._events) * _RUNNING_OVERHEAD + self._length * _RUNNING_FACTOR
        return len(self._events) * _OVERHEAD + self._length

    def view(self, *, obfuscate: bool) -> View:
        """The events for one reader."""

        def events(first: int, final: bytes | None) -> list[bytes]:
            found = self._events[first:]
            if final is not None:
                closing = self.answer.closing(msgspec.json.decode(final, type=ResponseObject))
                found += closing[max(0, first - len(self._events)) :]
            return EventWriter(first, obfuscate=obfuscate).write(found)

        return events

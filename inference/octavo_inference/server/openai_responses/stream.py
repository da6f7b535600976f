"""The events of a response, as it is generated."""

from __future__ import annotations

from octavo_inference.server.generation import Piece
from octavo_inference.server.openai.responses import ChatLogprob
from octavo_inference.server.openai_responses.answer import Answer
from octavo_inference.server.openai_responses.events import EventWriter, fragment, introduction_of, padded
from octavo_inference.server.openai_responses.part_answer import PartAnswer
from octavo_inference.server.openai_responses.resource import ResponseObject


class TextStream:
    """The events of an answer that is one text."""

    def __init__(self, answer: Answer, obfuscate: bool) -> None:
        self._answer = answer
        self._writer = EventWriter(answer.draft, answer.item_id, obfuscate=obfuscate)
        self.introduction = self._writer.introduction

    @property
    def next_number(self) -> int:
        """The number of the next event."""
        return self._writer.text_starts + self._answer.deltas

    def add(self, piece: Piece, logprobs: list[ChatLogprob]) -> list[bytes]:
        """The events of a piece."""
        events = list(self._writer.opening) if not self._answer.texts else []
        self._answer.add(piece, logprobs)
        if piece.text or logprobs:
            events.append(self._writer.delta(self._answer.deltas, fragment(piece.text, logprobs)))
            self._answer.deltas += 1
        return events

    def closing(self, final: ResponseObject) -> list[bytes]:
        """The events behind the last piece."""
        return self._writer.closing(self._answer.deltas, final)


class PartStream:
    """The events of an answer with thinking or calls."""

    def __init__(self, answer: PartAnswer, obfuscate: bool) -> None:
        self._answer = answer
        self._obfuscate = obfuscate
        self.introduction = introduction_of(answer.draft)

    @property
    def next_number(self) -> int:
        """The number of the next event."""
        return self._answer.next_number

    def add(self, piece: Piece, logprobs: list[ChatLogprob]) -> list[bytes]:
        """The events of a piece."""
        events = self._answer.add(piece, logprobs)
        return [padded(event) for event in events] if self._obfuscate else events

    def closing(self, final: ResponseObject) -> list[bytes]:
        """The events behind the last piece."""
        return self._answer.closing(final)

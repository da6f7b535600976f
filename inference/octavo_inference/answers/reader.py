"""Reads one answer piece by piece: its text, thinking and tool calls."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from octavo_inference.chat_format.events import AnswerParser, CallStart, Event, Reasoning, Text
from octavo_inference.chat_format.past_calls import same_id
from octavo_inference.tokenizer.detokenizer import Delta


@dataclass(slots=True)
class ToolCall:
    """A call of a tool. `arguments` is a JSON object, unless the answer ended inside the call."""

    id: str
    name: str
    parts: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        """All parts so far."""
        return "".join(self.parts)

    @property
    def is_complete(self) -> bool:
        """True if the arguments are JSON: a stop text of the client may end an answer inside a call."""
        try:
            msgspec.json.decode(self.arguments)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True


@dataclass(slots=True)
class AnswerReader:
    """An answer so far. `reasoning_tokens` counts the tokens of the thinking with its end.

    Without `parallel`, calls after the first one are left out. `own_id` is that of the calls' format.
    """

    parser: AnswerParser
    markers: Sequence[str] = ()
    parallel: bool = True
    own_id: Callable[[str, str, int], str] = same_id
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    reasoning_tokens: int = 0

    def push(self, piece: Delta) -> list[Event]:
        """The parts that a piece completes, in order. Every `CallStart` has an id."""
        if self.parser.in_reasoning:
            self.reasoning_tokens += len(piece.tokens)
        events = self.parser.push(piece.text) if piece.text else []
        if piece.finish_reason is not None:
            events += self.parser.finish()
        return [kept for event in events if (kept := self._add(event)) is not None]

    @property
    def text(self) -> str:
        """The text for the user."""
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        """The text of the thinking."""
        return "".join(self.thoughts)

    @property
    def has_failed_call(self) -> bool:
        """True if the text holds a mark of a call: the call did not parse. Exact once the answer is complete."""
        text = self.text if self.markers else ""
        return any(marker in text for marker in self.markers)

    def _add(self, event: Event) -> Event | None:
        if isinstance(event, Text):
            self.texts.append(event.text)
            return event if event.text else None
        if isinstance(event, Reasoning):
            self.thoughts.append(event.text)
            return event if event.text else None
        if event.index and not self.parallel:
            return None
        if isinstance(event, CallStart):
            call = ToolCall(event.id or self.own_id(new_call_id(), event.name, event.index), event.name)
            self.calls.append(call)
            return CallStart(event.index, event.name, call.id)
        self.calls[event.index].parts.append(event.text)
        return event if event.text else None


def new_call_id() -> str:
    """A unique id of a call."""
    return f"call_{secrets.token_hex(12)}"

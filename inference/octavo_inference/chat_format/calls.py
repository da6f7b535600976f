"""Where readers put what they find: calls with their arguments, and the text around them."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_inference.chat_format.events import CallArguments, CallStart, Event, Reasoning, Text, merged
from octavo_inference.chat_format.readers import Names
from octavo_inference.chat_format.schema_types import Parameters
from octavo_inference.chat_format.tools import ToolSpec


class Calls:
    """The calls and the text of an answer, as far as they are read.

    White space that is all there is before, between or behind calls belongs to the calls: it is no text. `held` are the
    characters of a block since the last part of a call, in pieces; they are text if they turn out to be none.
    """

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.names = Names(self.tools)
        self.marker = ""
        """The start marker of the block, until a call begins in it."""
        self.held: list[str] = []
        self.is_open = False
        """A call has begun and not ended."""
        self.at_start = True
        """Only white space has come since the answer's start or the last call."""
        self.closing = ""
        """What makes the arguments of the open call, as far as they are written, a JSON object."""
        self._parameters: dict[str, Parameters] = {}
        self._count = 0
        self._space: list[str] = []
        self._events: list[Event] = []

    @property
    def at_answer_start(self) -> bool:
        """Only white space has come so far."""
        return self.at_start and self._count == 0

    def text(self, text: str) -> None:
        """More text."""
        if self.at_start:
            if not text.strip():
                self._space.append(text)
                return
            self.at_start = False
            text = "".join(self._space) + text
            self._space.clear()
        if text:
            self._events.append(Text(text))

    def reasoning(self, text: str) -> None:
        """More of the thinking."""
        if text:
            self._events.append(Reasoning(text))

    def start(self, name: str, call_id: str | None = None) -> None:
        """A call of a known tool begins."""
        self._space.clear()
        self.held.clear()
        self.marker = ""
        self.closing = ""
        self.at_start = self.is_open = True
        self._events.append(CallStart(self._count, name, call_id))

    def arguments(self, text: str) -> None:
        """More of the arguments of the call that is open."""
        self.held.clear()
        if text:
            self._events.append(CallArguments(self._count, text))

    def end(self) -> None:
        """The open call ends: the text from here on is not part of it."""
        self.held.clear()
        self.is_open = False
        self._count += 1

    def parameters(self, name: str) -> Parameters:
        """What is known of a tool's parameters."""
        if name not in self._parameters:
            self._parameters[name] = Parameters(self.tools[name])
        return self._parameters[name]

    def abandon(self) -> None:
        """The open call, if any, cannot be read further: what is held becomes text."""
        if self.is_open:
            if self.closing:
                self._events.append(CallArguments(self._count, self.closing))
            self.is_open = False
            self._count += 1

    def finish(self) -> None:
        """The answer ends."""
        if not self._count and not self.is_open:
            self.at_start = False
            self.text("".join(self._space))
        self._space.clear()

    def take(self) -> list[Event]:
        """The events since the last time."""
        events = self._events
        if not events:
            return []
        self._events = []
        return events if len(events) == 1 else merged(events)

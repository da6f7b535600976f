"""Thinking before the answer: text between two markers."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_inference.chat_format.events import AnswerParser, CallStart, Event, Reasoning, merged
from octavo_inference.chat_format.readers import finder


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """A format of thinking. `markers` must stay visible to the parser, as those of a `ToolFormat`."""

    name: str
    start: str
    end: str

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts of special tokens that the parser must see."""
        return (self.start, self.end)


class ThinkParser:
    """An `AnswerParser`: text, thinking from the first start marker to the next end marker, then the answer.

    The rest goes to the parser `answer`. `thinking`: the answer begins inside the thinking, as the template wrote the
    start marker into the prompt; another one at its beginning is skipped. White space at both ends of the thinking is
    dropped, and line breaks behind it. Thinking that does not end is all thinking; without a start there is none. Once
    a call has begun, a start marker is text.
    """

    def __init__(self, form: ReasoningFormat, answer: AnswerParser, *, thinking: bool) -> None:
        self._answer = answer
        self._start, self._end = form.start, form.end
        self._tail = ""
        self.in_reasoning = thinking
        # At its beginning, where the start marker may come a second time.
        self._may_repeat = thinking
        # Behind the thinking, or behind the start of a call.
        self._done = False
        self._has_reasoned = False
        # Line breaks are dropped: just behind the thinking.
        self._trims = False
        self._space: list[str] = []
        self._events: list[Event] = []

    def push(self, text: str) -> list[Event]:
        """See `AnswerParser`."""
        if self._done and not self._trims:
            return self._answer.push(text)
        if not self._tail and not self._may_repeat and not self._trims:
            # No marker begins in this piece.
            if self.in_reasoning:
                if self._end[0] not in text:
                    self._reason(text)
                    return self._take()
            elif self._start[0] not in text:
                events = self._answer.push(text)
                self._done = _has_call(events)
                return events
        while text and not self._done:
            text = self._think(text) if self.in_reasoning else self._look(text)
        if text:
            self._pass_on(text)
        return self._take()

    def finish(self) -> list[Event]:
        """See `AnswerParser`."""
        if self.in_reasoning:
            self._reason(self._tail)
        else:
            self._pass_on(self._tail)
        self._tail = ""
        self._events += self._answer.finish()
        return self._take()

    def _look(self, text: str) -> str:
        """Look for the start marker. Returns the text behind it, or behind the first call's start."""
        before, marker, rest, self._tail = _cut(self._tail + text, self._start)
        self._pass_on(before)
        if _has_call(self._events):
            self._done = True
            rest = marker + rest + self._tail
            self._tail = ""
        elif marker:
            self.in_reasoning = True
        return rest

    def _think(self, text: str) -> str:
        """Look for the end marker. Returns the text behind it."""
        text = self._tail + text
        self._tail = ""
        if self._may_repeat:
            text = text.lstrip()
            if self._start.startswith(text) and text != self._start:
                self._tail = text
                return ""
            self._may_repeat = False
            text = text.removeprefix(self._start)
        before, marker, rest, self._tail = _cut(text, self._end)
        self._reason(before)
        if marker:
            self.in_reasoning = False
            self._done = self._trims = True
        return rest

    def _reason(self, text: str) -> None:
        """More of the thinking. White space is held back until something follows it."""
        body = text.rstrip()
        if body:
            shown = body if self._has_reasoned else body.lstrip()
            self._events.append(Reasoning("".join(self._space) + shown))
            self._has_reasoned = True
            self._space.clear()
        if self._has_reasoned and len(body) < len(text):
            self._space.append(text[len(body) :])

    def _pass_on(self, text: str) -> None:
        if self._trims:
            text = text.lstrip("\r\n")
            self._trims = not text
        if text:
            self._events += self._answer.push(text)

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events if len(events) < 2 else merged(events)


def _has_call(events: list[Event]) -> bool:
    for event in events:  # noqa: SIM110 -- this runs at every piece, and `any` takes twice the time
        if isinstance(event, CallStart):
            return True
    return False


def _cut(text: str, marker: str) -> tuple[str, str, str, str]:
    """What is before the marker, the marker, and what is behind it; without one: what may be its beginning is last."""
    found = finder(frozenset({marker}))(text)
    if found is None:
        return text, "", "", ""
    before, behind = text[: found.start()], text[found.end() :]
    return (before, marker, behind, "") if found[0] == marker else (before, "", "", found[0])

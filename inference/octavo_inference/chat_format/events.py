"""The parts of an answer, as parsers find them."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Text(msgspec.Struct, frozen=True, gc=False):
    """Text for the user."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """Text of the model's thinking."""

    text: str


class CallStart(msgspec.Struct, frozen=True, gc=False):
    """A tool call begins. `index` counts the calls of an answer; `id` is the model's own, None if it writes none."""

    index: int
    name: str
    id: str | None = None


class CallArguments(msgspec.Struct, frozen=True, gc=False):
    """The next part of a call's arguments: all parts together are one JSON object."""

    index: int
    text: str


Event = Text | Reasoning | CallStart | CallArguments


class AnswerParser(Protocol):
    """Splits an answer into its parts, piece by piece. The events are the same for every split of the answer.

    Equal but for where texts and arguments are cut: joined, they are the same. What is no call stays text, unchanged.
    Takes time in proportion to the answer's length, whatever it holds.
    """

    @property
    def in_reasoning(self) -> bool:
        """True while the model thinks: the tokens pushed meanwhile are those of the reasoning."""
        ...

    def push(self, text: str) -> list[Event]:
        """The events of the next piece of the answer."""
        ...

    def finish(self) -> list[Event]:
        """The events of what is held back, at the end of the answer."""
        ...


def merged(events: list[Event]) -> list[Event]:
    """The events with adjacent parts of one text, reasoning or call joined, and without empty ones."""
    if len(set(map(type, events))) == 1 and continues(events[0], events[-1]):
        text = "".join([event.text for event in events if not isinstance(event, CallStart)])
        return [_with_text(events[0], text)] if text else []
    runs: list[tuple[Event, list[str]]] = []
    for event in events:
        text = "" if isinstance(event, CallStart) else event.text
        if runs and not isinstance(runs[-1][0], CallStart) and continues(runs[-1][0], event):
            runs[-1][1].append(text)
        elif text or isinstance(event, CallStart):
            runs.append((event, [text]))
    return [_with_text(event, "".join(parts)) for event, parts in runs]


def continues(first: Event, event: Event) -> bool:
    """True if an event is more of the text, thinking or call that `first` is a part of."""
    if isinstance(event, CallArguments):
        return isinstance(first, CallStart | CallArguments) and first.index == event.index
    return type(first) is type(event) and not isinstance(event, CallStart)


def _with_text(event: Event, text: str) -> Event:
    return event if isinstance(event, CallStart) else msgspec.structs.replace(event, text=text)

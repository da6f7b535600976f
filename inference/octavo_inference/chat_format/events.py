"""The parts of an answer, as parsers find them."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Text(NamedTuple):
    """Text for the user."""

    text: str


class Reasoning(NamedTuple):
    """Text of the model's thinking."""

    text: str


class CallStart(NamedTuple):
    """A tool call begins. `index` counts the calls of an answer; `id` is the model's own, None if it writes none."""

    index: int
    name: str
    id: str | None = None


class CallArguments(NamedTuple):
    """The next part of a call's arguments: all parts together are one JSON object."""

    index: int
    text: str


Event = Text | Reasoning | CallStart | CallArguments


class AnswerParser(Protocol):
    """Splits an answer into its parts, piece by piece. The events are the same for every split of the answer.

    Equal but for where texts and arguments are cut: joined, they are the same. What is no call stays text, unchanged.
    Takes time in proportion to the answer's length, whatever it holds.
    """

    def push(self, text: str) -> list[Event]:
        """The events of the next piece of the answer."""
        ...

    def finish(self) -> list[Event]:
        """The events of what is held back, at the end of the answer."""
        ...

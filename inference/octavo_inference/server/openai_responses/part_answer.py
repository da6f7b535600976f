"""Collects an answer with thinking and calls into items, and writes their events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from octavo_inference.chat_format.events import CallArguments, CallStart, Event, Reasoning, Text, continues
from octavo_inference.server.generation import Piece
from octavo_inference.server.openai.responses import ChatLogprob
from octavo_inference.server.openai_responses.events import (
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
    ContentPartAddedEvent,
    ContentPartDoneEvent,
    OutputItemAddedEvent,
    OutputItemDoneEvent,
    ReasoningDeltaEvent,
    ReasoningDoneEvent,
    StreamEvent,
    TextDeltaEvent,
    TextDoneEvent,
    encoded,
    introduction_of,
    last_of,
)
from octavo_inference.server.openai_responses.items import (
    AnswerText,
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    ReasoningItem,
    ReasoningText,
)
from octavo_inference.server.openai_responses.resource import ResponseObject
from octavo_inference.tokenizer.detokenizer import Delta
from octavo_protocol.response_id import ItemKind, item_id


@dataclass(slots=True)
class _Growing:
    """An item that grows. `first` is its first part."""

    id: str
    first: Event
    texts: list[str] = field(default_factory=list)
    logprobs: list[ChatLogprob] = field(default_factory=list)

    def item(self, status: ItemStatus) -> OutputItem:
        text = "".join(self.texts)
        if isinstance(self.first, CallStart):
            return FunctionCallItem(self.id, self.first.id or "", self.first.name, text, status)
        if isinstance(self.first, Reasoning):
            return ReasoningItem(self.id, [ReasoningText(text)], status)
        return MessageItem(self.id, "assistant", [AnswerText(text, [], self.logprobs)], status)


class PartAnswer:
    """The answer so far, as items. `draft` is the response before its first token."""

    def __init__(self, draft: ResponseObject) -> None:
        self.draft = draft
        self.last: Delta | None = None
        self._items: list[_Growing] = []
        self._number = len(introduction_of(draft))

    @property
    def is_empty(self) -> bool:
        """True before the first item."""
        return not self._items

    @property
    def next_number(self) -> int:
        """The number of the next event."""
        return self._number

    def add(self, piece: Piece, logprobs: list[ChatLogprob]) -> list[bytes]:
        """Append the parts of a piece. Returns their events.

        `logprobs` are those of the piece. They are part of the answer's text, if there is any in the piece.
        """
        if piece.finish_reason is not None:
            self.last = piece
        events: list[bytes] = []
        for part in piece.parts:
            if not self._items or not continues(self._items[-1].first, part):
                if self._items:
                    events += self._write(_end(self._items[-1], len(self._items) - 1, "completed"))
                self._items.append(_Growing(self._id(_KINDS[type(part)]), part))
                events += self._write(_begin(self._items[-1], len(self._items) - 1))
            if not isinstance(part, CallStart):
                item = self._items[-1]
                item.texts.append(part.text)
                scores: list[ChatLogprob] = []
                if isinstance(part, Text):
                    scores, logprobs = logprobs, []
                    item.logprobs += scores
                events += self._write([_delta(item, len(self._items) - 1, part, scores)])
        return events

    def items(self, status: ItemStatus) -> list[OutputItem]:
        """The items so far; the last one has this status. An answer without any is an empty message."""
        if not self._items:
            return [MessageItem(self._id("msg"), "assistant", [AnswerText("")], status)]
        return [item.item("completed") for item in self._items[:-1]] + [self._items[-1].item(status)]

    def forget(self) -> None:
        """Keep of the items only what `closing` needs."""
        self._items = [_Growing(item.id, item.first) for item in self._items]

    def closing(self, final: ResponseObject) -> list[bytes]:
        """The events behind the last part, up to the last event."""
        events: list[StreamEvent] = []
        if final.output:
            index = len(final.output) - 1
            item = final.output[index]
            if not self._items:
                empty = _Growing(item.id, Text(""))
                events += _begin(empty, 0)
                events += _end(empty, 0, item.status)
            else:
                events += _ended(item, index)
        encoded_events = [encoded(event, number) for number, event in enumerate(events, self._number)]
        return [*encoded_events, last_of(self._number + len(events), final)]

    def _id(self, kind: ItemKind) -> str:
        return item_id(self.draft.id, kind, len(self._items))

    def _write(self, events: Sequence[StreamEvent]) -> list[bytes]:
        written = [encoded(event, number) for number, event in enumerate(events, self._number)]
        self._number += len(events)
        return written


_KINDS: dict[type[Event], ItemKind] = {Text: "msg", Reasoning: "rs", CallStart: "fc"}


def _begin(item: _Growing, index: int) -> list[StreamEvent]:
    if isinstance(item.first, CallStart):
        return [OutputItemAddedEvent(0, item.item("in_progress"), index)]
    if isinstance(item.first, Reasoning):
        added = ReasoningItem(item.id, [], "in_progress")
        return [OutputItemAddedEvent(0, added, index), ContentPartAddedEvent(0, item.id, ReasoningText(""), index)]
    message = MessageItem(item.id, "assistant", [], "in_progress")
    return [OutputItemAddedEvent(0, message, index), ContentPartAddedEvent(0, item.id, AnswerText(""), index)]


def _delta(
    item: _Growing, index: int, part: Text | Reasoning | CallArguments, logprobs: list[ChatLogprob]
) -> StreamEvent:
    if isinstance(part, CallArguments):
        return ArgumentsDeltaEvent(0, item.id, index, part.text)
    if isinstance(part, Reasoning):
        return ReasoningDeltaEvent(0, item.id, index, 0, part.text)
    return TextDeltaEvent(0, item.id, index, 0, part.text, logprobs)


def _end(item: _Growing, index: int, status: ItemStatus) -> list[StreamEvent]:
    return _ended(item.item(status), index)


def _ended(item: OutputItem, index: int) -> list[StreamEvent]:
    events: list[StreamEvent]
    if isinstance(item, FunctionCallItem):
        events = [ArgumentsDoneEvent(0, item.id, index, item.arguments, item.name)]
    elif isinstance(item, ReasoningItem):
        part = item.content[0]
        events = [ReasoningDoneEvent(0, item.id, index, 0, part.text), ContentPartDoneEvent(0, item.id, part, index)]
    elif isinstance(item, MessageItem):
        text = item.content[0] if isinstance(item.content[0], AnswerText) else AnswerText("")
        events = [
            TextDoneEvent(0, item.id, text.text, text.logprobs, index),
            ContentPartDoneEvent(0, item.id, text, index),
        ]
    else:
        assert_never(item)
    return [*events, OutputItemDoneEvent(0, item, index)]

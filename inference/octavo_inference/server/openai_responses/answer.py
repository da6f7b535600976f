"""Collects an answer into items, and makes their events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from octavo_inference.chat_format.events import CallStart, Event, Reasoning, Text, continues
from octavo_inference.server.generation import Piece
from octavo_inference.server.openai.responses import ChatLogprob
from octavo_inference.server.openai_responses.events import (
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
    ContentPartAddedEvent,
    ContentPartDoneEvent,
    EventForm,
    OutputItemAddedEvent,
    OutputItemDoneEvent,
    ReasoningDeltaEvent,
    ReasoningDoneEvent,
    StreamEvent,
    TextDeltaEvent,
    TextDoneEvent,
    WrittenEvent,
    delta_form,
    last_of,
    text_delta,
    written,
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

_encode = msgspec.json.Encoder().encode
_rows = msgspec.json.Decoder(list[ChatLogprob]).decode


@dataclass(slots=True)
class _Growing:
    """An item that grows. `first` is its first part, `form` that of its deltas.

    `logprobs` are in JSON: as objects they would take several times the memory.
    """

    id: str
    first: Event
    form: EventForm
    texts: list[str] = field(default_factory=list)
    logprobs: list[bytes] = field(default_factory=list)

    def item(self, status: ItemStatus) -> OutputItem:
        text = "".join(self.texts)
        if isinstance(self.first, CallStart):
            return FunctionCallItem(self.id, self.first.id or "", self.first.name, text, status)
        if isinstance(self.first, Reasoning):
            return ReasoningItem(self.id, [ReasoningText(text)], status)
        logprobs = [row for rows in self.logprobs for row in _rows(rows)]
        return MessageItem(self.id, "assistant", [AnswerText(text, [], logprobs)], status)


class Answer:
    """The answer so far, as items. `draft` is the response before its first token.

    `last` is the last piece, if that has come. `is_plain`: the answer is one text, so that its pieces have no parts.
    """

    def __init__(self, draft: ResponseObject, *, is_plain: bool) -> None:
        self.draft = draft
        self.last: Delta | None = None
        self._is_plain = is_plain
        self._items: list[_Growing] = []

    @property
    def is_empty(self) -> bool:
        """True before the first item."""
        return not self._items

    def add(self, piece: Piece, logprobs: list[ChatLogprob]) -> list[WrittenEvent]:
        """Append the parts of a piece. Returns their events.

        `logprobs` are those of the piece. They are part of the answer's text, if there is any in the piece.
        """
        if piece.finish_reason is not None:
            self.last = piece
        events: list[WrittenEvent] = []
        for part in self._parts(piece, logprobs):
            if not self._items or not continues(self._items[-1].first, part):
                if self._items:
                    events += map(written, _ended(self._items[-1].item("completed"), len(self._items) - 1))
                events += map(written, self._begin(part))
            if isinstance(part, CallStart):
                continue
            item = self._items[-1]
            item.texts.append(part.text)
            scores = None
            if isinstance(part, Text):
                scores = b"[]"
                if logprobs:
                    scores, logprobs = _encode(logprobs), []
                    item.logprobs.append(scores)
            events.append(text_delta(item.form, part.text, scores))
        return events

    def items(self, status: ItemStatus) -> list[OutputItem]:
        """The items so far; the last one has this status. An answer without any is an empty message."""
        if not self._items:
            return [MessageItem(self._id("msg"), "assistant", [AnswerText("")], status)]
        return [item.item("completed") for item in self._items[:-1]] + [self._items[-1].item(status)]

    def forget(self) -> None:
        """Keep of the items only what `closing` needs."""
        self._items = [_Growing(item.id, item.first, item.form) for item in self._items]

    def closing(self, final: ResponseObject) -> list[WrittenEvent]:
        """The events behind the last part, up to the last event."""
        events: list[StreamEvent] = []
        if final.output:
            if not self._items:
                events += _begun(final.output[0].id, Text(""), 0)
            events += _ended(final.output[-1], len(final.output) - 1)
        return [written(event) for event in (*events, last_of(final))]

    def _id(self, kind: ItemKind) -> str:
        return item_id(self.draft.id, kind, len(self._items))

    def _parts(self, piece: Piece, logprobs: list[ChatLogprob]) -> Sequence[Event]:
        if not self._is_plain:
            return piece.parts
        return [Text(piece.text)] if piece.text or logprobs else []

    def _begin(self, part: Event) -> list[StreamEvent]:
        name, index = self._id(_KINDS[type(part)]), len(self._items)
        self._items.append(_Growing(name, part, delta_form(_delta(name, index, part))))
        return _begun(name, part, index)


_KINDS: dict[type[Event], ItemKind] = {Text: "msg", Reasoning: "rs", CallStart: "fc"}


def _begun(name: str, first: Event, index: int) -> list[StreamEvent]:
    if isinstance(first, CallStart):
        call = FunctionCallItem(name, first.id or "", first.name, "", "in_progress")
        return [OutputItemAddedEvent(0, call, index)]
    if isinstance(first, Reasoning):
        added = ReasoningItem(name, [], "in_progress")
        return [OutputItemAddedEvent(0, added, index), ContentPartAddedEvent(0, name, ReasoningText(""), index)]
    message = MessageItem(name, "assistant", [], "in_progress")
    return [OutputItemAddedEvent(0, message, index), ContentPartAddedEvent(0, name, AnswerText(""), index)]


def _delta(name: str, index: int, part: Event) -> TextDeltaEvent | ReasoningDeltaEvent | ArgumentsDeltaEvent:
    if isinstance(part, Reasoning):
        return ReasoningDeltaEvent(0, name, index, 0, "")
    if isinstance(part, Text):
        return TextDeltaEvent(0, name, index, 0, "", [])
    return ArgumentsDeltaEvent(0, name, index, "")


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

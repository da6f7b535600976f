"""The events of a stream, numbered from 0.

response.created, [response.queued,] response.in_progress      introduction
response.output_item.added, response.content_part.added        with the first piece of an item
response.output_text.delta ...
response.output_text.done, response.content_part.done,
response.output_item.done                                      with the next item, or at the end
response.completed                                             or response.incomplete or response.failed

An answer with thinking or calls has several items, one after the other: `answer` makes their events. Events are kept
without their numbers, so that a stream can resume anywhere.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from octavo_inference.server.errors import ApiError
from octavo_inference.server.openai.responses import ChatLogprob
from octavo_inference.server.openai_responses.items import AnswerText, OutputItem, ReasoningText
from octavo_inference.server.openai_responses.resource import ResponseObject

_PADDED_TO = 32
_PADDING = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_encode = msgspec.json.Encoder().encode


class _ResponseEvent(msgspec.Struct, frozen=True):
    sequence_number: int
    response: ResponseObject


class ResponseCreatedEvent(_ResponseEvent, frozen=True, tag="response.created"):
    """First event: the response without output."""


class ResponseQueuedEvent(_ResponseEvent, frozen=True, tag="response.queued"):
    """A response of the background waits for its first token."""


class ResponseInProgressEvent(_ResponseEvent, frozen=True, tag="response.in_progress"):
    """The response is being generated."""


class ResponseCompletedEvent(_ResponseEvent, frozen=True, tag="response.completed"):
    """Last event: the whole response."""


class ResponseIncompleteEvent(_ResponseEvent, frozen=True, tag="response.incomplete"):
    """Last event of a response that a limit or a cancellation ended."""


class ResponseFailedEvent(_ResponseEvent, frozen=True, tag="response.failed"):
    """Last event of a response that failed; `response.error` has the reason."""


class _ItemEvent(msgspec.Struct, frozen=True):
    sequence_number: int
    item: OutputItem
    output_index: int = 0


class OutputItemAddedEvent(_ItemEvent, frozen=True, tag="response.output_item.added"):
    """An item begins, without content."""


class OutputItemDoneEvent(_ItemEvent, frozen=True, tag="response.output_item.done"):
    """The whole item."""


class _PartEvent(msgspec.Struct, frozen=True):
    sequence_number: int
    item_id: str
    part: AnswerText | ReasoningText
    output_index: int = 0
    content_index: int = 0


class ContentPartAddedEvent(_PartEvent, frozen=True, tag="response.content_part.added"):
    """A part of an item, without text."""


class ContentPartDoneEvent(_PartEvent, frozen=True, tag="response.content_part.done"):
    """The part with the whole text."""


class TextDeltaEvent(msgspec.Struct, frozen=True, tag="response.output_text.delta"):
    """A piece of the text. `obfuscation` is padding, if the request asks for it."""

    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[ChatLogprob]
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET


class TextDoneEvent(msgspec.Struct, frozen=True, tag="response.output_text.done"):
    """The whole text."""

    sequence_number: int
    item_id: str
    text: str
    logprobs: list[ChatLogprob]
    output_index: int = 0
    content_index: int = 0


class ReasoningDeltaEvent(msgspec.Struct, frozen=True, tag="response.reasoning_text.delta"):
    """A piece of the thinking. `obfuscation` is padding, if the request asks for it."""

    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET


class ReasoningDoneEvent(msgspec.Struct, frozen=True, tag="response.reasoning_text.done"):
    """The whole thinking."""

    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    text: str


class ArgumentsDeltaEvent(msgspec.Struct, frozen=True, tag="response.function_call_arguments.delta"):
    """A piece of a call's arguments. `obfuscation` is padding, if the request asks for it."""

    sequence_number: int
    item_id: str
    output_index: int
    delta: str
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET


class ArgumentsDoneEvent(msgspec.Struct, frozen=True, tag="response.function_call_arguments.done"):
    """The whole arguments of a call."""

    sequence_number: int
    item_id: str
    output_index: int
    arguments: str
    name: str


class StreamErrorEvent(msgspec.Struct, frozen=True, tag="error"):
    """A failure of the server itself: no more events follow."""

    sequence_number: int
    code: str | None
    message: str
    param: str | None


StreamEvent = (
    ResponseCreatedEvent
    | ResponseQueuedEvent
    | ResponseInProgressEvent
    | ResponseCompletedEvent
    | ResponseIncompleteEvent
    | ResponseFailedEvent
    | OutputItemAddedEvent
    | OutputItemDoneEvent
    | ContentPartAddedEvent
    | ContentPartDoneEvent
    | TextDeltaEvent
    | TextDoneEvent
    | ReasoningDeltaEvent
    | ReasoningDoneEvent
    | ArgumentsDeltaEvent
    | ArgumentsDoneEvent
    | StreamErrorEvent
)


class EventForm(NamedTuple):
    """The beginning of an event, around its number: the same for all deltas of an item."""

    before: bytes
    behind: bytes = b""


class WrittenEvent(NamedTuple):
    """An event without its number."""

    form: EventForm
    rest: bytes


class EventWriter:
    """Writes events one after the other. `number` is that of the next one."""

    def __init__(self, number: int = 0, *, obfuscate: bool = False) -> None:
        self.number = number
        self._obfuscate = obfuscate

    def write(self, events: Iterable[WrittenEvent]) -> list[bytes]:
        """The events with their numbers, deltas padded if asked for. Runs once per token."""
        written = [b"%b%d%b%b" % (e.form.before, n, e.form.behind, e.rest) for n, e in enumerate(events, self.number)]
        self.number += len(written)
        return [_padded(event) for event in written] if self._obfuscate else written


def written(message: StreamEvent) -> WrittenEvent:
    """An event as JSON. Its own number does not count."""
    form = _form_of(str(message.__struct_config__.tag))
    data = _encode(msgspec.structs.replace(message, sequence_number=0))
    start = len(form.before) - form.before.index(b"{")
    return WrittenEvent(form, data[start + 1 :] + b"\n\n")


def delta_form(message: TextDeltaEvent | ReasoningDeltaEvent | ArgumentsDeltaEvent) -> EventForm:
    """The beginning of the deltas of an item, of which this is one."""
    form, rest = written(message)
    before, mark, _ = rest.partition(b'"delta":')
    return EventForm(form.before, before + mark)


def text_delta(form: EventForm, text: str, logprobs: bytes | None = None) -> WrittenEvent:
    """A delta. `logprobs` in JSON, None for one that has no such field."""
    if logprobs is None:
        return WrittenEvent(form, _encode(text) + b"}\n\n")
    return WrittenEvent(form, b'%b,"logprobs":%b}\n\n' % (_encode(text), logprobs))


@functools.cache
def _form_of(name: str) -> EventForm:
    return EventForm(f'event: {name}\ndata: {{"type":"{name}","sequence_number":'.encode())


def _padded(event: bytes) -> bytes:
    """An event with padding, if it is a delta."""
    name, _, _ = event.partition(b"\n")
    if not name.endswith(b".delta"):
        return event
    return b'%b,"obfuscation":"%b"}\n\n' % (event[:-3], _padding(len(event)))


def _padding(length: int) -> bytes:
    return "".join(random.choices(_PADDING, k=-length % _PADDED_TO)).encode()  # noqa: S311 -- hides a length, not a secret


def failure(error: ApiError) -> WrittenEvent:
    """The last event of a stream whose server failed."""
    return written(StreamErrorEvent(0, error.code, error.message, error.param))


def introduction_of(draft: ResponseObject) -> list[WrittenEvent]:
    """The first events of a response."""
    events: list[StreamEvent] = [ResponseCreatedEvent(0, draft)]
    if draft.status == "queued":
        events.append(ResponseQueuedEvent(0, draft))
    events.append(ResponseInProgressEvent(0, msgspec.structs.replace(draft, status="in_progress")))
    return [written(event) for event in events]


def last_of(final: ResponseObject) -> StreamEvent:
    """The last event of a response."""
    if final.status == "completed":
        return ResponseCompletedEvent(0, final)
    if final.status == "failed":
        return ResponseFailedEvent(0, final)
    return ResponseIncompleteEvent(0, final)

"""The events of a stream, numbered from 0. Each is a function of the response and its number, so a stream can resume.

response.created, [response.queued,] response.in_progress      introduction
response.output_item.added, response.content_part.added        opening, with the first piece of the answer
response.output_text.delta ...
response.output_text.done, response.content_part.done,
response.output_item.done, response.completed                  closing; or response.incomplete or response.failed

An answer with thinking or calls has several items, one after the other: `part_answer` writes their events.
"""

from __future__ import annotations

import random

import msgspec

from octavo_inference.server.errors import ApiError
from octavo_inference.server.openai.responses import ChatLogprob
from octavo_inference.server.openai_responses.items import AnswerText, MessageItem, OutputItem, ReasoningText
from octavo_inference.server.openai_responses.resource import ResponseObject

_PADDED_TO = 32
_PADDING = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_encode = msgspec.json.Encoder().encode


class _Fragment(msgspec.Struct):
    logprobs: list[ChatLogprob]


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


def fragment(text: str, logprobs: list[ChatLogprob]) -> bytes:
    """What is new in a delta event: the end of its JSON object, from the value of `delta` on."""
    if not logprobs:
        return _encode(text) + b',"logprobs":[]}'
    return b'%b,"logprobs":%b}' % (_encode(text), _encode(logprobs))


def fragment_logprobs(piece: bytes) -> list[ChatLogprob]:
    """The log-probabilities in a piece from `fragment`."""
    return msgspec.json.decode(b'{"delta":' + piece, type=_Fragment).logprobs


class EventWriter:
    """Writes the events of one response. `draft` is the response before its first token.

    `introduction` and `opening` are their events; `text_starts` is the number of the first delta.
    """

    def __init__(self, draft: ResponseObject, item_id: str, *, obfuscate: bool = False) -> None:
        self._item_id = item_id
        self._obfuscate = obfuscate
        self._head = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":'
        self._middle = b',"item_id":%b,"output_index":0,"content_index":0,"delta":' % _encode(item_id)
        self.introduction = introduction_of(draft)
        number = len(self.introduction)
        item = MessageItem(item_id, "assistant", [], "in_progress")
        self.opening = [
            _event(OutputItemAddedEvent(number, item)),
            _event(ContentPartAddedEvent(number + 1, item_id, AnswerText(""))),
        ]
        self.text_starts = number + 2

    def delta(self, index: int, piece: bytes) -> bytes:
        """The event of the piece of this index; `piece` is from `fragment`. Runs once per token."""
        if self._obfuscate:
            piece = b'%b,"obfuscation":"%b"}' % (piece[:-1], _padding(len(piece)))
        return b"%b%d%b%b\n\n" % (self._head, self.text_starts + index, self._middle, piece)

    def closing(self, pieces: int, final: ResponseObject) -> list[bytes]:
        """The events after the delta of the last piece. Without a message there is only the last event."""
        if not final.output:
            return [last_of(len(self.introduction), final)]
        [item] = final.output
        parts = item.content if isinstance(item, MessageItem) else []
        [part] = [part for part in parts if isinstance(part, AnswerText)]
        number = self.text_starts + pieces
        return [
            _event(TextDoneEvent(number, self._item_id, part.text, part.logprobs)),
            _event(ContentPartDoneEvent(number + 1, self._item_id, part)),
            _event(OutputItemDoneEvent(number + 2, item)),
            last_of(number + 3, final),
        ]


def encoded(message: StreamEvent, number: int) -> bytes:
    """An event with its number."""
    return _event(msgspec.structs.replace(message, sequence_number=number))


def padded(written: bytes) -> bytes:
    """An event with padding, if it is a delta."""
    name, _, _ = written.partition(b"\n")
    if not name.endswith(b".delta"):
        return written
    return b'%b,"obfuscation":"%b"}\n\n' % (written[:-3], _padding(len(written)))


def _padding(length: int) -> bytes:
    return "".join(random.choices(_PADDING, k=-length % _PADDED_TO)).encode()  # noqa: S311 -- hides a length, not a secret


def failure(number: int, error: ApiError) -> bytes:
    """The last event of a stream whose server failed."""
    return _event(StreamErrorEvent(number, error.code, error.message, error.param))


def introduction_of(draft: ResponseObject) -> list[bytes]:
    """The first events of a response."""
    events: list[StreamEvent] = [ResponseCreatedEvent(0, draft)]
    if draft.status == "queued":
        events.append(ResponseQueuedEvent(1, draft))
    running = msgspec.structs.replace(draft, status="in_progress")
    events.append(ResponseInProgressEvent(len(events), running))
    return [_event(event) for event in events]


def last_of(number: int, final: ResponseObject) -> bytes:
    """The last event of a response."""
    if final.status == "completed":
        return _event(ResponseCompletedEvent(number, final))
    if final.status == "failed":
        return _event(ResponseFailedEvent(number, final))
    return _event(ResponseIncompleteEvent(number, final))


def _event(message: StreamEvent) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(message.__struct_config__.tag).encode(), _encode(message))

"""Finds token usage in the bytes of answers and of stream events, in the form of each API. Pure.

A line that begins with `event:` cannot be the output of a model: inside a JSON string a newline is escaped. The same
holds for quotes, so a search for `"usage":` finds no text of a model. But clients choose the keys of `metadata`, and
models those of tool arguments, which Responses and Messages contain as objects: these answers are decoded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated, Final, TypeVar

import msgspec

from octavo_protocol.routes import UsageForm

_USAGE = b'"usage":'
_PROMPT = re.compile(rb'"prompt_tokens":\s{0,8}(\d{1,9})')
_CACHED = re.compile(rb'"cached_tokens":\s{0,8}(\d{1,9})')
_OUTPUT = re.compile(rb'"completion_tokens":\s{0,8}(\d{1,9})')
_RESPONSE_EVENT = re.compile(
    rb"^event: response\.(?:created|completed|incomplete|failed)\ndata: ([^\n]*)", re.MULTILINE
)
_MESSAGE_EVENT = re.compile(rb"^event: message_(?:start|delta)\ndata: ([^\n]*)", re.MULTILINE)

_Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """The usage in an answer or in some of its events. None: not reported there. `answer_id`: of a stored response.

    `prompt` includes the `cached` tokens.
    """

    prompt: int | None = None
    output: int | None = None
    cached: int | None = None
    answer_id: str = ""


@dataclass(frozen=True, slots=True)
class StreamMarks:
    """Bytes in the events of a stream. `token`: once per event that counts as a generated token.

    `began`: in the first event with output. `complete`: at least one is in the last event of a whole answer.
    """

    token: bytes
    began: bytes
    complete: tuple[bytes, ...]


_CHUNKS = StreamMarks(b"\n\n", b"data:", (b"data: [DONE]",))
_RESPONSE_DELTAS = StreamMarks(
    b".delta\ndata:", b".delta\ndata:", (b"event: response.completed\n", b"event: response.incomplete\n")
)
_MESSAGE_DELTA = b"event: content_block_delta\n"
_MESSAGE_DELTAS = StreamMarks(_MESSAGE_DELTA, _MESSAGE_DELTA, (b"event: message_stop\n",))
MARKS: Final = dict.fromkeys(UsageForm, _CHUNKS) | {
    UsageForm.RESPONSES: _RESPONSE_DELTAS,
    UsageForm.MESSAGES: _MESSAGE_DELTAS,
}
"""The marks of each form's streams."""


class _CachedTokens(msgspec.Struct):
    cached_tokens: _Count = 0


class _ResponseUsage(msgspec.Struct):
    input_tokens: _Count
    output_tokens: _Count
    input_tokens_details: _CachedTokens | None = None


class _Response(msgspec.Struct):
    id: str = ""
    usage: _ResponseUsage | None = None


class _ResponseEvent(msgspec.Struct):
    response: _Response


class _MessageUsage(msgspec.Struct):
    # Anthropic's `input_tokens` excludes the tokens that a cache provides or stores.
    input_tokens: _Count | None = None
    cache_creation_input_tokens: _Count | None = None
    cache_read_input_tokens: _Count | None = None
    output_tokens: _Count | None = None


class _Message(msgspec.Struct):
    usage: _MessageUsage | None = None


class _MessageEvent(msgspec.Struct):
    message: _Message | None = None
    usage: _MessageUsage | None = None


def in_answer(form: UsageForm, data: bytes) -> ReportedUsage | None:
    """The usage in a whole answer that is not a stream."""
    match form:
        case UsageForm.NONE:
            return None
        case UsageForm.RESPONSES:
            response = _decoded(data, _Response)
            return _of_response(response) if response else None
        case UsageForm.MESSAGES:
            message = _decoded(data, _Message)
            return _of_message(message.usage) if message else None
        case _:
            return _of_chunks(data)


def in_events(form: UsageForm, data: bytes) -> list[ReportedUsage]:
    """The usage in whole events of a stream, in order."""
    match form:
        case UsageForm.NONE:
            return []
        case UsageForm.RESPONSES:
            events = (_decoded(found[1], _ResponseEvent) for found in _RESPONSE_EVENT.finditer(data))
            return [_of_response(event.response) for event in events if event]
        case UsageForm.MESSAGES:
            messages = (_decoded(found[1], _MessageEvent) for found in _MESSAGE_EVENT.finditer(data))
            return [_of_message_event(message) for message in messages if message]
        case _:
            found = _of_chunks(data)
            return [found] if found else []


def _of_chunks(data: bytes) -> ReportedUsage | None:
    start = data.rfind(_USAGE)
    prompt = _PROMPT.search(data, start) if start >= 0 else None
    if prompt is None:
        return None
    output, cached = _OUTPUT.search(data, start), _CACHED.search(data, start)
    return ReportedUsage(int(prompt[1]), int(output[1]) if output else 0, int(cached[1]) if cached else None)


def _of_response(response: _Response) -> ReportedUsage:
    usage = response.usage
    if usage is None:
        return ReportedUsage(answer_id=response.id)
    details = usage.input_tokens_details
    return ReportedUsage(
        usage.input_tokens, usage.output_tokens, details.cached_tokens if details else None, response.id
    )


def _of_message_event(event: _MessageEvent) -> ReportedUsage:
    if event.message is None:
        return _of_message(event.usage)
    # `message_start` has a number of output tokens before there is output.
    return replace(_of_message(event.message.usage), output=None)


def _of_message(usage: _MessageUsage | None) -> ReportedUsage:
    if usage is None:
        return ReportedUsage()
    if usage.input_tokens is None:
        return ReportedUsage(output=usage.output_tokens)
    cached = usage.cache_read_input_tokens
    prompt = usage.input_tokens + (usage.cache_creation_input_tokens or 0) + (cached or 0)
    return ReportedUsage(prompt, usage.output_tokens, cached)


def _decoded(data: bytes, kind: type[_Struct]) -> _Struct | None:
    """A message; None if it is not of this kind, which is no reason to withhold it from the client."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None

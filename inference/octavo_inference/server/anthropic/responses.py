"""The response bodies and stream events of the Anthropic API."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from octavo_inference.core.request import DEADLINE
from octavo_inference.server.generation import TokenCounts
from octavo_inference.tokenizer.detokenizer import Delta

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
# Clients send it back with the thinking; nothing is derived from it.
SIGNATURE = "octavo"


class MessageUsage(msgspec.Struct, frozen=True):
    """Token counts. The prompt has `input_tokens` and, from the prefix cache, `cache_read_input_tokens`.

    The cache is automatic, so nothing is written to it on request.
    """

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    service_tier: Literal["standard"] = "standard"

    @classmethod
    def of(cls, counts: TokenCounts) -> MessageUsage:
        """Build the usage from the token counts of a generation."""
        return cls(counts.prompt - counts.cached, counts.completion, counts.cached)


class AnswerBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text of the answer."""

    text: str
    citations: None = None


class ThinkingAnswerBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """Thinking before the answer. `signature` is always the same."""

    thinking: str
    signature: str


class ToolUseAnswerBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool. `input` is empty if a limit ended the answer within the call."""

    id: str
    name: str
    input: dict[str, Any]


AnyAnswerBlock = AnswerBlock | ThinkingAnswerBlock | ToolUseAnswerBlock


class AnswerMessage(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """POST /v1/messages without `stream`. `content` is empty if the answer has no text."""

    id: str
    model: str
    content: list[AnyAnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    role: Literal["assistant"] = "assistant"
    stop_details: None = None


class TokenCount(msgspec.Struct, frozen=True):
    """POST /v1/messages/count_tokens."""

    input_tokens: int


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event: the message without content."""

    message: AnswerMessage


class ContentBlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins, without content."""

    index: int
    content_block: AnyAnswerBlock


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """Nothing happened; it keeps the connection open."""


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More text of a block."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More thinking of a block."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The end of a block of thinking."""

    signature: str


class InputJsonDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """More of a call's input: all parts together are a JSON object."""

    partial_json: str


class ContentBlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """A block grows."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class ContentBlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """A block is complete."""

    index: int


class StopDelta(msgspec.Struct, frozen=True):
    """Why the answer ended."""

    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: None = None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The answer has ended; `usage` has the final counts."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event."""


THREAD_UNSUPPORTED = "thread_unsupported_request"


class ThreadUnsupported(msgspec.Struct, frozen=True):
    """With it, a client that keeps a conversation in a thread goes on by sending the whole conversation."""

    error_code: str = THREAD_UNSUPPORTED
    unsupported: tuple[str, ...] = ("thread",)


class AnthropicErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong: `type` for programs, `message` for people, `details` for what a client can mend itself."""

    type: str
    message: str
    details: ThreadUnsupported | msgspec.UnsetType = msgspec.UNSET


class AnthropicError(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """An error, as a response or as the last event of a stream."""

    error: AnthropicErrorDetail
    request_id: str


Event = (
    MessageStart
    | ContentBlockStart
    | Ping
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | AnthropicError
)


def ending(answer: Delta, *, shortened: bool, calls: bool = False) -> StopDelta:
    """Why an answer ended.

    `shortened`: the model's context had no room for all of `max_tokens`. `calls`: the answer calls tools.
    """
    if answer.finish_reason == "length":
        at_context = shortened and answer.stop_reason != DEADLINE
        return StopDelta("model_context_window_exceeded" if at_context else "max_tokens", None)
    if isinstance(answer.stop_reason, str):
        return StopDelta("stop_sequence", answer.stop_reason)
    if calls:
        return StopDelta("tool_use", None)
    return StopDelta("end_turn", None)

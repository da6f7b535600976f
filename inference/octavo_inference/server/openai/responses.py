"""The response bodies of the OpenAI API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from octavo_inference.core.request import TokenLogprobs
from octavo_inference.models.task import Task
from octavo_inference.server.generation import TokenCounts
from octavo_inference.server.openai.token_text import TextOffsets, TokenLabels

# JSON has no minus infinity; OpenAI's API has this value for a token that cannot occur.
_IMPOSSIBLE = -9999.0


class PromptDetails(msgspec.Struct, frozen=True):
    """Details of the prompt tokens: how many were found in the prefix cache."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    """Details of the generated tokens: how many were thinking."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a request. `completion_tokens_details` is present if the model thinks."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | UnsetType = UNSET

    @classmethod
    def of(cls, counts: TokenCounts) -> Usage:
        """Build the usage from the token counts of a generation."""
        details = UNSET if counts.reasoning is None else CompletionDetails(counts.reasoning)
        total = counts.prompt + counts.completion
        return cls(counts.prompt, counts.completion, total, PromptDetails(counts.cached), details)


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative for a token."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    """One token of an answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Tokens of a chat answer."""

    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Tokens of a completion, field by field. `text_offset` counts characters from the start of the choice's text.

    With `echo`, the tokens of the prompt come first. The first one has no log-probability.
    """

    tokens: list[str] = msgspec.field(default_factory=list)
    token_logprobs: list[float | None] = msgspec.field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = msgspec.field(default_factory=list)
    text_offset: list[int] = msgspec.field(default_factory=list)


class PromptLogprob(msgspec.Struct, frozen=True):
    """One token at a place of the prompt. `rank` 1 is the most likely one."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""Per prompt token, itself and its alternatives by token id; None for the first."""


class CalledFunctionText(msgspec.Struct, frozen=True):
    """The function of a call. `arguments` is a JSON object as text."""

    name: str
    arguments: str


class ToolCallMessage(msgspec.Struct, frozen=True):
    """A call of a tool."""

    id: str
    function: CalledFunctionText
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    """The message that the model wrote. `content` is null if it has calls and no text.

    `tool_calls` is present with calls, `function_call` instead if the request has `functions`. `reasoning` and
    `reasoning_content` are the same text, present if the model thought.
    """

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallMessage] | UnsetType = UNSET
    function_call: CalledFunctionText | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One of n answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET


class ChatResponse(msgspec.Struct, frozen=True):
    """POST /v1/chat/completions without `stream`."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"
    system_fingerprint: None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is new in a call: at its start its name, and the next part of its arguments."""

    arguments: str
    name: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is new in the call with this index. `id` and `type` are present at its start."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: Literal["function"] | None = None


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The delta of a chunk. `reasoning` and `reasoning_content` are the same text."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    function_call: FunctionDelta | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    """One answer's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True):
    """One event of a chat stream. `usage` is present, null or filled, only if requested.

    `prompt_token_ids` and `prompt_logprobs` are in the first event. `obfuscation` are random characters, if requested.
    """

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: str = "chat.completion.chunk"
    system_fingerprint: None = None
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET


class TextChoice(msgspec.Struct, frozen=True):
    """One completion, or its part of a chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class TextResponse(msgspec.Struct, frozen=True):
    """POST /v1/completions, whole or one event."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    object: str = "text_completion"
    system_fingerprint: None = None
    usage: Usage | UnsetType | None = UNSET
    obfuscation: str | UnsetType = UNSET


class ModelObject(msgspec.Struct, frozen=True):
    """A model that is served.

    `task` is generate for models that predict tokens, embed for those that give embeddings alone, and score for those
    that score pairs of texts; null while the model is loading. `parent` is the model that an adapter changes; null for
    the model itself.
    """

    id: str
    created: int
    root: str
    max_model_len: int | None
    task: Task | None = None
    parent: str | None = None
    object: str = "model"
    owned_by: str = "octavo"


class ModelList(msgspec.Struct, frozen=True):
    """GET /v1/models."""

    data: list[ModelObject]
    object: str = "list"


def chat_logprobs(labels: TokenLabels, tokens: list[int], logprobs: list[TokenLogprobs]) -> list[ChatLogprob]:
    """Log-probabilities in the chat endpoint's form."""
    rows = []
    for token, entry in zip(tokens, logprobs, strict=True):
        top = [TopLogprob(*_named(labels, other, logprob)) for other, logprob in _alternatives(entry)]
        rows.append(ChatLogprob(*_named(labels, token, entry.logprob), top))
    return rows


def completion_logprobs(
    labels: TokenLabels, tokens: list[int], logprobs: Sequence[TokenLogprobs | None], offsets: TextOffsets
) -> CompletionLogprobs:
    """Log-probabilities in the completion endpoint's form. `offsets` counts on from the tokens before."""
    result = CompletionLogprobs()
    for token, entry in zip(tokens, logprobs, strict=True):
        result.tokens.append(labels.label(token))
        result.text_offset.append(offsets.next(token))
        if entry is None:
            result.token_logprobs.append(None)
            result.top_logprobs.append(None)
        else:
            logprob = max(entry.logprob, _IMPOSSIBLE)
            result.token_logprobs.append(logprob)
            result.top_logprobs.append(labels.keyed(token, logprob, _alternatives(entry)))
    return result


def prompt_logprobs(labels: TokenLabels, tokens: list[int], logprobs: Sequence[TokenLogprobs | None]) -> PromptLogprobs:
    """Log-probabilities of a prompt: its token, then the most likely ones."""
    rows: PromptLogprobs = []
    for token, entry in zip(tokens, logprobs, strict=True):
        if entry is None:
            rows.append(None)
            continue
        ranked = [(token, entry.logprob, entry.rank)]
        ranked += [
            (other, value, rank) for rank, (other, value) in enumerate(_alternatives(entry), 1) if other != token
        ]
        rows.append(
            {str(t): PromptLogprob(max(value, _IMPOSSIBLE), rank, labels.label(t)) for t, value, rank in ranked}
        )
    return rows


def trimmed(logprobs: Sequence[TokenLogprobs | None], top: int) -> list[TokenLogprobs | None]:
    """The entries with at most `top` alternatives each."""
    return [
        entry and TokenLogprobs(entry.logprob, entry.rank, entry.top_ids[:top], entry.top_logprobs[:top])
        for entry in logprobs
    ]


def _alternatives(entry: TokenLogprobs) -> list[tuple[int, float]]:
    pairs = zip(entry.top_ids, entry.top_logprobs, strict=True)
    return [(token, max(logprob, _IMPOSSIBLE)) for token, logprob in pairs]


def _named(labels: TokenLabels, token: int, logprob: float) -> tuple[str, float, list[int]]:
    text, data = labels.shown(token)
    return text, max(logprob, _IMPOSSIBLE), data

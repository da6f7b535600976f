"""The response bodies of the OpenAI API."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType
from tokenizers import Tokenizer

from octavo_inference.core.request import TokenLogprobs
from octavo_inference.server.generation import TokenCounts
from octavo_inference.tokenizer.detokenizer import token_bytes


class PromptDetails(msgspec.Struct, frozen=True):
    """Details of the prompt tokens: how many were found in the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails

    @classmethod
    def of(cls, counts: TokenCounts) -> Usage:
        """Build the usage from the token counts of a generation."""
        return cls(counts.prompt, counts.completion, counts.prompt + counts.completion, PromptDetails(counts.cached))


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
    """Tokens of a completion, field by field. `text_offset` counts characters from the start of the choice's text."""

    tokens: list[str] = msgspec.field(default_factory=list)
    token_logprobs: list[float] = msgspec.field(default_factory=list)
    top_logprobs: list[dict[str, float]] = msgspec.field(default_factory=list)
    text_offset: list[int] = msgspec.field(default_factory=list)


class ChatMessage(msgspec.Struct, frozen=True):
    """The message that the model wrote."""

    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """One of n answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: int | str | None


class ChatResponse(msgspec.Struct, frozen=True):
    """POST /v1/chat/completions without `stream`."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"
    system_fingerprint: None = None


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The delta of a chunk."""

    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    """One answer's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET


class ChatChunk(msgspec.Struct, frozen=True):
    """One event of a chat stream. `usage` is present, null or filled, only if requested."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: str = "chat.completion.chunk"
    system_fingerprint: None = None
    usage: Usage | UnsetType | None = UNSET


class TextChoice(msgspec.Struct, frozen=True):
    """One completion, or its part of a chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET


class TextResponse(msgspec.Struct, frozen=True):
    """POST /v1/completions, whole or one event."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    object: str = "text_completion"
    system_fingerprint: None = None
    usage: Usage | UnsetType | None = UNSET


class ModelObject(msgspec.Struct, frozen=True):
    """A model that is served."""

    id: str
    created: int
    root: str
    max_model_len: int | None
    object: str = "model"
    owned_by: str = "octavo"


class ModelList(msgspec.Struct, frozen=True):
    """GET /v1/models."""

    data: list[ModelObject]
    object: str = "list"


def chat_logprobs(tokenizer: Tokenizer, tokens: list[int], logprobs: list[TokenLogprobs]) -> list[ChatLogprob]:
    """Log-probabilities in the chat endpoint's form."""
    rows = []
    for token, entry in zip(tokens, logprobs, strict=True):
        top = [
            TopLogprob(*_named(tokenizer, other, logprob))
            for other, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)
        ]
        rows.append(ChatLogprob(*_named(tokenizer, token, entry.logprob), top))
    return rows


def completion_logprobs(
    tokenizer: Tokenizer, tokens: list[int], logprobs: list[TokenLogprobs], offset: int
) -> CompletionLogprobs:
    """Log-probabilities in the completion endpoint's form; `offset` is that of the first token."""
    result = CompletionLogprobs()
    for token, entry in zip(tokens, logprobs, strict=True):
        text = token_text(tokenizer, token)
        result.tokens.append(text)
        result.token_logprobs.append(entry.logprob)
        alternatives = zip(entry.top_ids, entry.top_logprobs, strict=True)
        result.top_logprobs.append({token_text(tokenizer, other): logprob for other, logprob in alternatives})
        result.text_offset.append(offset)
        offset += len(text)
    return result


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token as text; incomplete characters become U+FFFD."""
    return token_bytes(tokenizer, token).decode("utf-8", "replace")


def _named(tokenizer: Tokenizer, token: int, logprob: float) -> tuple[str, float, list[int]]:
    data = token_bytes(tokenizer, token)
    return data.decode("utf-8", "replace"), logprob, list(data)

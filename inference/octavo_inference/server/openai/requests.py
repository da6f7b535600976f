"""The request bodies: types and bounds of every supported field; `server.json_body` rejects all other fields.

Fields typed `None` exist in the OpenAI API but are not supported: only `null` is accepted.
Accepted without effect: `user`, `metadata`, `safety_identifier`, `prompt_cache_key`, `store` false, `service_tier` auto
or default, `response_format` text, `parallel_tool_calls` null.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar, cast

import msgspec
from msgspec import Meta

from octavo_inference.core.request import MAX_LOGPROBS, SamplingParams
from octavo_inference.server.errors import invalid
from octavo_inference.server.prompts import SchedulingFields

MAX_PROMPTS = 128
MAX_STOP = 4

Int31 = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=256)]
Label = Annotated[str, Meta(max_length=512)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: bool | None = None


class TextFormat(msgspec.Struct, forbid_unknown_fields=True):
    """The only supported response format."""

    type: Literal["text"]


class Common(SchedulingFields, forbid_unknown_fields=True, kw_only=True):
    """Fields common to both endpoints."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    max_tokens: Int31 | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    user: Label | None = None
    metadata: Annotated[dict[Label, Label], Meta(max_length=16)] | None = None

    logit_bias: None = None

    @property
    def include_usage(self) -> bool:
        """True if a stream ends with the token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One message. The null fields occur in answers of this server or OpenAI that a client sends back."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Meta(min_length=1, max_length=4096)]
    name: Annotated[str, Meta(max_length=64)] | None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None
    audio: None = None
    annotations: None = None

    @property
    def text(self) -> str:
        """The content as one string."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(Common):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: Int31 | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None

    response_format: TextFormat | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None

    tools: None = None
    tool_choice: None = None
    parallel_tool_calls: None = None
    functions: None = None
    function_call: None = None
    modalities: None = None
    audio: None = None
    prediction: None = None
    reasoning_effort: None = None
    verbosity: None = None
    web_search_options: None = None


class CompletionRequest(Common):
    """POST /v1/completions."""

    prompt: str | Annotated[list[str | TokenId | Annotated[list[TokenId], Meta(min_length=1)]], Meta(min_length=1)]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    suffix: None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids. Raises `ApiError`."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if set(map(type, self.prompt)) == {int}:  # may be a million: no loop in Python
            return [cast("list[int]", self.prompt)]
        if len(self.prompt) > MAX_PROMPTS:
            raise invalid(f"prompt: {len(self.prompt)} prompts in one request; the limit is {MAX_PROMPTS}.", "prompt")
        prompts = [part for part in self.prompt if not isinstance(part, int)]
        if len(prompts) != len(self.prompt) or len({type(part) for part in prompts}) > 1:
            raise invalid(
                "prompt: give one text, a list of texts, a list of tokens or a list of token lists.", "prompt"
            )
        return prompts


def sampling(body: Common, *, max_tokens: int, logprobs: int | None, vocab_size: int) -> SamplingParams:
    """The engine's parameters. Raises `ApiError` for values that conflict with each other or the model."""
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid(f"min_tokens: {min_tokens} is more than max_tokens ({max_tokens}).", "min_tokens")
    stop_ids = tuple(body.stop_token_ids or ())
    unknown = [token for token in stop_ids if token >= vocab_size]
    if unknown:
        raise invalid(
            f"stop_token_ids: {unknown[0]} is not a token; the vocabulary has {vocab_size}.", "stop_token_ids"
        )
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return SamplingParams(
        n=_or(body.n, 1),
        temperature=_or(body.temperature, 1.0),
        top_p=_or(body.top_p, 1.0),
        # Clients send 100,000 for "all", whatever the vocabulary.
        top_k=min(max(_or(body.top_k, 0), 0), vocab_size),
        min_p=_or(body.min_p, 0.0),
        seed=body.seed,
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        stop=stop,
        stop_token_ids=stop_ids,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
    )


Value = TypeVar("Value", int, float)


def _or(value: Value | None, default: Value) -> Value:
    return default if value is None else value

"""The request bodies: types and bounds of every supported field; `server.json_body` rejects all other fields.

Fields that accept only `null`, an empty list or one value exist in the OpenAI API, but this server does not support
them. `server.refusals` lists the supported values from these types. `openai.accepted` has the fields without effect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta
from tokenizers import Tokenizer

from octavo_inference.core.request import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_LOGPROBS,
    MAX_PROMPT_LOGPROBS,
    SamplingParams,
)
from octavo_inference.grammar.structured_outputs import StructuredOutputs
from octavo_inference.server.errors import invalid
from octavo_inference.server.openai.accepted import AcceptedFields, Label
from octavo_inference.server.openai.messages import Message
from octavo_inference.server.openai.tools import FunctionList, FunctionName, ToolChoiceOption, ToolList
from octavo_inference.server.structured_output import ResponseFormat
from octavo_inference.tokenizer.bad_words import token_sequences

MAX_PROMPTS = 128
# OpenAI takes 4; editors that complete code send a dozen.
MAX_STOP = 64
MAX_ALLOWED = 1024

Int31 = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
ShortText = Annotated[str, Meta(min_length=1, max_length=256)]
Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream.

    `include_usage` ends it with the token counts; with `continuous_usage_stats`, every chunk has those so far.
    `include_obfuscation` adds random characters to every chunk, so that its size does not reveal its text.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Common(AcceptedFields, forbid_unknown_fields=True, kw_only=True):
    """Fields common to both endpoints."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    max_tokens: Int31 | None = None
    max_completion_tokens: Int31 | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: ShortText | Annotated[list[ShortText], Meta(max_length=MAX_STOP)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: Literal[True] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=MAX_LOGIT_BIAS)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_ALLOWED)] | None = None
    bad_words: Annotated[list[ShortText], Meta(max_length=MAX_BAD_WORDS)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: Logprobs | None = None
    logprob_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_LOGPROB_TOKEN_IDS)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    echo: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def answer_tokens(self) -> int | None:
        """The maximum number of tokens of an answer, by either name. Raises `ApiError` if the two differ."""
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise invalid(
                f"max_completion_tokens: {new} differs from max_tokens ({old}), which means the same; give one.",
                "max_completion_tokens",
            )
        return old if new is None else new


class ChatRequest(Common, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=4096)]
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[Label, Any], Meta(max_length=64)] | None = None
    documents: Annotated[list[dict[str, Any]], Meta(max_length=128)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    tools: ToolList | None = None
    tool_choice: ToolChoiceOption | None = None
    parallel_tool_calls: bool | None = None
    functions: FunctionList | None = None
    function_call: Literal["none", "auto"] | FunctionName | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    modalities: list[Literal["text"]] | None = None
    audio: None = None
    prediction: None = None
    web_search_options: None = None
    chat_template: None = None


class CompletionRequest(Common, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | Annotated[list[str | TokenId | Annotated[list[TokenId], Meta(min_length=1)]], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    logprobs: Logprobs | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    """How many answers to generate per prompt; the `n` with the highest mean log-probability are returned."""
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


def check(body: Common) -> None:
    """Refuse fields that need another one. Raises `ApiError`."""
    options = body.stream_options
    if options is not None and not body.stream:
        raise invalid("stream_options: needs stream to be true.", "stream_options")
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        raise invalid(
            "stream_options.continuous_usage_stats: needs include_usage to be true.",
            "stream_options.continuous_usage_stats",
        )
    if body.truncate_prompt_tokens == 0:
        raise invalid(
            "truncate_prompt_tokens: 0 leaves no prompt; give the number of tokens to keep, or -1 for all that fit.",
            "truncate_prompt_tokens",
        )


def check_prompt_logprobs(lengths: list[int], alternatives: int | None, field: str) -> None:
    """Refuse more log-probabilities of prompt tokens than a response may hold. Raises `ApiError`."""
    if alternatives is None:
        return
    values = sum(lengths) * (alternatives + 1)
    if values > MAX_PROMPT_LOGPROBS:
        raise invalid(
            f"{field}: {sum(lengths)} prompt tokens with {alternatives} alternatives each are {values} "
            f"log-probabilities; the limit is {MAX_PROMPT_LOGPROBS}. Send fewer prompts or ask for fewer alternatives.",
            field,
        )


def bad_words(body: Common, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The token sequences of the words that must not be generated. Raises `ApiError` if they are too many."""
    if not body.bad_words:
        return ()
    sequences = token_sequences(tokenizer, body.bad_words)
    tokens = sum(map(len, sequences))
    if len(sequences) > MAX_BAD_WORDS or tokens > MAX_BAD_WORD_TOKENS:
        raise invalid(
            f"bad_words: with and without a space before them, they are {len(sequences)} sequences of {tokens} tokens; "
            f"the limit is {MAX_BAD_WORDS} sequences of {MAX_BAD_WORD_TOKENS} tokens in all. Send fewer words.",
            "bad_words",
        )
    return sequences


def sampling(
    body: Common,
    *,
    max_tokens: int,
    logprobs: int | None,
    vocab_size: int,
    bad_words: tuple[tuple[int, ...], ...] = (),
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """The engine's parameters. Raises `ApiError` for values that conflict with each other or the model.

    `bad_words` are the tokens of the body's field of that name.
    """
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid(f"min_tokens: {min_tokens} is more than max_tokens ({max_tokens}).", "min_tokens")
    for field in ("stop_token_ids", "logit_bias", "allowed_token_ids", "logprob_token_ids"):
        unknown = next((token for token in getattr(body, field) or () if token >= vocab_size), None)
        if unknown is not None:
            raise invalid(f"{field}: {unknown} is not a token; the vocabulary has {vocab_size}.", field)
    if body.logprob_token_ids and logprobs is None:
        raise invalid("logprob_token_ids: needs logprobs.", "logprob_token_ids")
    if body.logprob_token_ids and logprobs:
        raise invalid(
            f"logprob_token_ids: they are reported instead of the {logprobs} most likely tokens; ask for 0 of those.",
            "logprob_token_ids",
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
        stop_token_ids=tuple(body.stop_token_ids or ()),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=bool(body.ignore_eos),
        skip_special_tokens=body.skip_special_tokens is not False,
        include_stop_str_in_output=bool(body.include_stop_str_in_output),
        logprobs=logprobs,
        logit_bias=tuple((body.logit_bias or {}).items()),
        allowed_token_ids=tuple(dict.fromkeys(body.allowed_token_ids or ())),
        bad_words=bad_words,
        prompt_logprobs=prompt_logprobs,
        logprob_token_ids=tuple(dict.fromkeys(body.logprob_token_ids or ())),
    )


Value = TypeVar("Value", int, float)


def _or(value: Value | None, default: Value) -> Value:
    return default if value is None else value

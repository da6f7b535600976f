"""The bodies of the tokenizer's endpoints. Names are vLLM's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo_inference.server.errors import ApiError, invalid
from octavo_inference.server.openai.accepted import Label
from octavo_inference.server.openai.messages import Message
from octavo_inference.server.openai.requests import ChatRequest, TokenId
from octavo_inference.server.openai.tools import ToolList

# Fields of messages, as in a chat completion.
_CHAT_FIELDS = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "documents",
    "reasoning_effort",
    "tools",
)
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /tokenize: `prompt` or `messages`.

    `add_special_tokens` adds what the tokenizer adds to a text, such as a first token. It defaults to true for a
    prompt, and to false for messages, whose template adds them. `return_token_strs` adds the vocabulary's names of the
    tokens. The other options are those of a chat completion.
    """

    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=4096)] | None = None
    model: ModelName | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[Label, Any], Meta(max_length=64)] | None = None
    documents: Annotated[list[dict[str, Any]], Meta(max_length=128)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    tools: ToolList | None = None
    chat_template: None = None
    media_io_kwargs: None = None
    mm_processor_kwargs: None = None

    def check(self) -> None:
        """Raise `ApiError` for fields that contradict each other."""
        if (self.prompt is None) == (self.messages is None):
            raise invalid("prompt: give either prompt or messages.", "prompt")
        if self.messages is None:
            for name in _CHAT_FIELDS:
                if getattr(self, name) is not None:
                    raise _only_with_messages(name)

    def chat(self) -> ChatRequest:
        """The chat completion whose prompt is tokenized."""
        fields = {name: getattr(self, name) for name in _CHAT_FIELDS}
        return ChatRequest(model=self.model or "", messages=self.messages or [], **fields)


class Tokenized(msgspec.Struct, frozen=True):
    """The tokens of a text. `max_model_len` is the size of the model's context, which `count` may exceed."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /detokenize."""

    tokens: list[TokenId]
    model: ModelName | None = None


class Detokenized(msgspec.Struct, frozen=True):
    """The text of the tokens, special tokens included."""

    prompt: str


class AddedToken(msgspec.Struct, frozen=True):
    """A token outside the vocabulary that was trained."""

    content: str
    lstrip: bool
    normalized: bool
    rstrip: bool
    single_word: bool
    special: bool


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tokenizer_info: the content of a tokenizer_config.json, and the sizes.

    A special token is null if the model has none; so is `chat_template`. `vocab_size` counts the rows of the model's
    output, which may exceed the tokens of the tokenizer.
    """

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    additional_special_tokens: list[str]
    added_tokens_decoder: dict[int, AddedToken]
    chat_template: str | None
    model_max_length: int
    vocab_size: int


def _only_with_messages(name: str) -> ApiError:
    return invalid(f"{name}: only messages have one; leave it out for a prompt.", name)

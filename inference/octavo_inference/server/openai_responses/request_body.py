"""The bodies of POST /v1/responses and POST /v1/responses/input_tokens: supported fields and their bounds.

Fields typed `None` exist in OpenAI's API but are not supported: only `null` is accepted. Some others are accepted
because the only values allowed ask for nothing, such as `context_management: []`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo_inference.core.request import MAX_LOGPROBS
from octavo_inference.server.openai_responses.items import MAX_ITEMS, InputItem
from octavo_inference.server.openai_responses.tools import ToolChoiceOption, ToolList
from octavo_inference.server.prompts import SchedulingFields
from octavo_inference.server.structured_output import FormatName

ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
ResponseId = Annotated[str, Meta(min_length=1, max_length=128)]
Int31 = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Label = Annotated[str, Meta(max_length=512)]
MetadataKey = Annotated[str, Meta(max_length=64)]
EmptyList = Annotated[list[Any], Meta(max_length=0)]
INCLUDE_LOGPROBS = "message.output_text.logprobs"
# The others concern output that this server does not produce, so they ask for nothing.
Includable = Literal[
    "message.output_text.logprobs",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
]


class TextFormatOption(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The form of the answer. The other fields belong to `json_schema`, which needs `name` and `schema`.

    A schema is enforced in full with `strict` false, too. Name and description have no effect.
    """

    type: Literal["text", "json_object", "json_schema"]
    name: FormatName | None = None
    schema: dict[str, Any] | None = None
    description: Annotated[str, Meta(max_length=4096)] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The form of the answer."""

    format: TextFormatOption | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How much the model thinks, if its chat template has a variable for that. There are no summaries."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto"] | None = None
    generate_summary: None = None


class ResponseStreamOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Options of a stream. Obfuscation is off unless requested, unlike OpenAI's."""

    include_obfuscation: bool | None = None


class InputFields(SchedulingFields, forbid_unknown_fields=True, kw_only=True):
    """Fields that determine the prompt, and those that must ask for nothing."""

    input: str | Annotated[list[InputItem], Meta(max_length=MAX_ITEMS)] | None = None
    instructions: str | None = None
    previous_response_id: ResponseId | None = None
    truncation: Literal["auto", "disabled"] | None = None

    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: ToolList | None = None
    tool_choice: ToolChoiceOption | None = None
    parallel_tool_calls: bool | None = None
    conversation: None = None


class InputTokensBody(InputFields):
    """POST /v1/responses/input_tokens. `model` defaults to the model that is served; scheduling has no effect."""

    model: ModelName | None = None


class CreateResponseBody(InputFields):
    """POST /v1/responses."""

    model: ModelName
    max_output_tokens: Int31 | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    include: Annotated[list[Includable], Meta(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    background: bool | None = None

    metadata: Annotated[dict[MetadataKey, Label], Meta(max_length=16)] | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    max_tool_calls: Int31 | None = None
    context_management: EmptyList | None = None

    # Fields of vLLM, which load tools send.
    ignore_eos: bool | None = None
    stop: None = None

    prompt: None = None
    prompt_cache_options: None = None
    moderation: None = None

    @property
    def wants_logprobs(self) -> bool:
        """True if the answer includes the log-probabilities of its tokens."""
        return INCLUDE_LOGPROBS in (self.include or ())

    @property
    def wants_obfuscation(self) -> bool:
        """True if the deltas of the stream are padded."""
        return bool(self.stream_options and self.stream_options.include_obfuscation)

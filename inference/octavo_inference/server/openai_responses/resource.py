"""The response object and the other messages that these endpoints return."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from octavo_inference.server.generation import TokenCounts
from octavo_inference.server.openai_responses.items import Item, OutputItem
from octavo_inference.server.openai_responses.tools import ResponseTool, ToolChoiceOption

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
FINAL: frozenset[Status] = frozenset({"completed", "incomplete", "failed", "cancelled"})


class InputTokensDetails(msgspec.Struct, frozen=True):
    """How many input tokens were found in the prefix cache. Writing to it is not counted."""

    cached_tokens: int
    cache_write_tokens: Literal[0] = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """How many output tokens were thinking."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, counts: TokenCounts) -> ResponseUsage:
        """Build the usage from the token counts of a generation."""
        return cls(
            counts.prompt,
            InputTokensDetails(counts.cached),
            counts.completion,
            OutputTokensDetails(counts.reasoning or 0),
            counts.prompt + counts.completion,
        )


class ResponseFailure(msgspec.Struct, frozen=True):
    """Why a response failed."""

    code: Literal["server_error", "invalid_prompt"]
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response ended early: its token limit, or the deadline of `X-Request-Timeout`."""

    reason: Literal["max_output_tokens", "deadline"]


class TextFormatObject(msgspec.Struct, frozen=True):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | UnsetType = UNSET
    schema: dict[str, Any] | UnsetType = UNSET
    description: str | UnsetType = UNSET
    strict: bool | UnsetType = UNSET


class TextSettings(msgspec.Struct, frozen=True):
    """Settings of the answer's text."""

    format: TextFormatObject = TextFormatObject()
    verbosity: Literal["medium"] = "medium"


class ReasoningSettings(msgspec.Struct, frozen=True):
    """How much the model thinks. There are no summaries."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: None = None


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response. Times are Unix times in seconds. Fields that repeat the request have the values in effect."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    background: bool
    completed_at: int | None = None
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningSettings
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: TextSettings = TextSettings()
    tool_choice: ToolChoiceOption
    tools: list[ResponseTool] = []
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, str]


class DeletedResponse(msgspec.Struct, frozen=True):
    """DELETE /v1/responses/{id}."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ItemPage(msgspec.Struct, frozen=True):
    """GET /v1/responses/{id}/input_items: a page of the items before the answer."""

    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class InputTokenCount(msgspec.Struct, frozen=True):
    """POST /v1/responses/input_tokens: tokens of the prompt."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"

"""The request bodies of the Anthropic API: types and bounds of every supported field.

Accepted without effect: `cache_control`, `metadata.user_id`, `service_tier`, `speed` standard, `mcp_servers` and
`citations` empty, and null for what is not supported.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest

from octavo_inference.core.request import SamplingParams
from octavo_inference.grammar.structured_outputs import Constraint, schema_constraint
from octavo_inference.server import json_body
from octavo_inference.server.anthropic.blocks import CacheControl, Content, Empty, Texts
from octavo_inference.server.anthropic.responses import THREAD_UNSUPPORTED
from octavo_inference.server.anthropic.tools import AnthropicToolChoice, ToolList
from octavo_inference.server.errors import ApiError, invalid
from octavo_inference.server.prompts import SchedulingFields

MAX_MESSAGES = 4096
MAX_STOP_SEQUENCES = 64

NO_THREADS = "thread: this server keeps no threads of messages; send the whole conversation without it."

StopSequence = Annotated[str, Meta(min_length=1, max_length=256)]

# Field -> the values that are supported.
_SUPPORTED = {
    "system[].type": "'text'",
    "messages[].content[].type": "'text', 'tool_use', 'tool_result' and 'thinking'",
    "messages[].content[].content[].type": "'text'",
    "thinking.type": "'disabled', 'enabled' and 'adaptive'",
    "tools[].type": "'custom'",
    "tool_choice.type": "'auto', 'any', 'tool' and 'none'",
    "mcp_servers": "an empty list",
}
_INDEX = re.compile(r"\[[^\]]*\]")
_FOUND = re.compile(r": (?:invalid (?:enum )?value )?('.*?')", re.DOTALL)


class InputMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Content


class RequestMetadata(msgspec.Struct, forbid_unknown_fields=True):
    """`user_id` is the client's name for its user."""

    user_id: Annotated[str, Meta(max_length=512)] | None = None


class ThinkingDisabled(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="disabled"):
    """The answer shows no thinking. A chat template that has a switch for thinking turns it off."""


class ThinkingEnabled(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="enabled"):
    """The model thinks, for at most `budget_tokens` tokens, if its chat template begins the thinking."""

    budget_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    display: Literal["summarized"] | None = None


class ThinkingAdaptive(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="adaptive"):
    """The model thinks as long as it wants."""

    display: Literal["summarized"] | None = None


class JsonOutputFormat(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON schema that the answer satisfies."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    """The form of the answer. An effort is not supported."""

    effort: None = None
    format: JsonOutputFormat | None = None


class Conversation(SchedulingFields, forbid_unknown_fields=True, kw_only=True):
    """The fields of a prompt, common to both endpoints."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: Texts | None = None
    thinking: ThinkingDisabled | ThinkingEnabled | ThinkingAdaptive | None = None
    tools: ToolList | None = None
    tool_choice: AnthropicToolChoice | None = None
    cache_control: CacheControl | None = None
    output_config: OutputConfig | None = None
    speed: Literal["standard"] | None = None
    mcp_servers: Empty | None = None
    context_management: None = None
    user_profile_id: None = None
    workspace_id: None = None
    thread: None = None

    @property
    def thinks(self) -> bool:
        """True if the request asks for thinking."""
        return isinstance(self.thinking, ThinkingEnabled | ThinkingAdaptive)

    @property
    def thinking_budget(self) -> int | None:
        """The most tokens of thinking, None without a bound."""
        return self.thinking.budget_tokens if isinstance(self.thinking, ThinkingEnabled) else None


class CountTokensRequest(Conversation):
    """POST /v1/messages/count_tokens."""


class MessagesRequest(Conversation):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    stop_sequences: Annotated[list[StopSequence], Meta(max_length=MAX_STOP_SEQUENCES)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    container: None = None
    diagnostics: None = None
    inference_geo: None = None


Body = TypeVar("Body", bound=Conversation)


async def read(request: HttpRequest, kind: type[Body]) -> Body:
    """Read and decode the body of a request. Raises `ApiError`; a refusal names the supported values."""
    try:
        return await json_body.read(request, kind)
    except ApiError as error:
        raise _with_supported(error) from None


def _with_supported(error: ApiError) -> ApiError:
    param = error.param or ""
    if param == "thread":
        return invalid(NO_THREADS, param, THREAD_UNSUPPORTED)
    if error.code == "missing_required_parameter":
        return error
    if supported := _SUPPORTED.get(_INDEX.sub("[]", param)):
        found = _FOUND.search(error.message)
        value = f"{found[1]} is " if found else ""
        return invalid(f"{param}: {value}not supported; supported: {supported}.", param, "unsupported_value")
    owner = param.rpartition(".")[0]
    if error.code == "unknown_parameter" and (supported := _SUPPORTED.get(_INDEX.sub("[]", f"{owner}.type"))):
        # An image's source stands before its type.
        return invalid(f"{param}: not supported; supported types of {owner}: {supported}.", param, "unsupported_value")
    return error


def constraint(body: MessagesRequest) -> Constraint | None:
    """What the answer must be; None for any text. For a text thread. Raises `RequestError`."""
    wanted = None if body.output_config is None else body.output_config.format
    return None if wanted is None else schema_constraint(wanted.schema, "output_config.format.schema")


def sampling(body: MessagesRequest, *, max_tokens: int, vocab_size: int) -> SamplingParams:
    """The engine's parameters."""
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=min(body.top_k or 0, vocab_size),
        stop=tuple(body.stop_sequences or ()),
        max_tokens=max_tokens,
    )

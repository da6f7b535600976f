"""The request bodies of the Anthropic API: types and bounds of every supported field.

Accepted without effect: `cache_control`, `metadata.user_id`, `service_tier`, `speed` standard, `thinking` disabled,
empty `tools`, `tool_choice` auto or none, `mcp_servers` and `citations` empty, and null for what is not supported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest

from octavo_inference.core.request import SamplingParams
from octavo_inference.grammar.structured_outputs import Constraint, schema_constraint
from octavo_inference.server import json_body
from octavo_inference.server.errors import ApiError, invalid
from octavo_inference.server.prompts import SchedulingFields

MAX_MESSAGES = 4096
MAX_BLOCKS = 4096
MAX_STOP_SEQUENCES = 64

Empty = Annotated[list[Any], Meta(max_length=0)]
StopSequence = Annotated[str, Meta(min_length=1, max_length=256)]

# Field -> the values that are supported.
_SUPPORTED = {
    "system[].type": "'text'",
    "messages[].content[].type": "'text'",
    "thinking.type": "'disabled'",
    "tools": "an empty list",
    "tool_choice.type": "'auto' and 'none', without tools",
    "mcp_servers": "an empty list",
}
_INDEX = re.compile(r"\[[^\]]*\]")
_FOUND = re.compile(r": (?:invalid (?:enum )?value )?('.*?')", re.DOTALL)


class CacheControl(msgspec.Struct, forbid_unknown_fields=True):
    """A cache breakpoint. Without effect: every prompt is looked up in, and kept by, the prefix cache."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


# A tag would be optional here: msgspec requires tags in unions only.
class TextBlock(msgspec.Struct, forbid_unknown_fields=True):
    """A block of text. `citations` is null in answers of this server that a client sends back."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Empty | None = None


Content = str | Annotated[list[TextBlock], Meta(max_length=MAX_BLOCKS)]


class InputMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Content


class RequestMetadata(msgspec.Struct, forbid_unknown_fields=True):
    """`user_id` is the client's name for its user."""

    user_id: Annotated[str, Meta(max_length=512)] | None = None


class ThinkingDisabled(msgspec.Struct, forbid_unknown_fields=True):
    """The only supported kind of thinking."""

    type: Literal["disabled"]


class ToolChoice(msgspec.Struct, forbid_unknown_fields=True):
    """The model may call tools, of which there are none, or it may not."""

    type: Literal["auto", "none"]
    disable_parallel_tool_use: bool | None = None


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
    system: Content | None = None
    thinking: ThinkingDisabled | None = None
    tools: Empty | None = None
    tool_choice: ToolChoice | None = None
    cache_control: CacheControl | None = None
    output_config: OutputConfig | None = None
    speed: Literal["standard"] | None = None
    mcp_servers: Empty | None = None
    context_management: None = None
    user_profile_id: None = None
    workspace_id: None = None

    @property
    def turns(self) -> list[tuple[str, str]]:
        """Role and text of each turn: roles alternate, and the system prompt is the first turn."""
        given = [(message.role, _texts(message.content)) for message in self.messages]
        if self.system is not None:
            given.insert(0, ("system", _texts(self.system)))
        turns = []
        for role, group in groupby(given, key=lambda message: message[0]):
            texts = [text for _, found in group for text in found]
            # The blocks of an answer are pieces of one text; those of other roles are texts of their own.
            turns.append((role, ("" if role == "assistant" else "\n").join(texts)))
        return turns


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


def _texts(content: str | Iterable[TextBlock]) -> list[str]:
    return [content] if isinstance(content, str) else [block.text for block in content]

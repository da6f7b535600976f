"""The blocks of a message's content."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_BLOCKS = 4096

Empty = Annotated[list[Any], Meta(max_length=0)]
CallId = Annotated[str, Meta(min_length=1, max_length=256)]


class CacheControl(msgspec.Struct, forbid_unknown_fields=True):
    """A cache breakpoint. Without effect: every prompt is looked up in, and kept by, the prefix cache."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


# A tag would be optional here: msgspec requires tags in unions only.
class PlainTextBlock(msgspec.Struct, forbid_unknown_fields=True):
    """A block of text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Empty | None = None


class TextBlock(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A block of text. `citations` is null in answers of this server that a client sends back."""

    text: str
    cache_control: CacheControl | None = None
    citations: Empty | None = None


class ToolUseBlock(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="tool_use"):
    """A call in an earlier answer."""

    id: CallId
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    input: dict[str, Any]
    cache_control: CacheControl | None = None


Texts = str | Annotated[list[PlainTextBlock], Meta(max_length=MAX_BLOCKS)]


class ToolResultBlock(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="tool_result"):
    """The result of the call with the id `tool_use_id`."""

    tool_use_id: CallId
    content: Texts | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


class ThinkingBlock(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="thinking"):
    """Thinking of an earlier answer. `signature` has no effect."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="redacted_thinking"):
    """Thinking of another server, which only that one can read. It is left out."""

    data: str


Block = TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock
Content = str | Annotated[list[Block], Meta(max_length=MAX_BLOCKS)]


def texts_of(content: str | list[PlainTextBlock] | None) -> list[str]:
    """The texts of a content that has nothing else."""
    if content is None:
        return []
    return [content] if isinstance(content, str) else [block.text for block in content]

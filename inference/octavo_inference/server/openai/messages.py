"""The messages of chat requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Empty = Annotated[list[Any], Meta(max_length=0)]
CallId = Annotated[str, Meta(min_length=1, max_length=256)]
CallName = Annotated[str, Meta(min_length=1, max_length=256)]


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True):
    """A function that an earlier answer called. `arguments` is a JSON object as text."""

    name: CallName
    arguments: str


class AssistantToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A call in an earlier answer. `index` occurs in chunks of a stream; it has no effect."""

    id: CallId
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | None = None


class Message(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One message. `tool_call_id` names the call whose result a message of the role `tool` has.

    `tool_calls`, `function_call`, `reasoning` and `reasoning_content` are those of earlier answers. The empty fields
    occur in answers of this server or OpenAI that a client sends back.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[TextPart], Meta(min_length=1, max_length=4096)] | None = None
    name: Annotated[str, Meta(max_length=64)] | None = None
    tool_call_id: CallId | None = None
    tool_calls: Annotated[list[AssistantToolCall], Meta(max_length=128)] | None = None
    function_call: CalledFunction | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    audio: None = None
    annotations: Empty | None = None

    @property
    def text(self) -> str:
        """The content as one string."""
        if self.content is None:
            return ""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)

"""The conversation of a request as messages of a chat template: those of the OpenAI API, whose roles alternate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from octavo_inference.server.anthropic.blocks import (
    Block,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    texts_of,
)
from octavo_inference.server.anthropic.requests import Conversation, InputMessage
from octavo_inference.server.errors import invalid

if TYPE_CHECKING:  # jinja is imported while the engine loads, not earlier
    from octavo_inference.tokenizer.chat_template import Message


def template_messages(body: Conversation) -> list[Message]:
    """The messages; the system prompt is the first one. Raises `ApiError` for a result without a call."""
    given: list[dict[str, Any]] = []
    if body.system is not None:
        given += [{"role": "system", "content": text} for text in texts_of(body.system)]
    called: set[str] = set()
    for number, message in enumerate(body.messages):
        given += _parts(message, f"messages[{number}]", called)
    merged: list[dict[str, Any]] = []
    for part in given:
        if merged and part["role"] == merged[-1]["role"] != "tool":
            _extend(merged[-1], part)
        else:
            merged.append(part)
    if not merged:
        raise invalid("messages: their content is empty; give at least one text.", "messages")
    return list(merged)


def _parts(message: InputMessage, place: str, called: set[str]) -> Iterator[dict[str, Any]]:
    """Each block as a message of its own."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    for number, block in enumerate(message.content):
        found = _part(block, message.role, f"{place}.content[{number}]", called)
        if found is not None:
            yield found


def _part(block: Block, role: str, place: str, called: set[str]) -> dict[str, Any] | None:
    if isinstance(block, TextBlock):
        return {"role": role, "content": block.text}
    owner = "user" if isinstance(block, ToolResultBlock) else "assistant"
    if role != owner:
        raise invalid(f"{place}.type: only messages of the role {owner} have such a block.", f"{place}.type")
    if isinstance(block, RedactedThinkingBlock):
        return None
    if isinstance(block, ThinkingBlock):
        return {"role": role, "content": "", "reasoning": block.thinking}
    if isinstance(block, ToolUseBlock):
        called.add(block.id)
        function = {"name": block.name, "arguments": block.input}
        return {"role": role, "content": "", "tool_calls": [{"id": block.id, "type": "function", "function": function}]}
    if block.tool_use_id not in called:
        raise invalid(
            f"{place}.tool_use_id: no message before it has a tool_use block with the id {block.tool_use_id!r}.",
            f"{place}.tool_use_id",
        )
    text = "\n".join(texts_of(block.content))
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": f"Error: {text}" if block.is_error else text}


def _extend(message: dict[str, Any], more: dict[str, Any]) -> None:
    """Join two messages of one role."""
    if message["role"] != "assistant":
        message["content"] += "\n" + more["content"]
        return
    # The blocks of an answer are pieces of one text; those of other roles are texts of their own.
    message["content"] += more["content"]
    if thought := more.get("reasoning"):
        message["reasoning"] = message.get("reasoning", "") + thought
    if calls := more.get("tool_calls"):
        message["tool_calls"] = [*message.get("tool_calls", []), *calls]

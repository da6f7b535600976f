"""Calls, results and thinking of earlier turns as chat templates take them.

Messages are those of the OpenAI API: `tool_calls` with their arguments as JSON text, the role `tool`, `reasoning`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from octavo_inference.answers.formats import AnswerFormats
from octavo_inference.answers.tools import MAX_DEPTH, Tools, is_shallow
from octavo_inference.chat_format.tools import ToolSpec

if TYPE_CHECKING:  # jinja is imported while the engine loads, not earlier
    from octavo_inference.tokenizer.chat_template import ChatTemplate, Message


def for_template(
    messages: Sequence[Message], template: ChatTemplate, formats: AnswerFormats, tools: Tools | None
) -> list[Message]:
    """The messages for a chat template. One that does not know tools gets them, calls and results as text."""
    if template.uses("tools"):
        return [_known(message, template) for message in messages]
    as_text = _merged(messages, [_as_text(message, template) for message in messages])
    if tools is None:
        return as_text
    return _with_system(as_text, formats.enforced_tools.system_prompt(tools.specs) or _description(tools.specs))


def _known(message: Message, template: ChatTemplate) -> Message:
    changed = _with_reasoning(message, template)
    if calls := message.get("tool_calls"):
        changed["tool_calls"] = [_call(call, template) for call in _list(calls)]
    return changed


def _as_text(message: Message, template: ChatTemplate) -> Message:
    """A message of calls or results as text, in the generic form."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    changed = _with_reasoning(message, template)
    if calls := changed.pop("tool_calls", None):
        texts = [str(changed["content"])] if changed["content"] else []
        texts += [_call_text(call["function"]) for call in _list(calls)]
        changed["content"] = "\n".join(texts)
    return changed


def _with_reasoning(message: Message, template: ChatTemplate) -> dict[str, object]:
    changed = {key: value for key, value in message.items() if key != "reasoning"}
    if reasoning := message.get("reasoning"):
        changed |= dict.fromkeys(template.reasoning_names, reasoning)
    return changed


def _call(call: Mapping[str, Any], template: ChatTemplate) -> Mapping[str, object]:
    function = call["function"]
    arguments = function["arguments"] if template.text_arguments else parsed(function["arguments"])
    return {**call, "function": {**function, "arguments": arguments}}


def parsed(arguments: object) -> object:
    """Arguments as the object that their text is, which most templates want; other texts stay as they are."""
    if not isinstance(arguments, str):
        return arguments
    try:
        found = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return found if isinstance(found, dict) and is_shallow(found, MAX_DEPTH) else arguments


def _call_text(function: Mapping[str, object]) -> str:
    call = {"name": function["name"], "arguments": parsed(function["arguments"])}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _with_system(messages: Sequence[Message], prompt: str) -> list[Message]:
    """The messages with `prompt` at the end of the system message, which is the first one."""
    if messages and messages[0]["role"] == "system":
        own = messages[0]["content"]
        return [{**messages[0], "content": f"{own}\n\n{prompt}" if own else prompt}, *messages[1:]]
    return [{"role": "system", "content": prompt}, *messages]


def _description(tools: Sequence[ToolSpec]) -> str:
    """What the tools are, for a format of calls that has no words of its own for it."""
    lines = [
        json.dumps(
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}, ensure_ascii=False
        )
        for tool in tools
    ]
    return "\n".join(["You can call these functions:", *lines])


def _merged(given: Sequence[Message], as_text: Sequence[Message]) -> list[Message]:
    """Results of calls joined with the user's messages beside them: such templates want the roles to alternate."""
    merged: list[Message] = []
    after_result = False
    for original, message in zip(given, as_text, strict=True):
        if after_result and message["role"] == "user":
            merged[-1] = {"role": "user", "content": f"{merged[-1]['content']}\n{message['content']}"}
        else:
            merged.append(message)
        after_result = original["role"] == "tool" or (after_result and message["role"] == "user")
    return merged


def _list(calls: object) -> list[Mapping[str, Any]]:
    return calls if isinstance(calls, list) else []

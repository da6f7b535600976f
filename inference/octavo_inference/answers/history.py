"""Calls, results and thinking of earlier turns as chat templates take them.

Messages are those of the OpenAI API: `tool_calls` with their arguments as JSON text, the role `tool`, `reasoning`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from tokenizers import Tokenizer

from octavo_inference.answers.formats import AnswerFormats
from octavo_inference.answers.tools import MAX_DEPTH, Tools, is_shallow
from octavo_inference.chat_format.past_calls import PastCall, PastResult, json_text
from octavo_inference.chat_format.tool_format import ToolFormat, special_tokens
from octavo_inference.chat_format.tools import ToolSpec

if TYPE_CHECKING:  # jinja is imported while the engine loads, not earlier
    from octavo_inference.tokenizer.chat_template import ChatTemplate, Message


def for_template(
    messages: Sequence[Message],
    template: ChatTemplate,
    formats: AnswerFormats,
    tokenizer: Tokenizer,
    tools: Tools | None,
) -> list[Message]:
    """The messages for a chat template. One that does not know tools gets them, calls and results as text.

    The text has the form of the model's own calls. Its markers are no control tokens, as in every text of a message.
    """
    form = formats.enforced_tools
    messages = _with_own_ids(messages, form)
    if template.uses("tools"):
        return [_known(message, template) for message in messages]
    special = special_tokens(form.markers, tokenizer)
    names = {call["id"]: call["function"]["name"] for message in messages for call in _calls(message)}
    texts = [_as_text(message, template, form, special, names) for message in messages]
    as_text = _merged(messages, texts)
    if tools is None:
        return as_text
    return _with_system(as_text, form.system_prompt(tools.specs) or _description(tools.specs, form, special))


def _with_own_ids(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """The messages with ids of calls in the model's form: clients may have taken them from another model."""
    own: dict[str, str] = {}
    number = 0
    changed: list[Message] = []
    for message in messages:
        calls = []
        for call in _calls(message):
            given = str(call.get("id") or "")
            own[given] = form.own_id(given, call["function"]["name"], number)
            number += 1
            calls.append({**call, "id": own[given]})
        ids: dict[str, object] = {"tool_calls": calls} if calls else {}
        if (answered := message.get("tool_call_id")) is not None:
            ids["tool_call_id"] = own.get(str(answered), answered)
        changed.append({**message, **ids} if ids else message)
    return changed


def _known(message: Message, template: ChatTemplate) -> Message:
    changed = _with_reasoning(message, template)
    if calls := _calls(message):
        changed["tool_calls"] = [_call(call, template) for call in calls]
    return changed


def _as_text(
    message: Message, template: ChatTemplate, form: ToolFormat, special: Mapping[str, int], names: Mapping[str, str]
) -> Message:
    """A message of calls or results as text, in the form of the model's calls."""
    if message["role"] == "tool":
        answered = str(message.get("tool_call_id") or "")
        result = PastResult(answered, names.get(answered, ""), str(message["content"]))
        return {"role": "user", "content": form.layout(special).result(result)}
    changed = _with_reasoning(message, template)
    changed.pop("tool_calls", None)
    if calls := [_past(call) for call in _calls(message)]:
        written = form.written(calls, special)
        changed["content"] = f"{changed['content']}\n{written}" if changed["content"] else written
    return changed


def _past(call: Mapping[str, Any]) -> PastCall:
    arguments = parsed(call["function"]["arguments"])
    # An answer may have ended inside a call.
    given = arguments if isinstance(arguments, dict) else {"arguments": arguments}
    return PastCall(call["id"], call["function"]["name"], given)


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


def _with_system(messages: Sequence[Message], prompt: str) -> list[Message]:
    """The messages with `prompt` at the end of the system message, which is the first one."""
    if messages and messages[0]["role"] == "system":
        own = messages[0]["content"]
        return [{**messages[0], "content": f"{own}\n\n{prompt}" if own else prompt}, *messages[1:]]
    return [{"role": "system", "content": prompt}, *messages]


def _description(tools: Sequence[ToolSpec], form: ToolFormat, special: Mapping[str, int]) -> str:
    """What the tools are and how to call them, for a format of calls that has no words of its own for it."""
    lines = [
        json_text({"name": tool.name, "description": tool.description, "parameters": tool.parameters}) for tool in tools
    ]
    name = "function_name"
    example = PastCall(form.own_id("call_1", name, 0), name, {"parameter": "value"})
    how = f"To call a function, answer in this form:\n{form.written([example], special)}"
    return "\n".join(["You can call these functions:", *lines, "", how])


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


def _calls(message: Message) -> list[Mapping[str, Any]]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []

"""The conversation of a chat request as arguments of the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from octavo_inference.server.errors import invalid
from octavo_inference.server.openai.messages import Message
from octavo_inference.server.openai.requests import ChatRequest
from octavo_inference.server.planning import effort_variables
from octavo_inference.server.refusals import unsupported

if TYPE_CHECKING:  # jinja is imported while the engine loads, not earlier
    from octavo_inference.tokenizer.chat_template import ChatTemplate, TemplateOptions
    from octavo_inference.tokenizer.chat_template import Message as TemplateMessage


def template_messages(messages: list[Message]) -> list[TemplateMessage]:
    """The messages as templates take them. Raises `ApiError` for one without content, and for a result without call."""
    calls = _Calls()
    return [_template_message(message, f"messages[{number}]", calls) for number, message in enumerate(messages)]


def template_options(body: ChatRequest, template: ChatTemplate) -> TemplateOptions:
    """The template's other arguments. Raises `ApiError` for those that it does not take."""
    open_ended = bool(body.continue_final_message)
    if open_ended and body.add_generation_prompt:
        raise invalid(
            "continue_final_message: it continues the last message, and add_generation_prompt begins another; "
            "set one of them.",
            "continue_final_message",
        )
    if body.documents and not template.uses("documents"):
        raise unsupported("documents", ["an empty list (this model's chat template takes none)"])
    return {
        "add_generation_prompt": body.add_generation_prompt is not False and not open_ended,
        "continue_final_message": open_ended,
        "documents": body.documents or None,
        "variables": {
            **effort_variables(body.reasoning_effort, template),
            **_verbosity(body, template),
            **_variables(body, template),
        },
    }


def echoed(body: ChatRequest) -> str:
    """With `echo`, the text of the last message, which the answer continues. Raises `ApiError` if it does not."""
    if not body.echo:
        return ""
    if not body.continue_final_message:
        raise invalid("echo: needs continue_final_message to be true.", "echo")
    return body.messages[-1].text


class _Calls:
    """The calls of the messages so far."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.named: dict[str, str] = {}
        """The id of the last call of each function in the older form, which has none: one is made."""

    def of(self, message: Message) -> list[dict[str, object]]:
        """The calls of an assistant's message."""
        calls = [(call.id, call.function) for call in message.tool_calls or ()]
        if (old := message.function_call) is not None:
            calls.append((f"call_{len(self.ids)}", old))
            self.named[old.name] = calls[-1][0]
        self.ids.update(name for name, _ in calls)
        return [
            {"id": name, "type": "function", "function": {"name": called.name, "arguments": called.arguments}}
            for name, called in calls
        ]


def _template_message(message: Message, place: str, calls: _Calls) -> TemplateMessage:
    _check_role(message, place)
    if message.content is None and message.role != "assistant":
        param = f"{place}.content"
        raise invalid(f"{param}: this field is required for the role {message.role}.", param)
    role = "system" if message.role == "developer" else message.role
    changed: dict[str, object] = {"role": role, "content": message.text}
    if message.name is not None:
        changed["name"] = message.name
    if found := calls.of(message):
        changed["tool_calls"] = found
    if reasoning := message.reasoning_content or message.reasoning:
        changed["reasoning"] = reasoning
    if role in {"tool", "function"}:
        changed |= {"role": "tool", "tool_call_id": _answered(message, place, calls)}
    return changed


def _answered(message: Message, place: str, calls: _Calls) -> str:
    """The id of the call whose result a message has."""
    if message.role == "function":
        if message.name not in calls.named:
            raise invalid(f"{place}.name: no message before it calls a function {message.name!r}.", f"{place}.name")
        return calls.named[message.name]
    if message.tool_call_id is None:
        param = f"{place}.tool_call_id"
        raise invalid(f"{param}: this field is required for the role tool.", param)
    if message.tool_call_id not in calls.ids:
        raise invalid(
            f"{place}.tool_call_id: no message before it has a call with the id {message.tool_call_id!r}; "
            "send the assistant's message with its tool_calls, too.",
            f"{place}.tool_call_id",
        )
    return message.tool_call_id


# Field -> the role whose messages have it.
_OWNERS = {
    "tool_calls": "assistant",
    "function_call": "assistant",
    "reasoning": "assistant",
    "reasoning_content": "assistant",
    "tool_call_id": "tool",
}


def _check_role(message: Message, place: str) -> None:
    for field, role in _OWNERS.items():
        if getattr(message, field) and message.role != role:
            raise invalid(
                f"{place}.{field}: only messages of the role {role} have it; leave it out.", f"{place}.{field}"
            )


def _verbosity(body: ChatRequest, template: ChatTemplate) -> Mapping[str, object]:
    if body.verbosity is not None and template.uses("verbosity"):
        return {"verbosity": body.verbosity}
    if body.verbosity in {"low", "high"}:
        raise unsupported("verbosity", ["'medium' (this model's chat template takes no other)"], repr(body.verbosity))
    return {}


def _variables(body: ChatRequest, template: ChatTemplate) -> Mapping[str, object]:
    """`chat_template_kwargs` that the template reads. False and null of others ask for nothing."""
    known = template.variables
    given = body.chat_template_kwargs or {}
    unknown = [name for name, value in given.items() if name not in known and value not in (False, None)]
    if unknown:
        supported = sorted(known) or ["none (this model's chat template has no variables)"]
        raise unsupported(f"chat_template_kwargs.{unknown[0]}"[:128], supported)
    return {name: value for name, value in given.items() if name in known}

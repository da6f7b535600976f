"""The conversation of a chat request as arguments of the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from octavo_inference.server.errors import invalid
from octavo_inference.server.openai.requests import ChatRequest, Message
from octavo_inference.server.refusals import unsupported

if TYPE_CHECKING:  # jinja is imported while the engine loads, not earlier
    from octavo_inference.tokenizer.chat_template import ChatTemplate, TemplateOptions
    from octavo_inference.tokenizer.chat_template import Message as TemplateMessage

# Variables by which templates switch thinking on or off.
_SWITCHES = ("enable_thinking", "thinking")


def template_messages(messages: list[Message]) -> list[TemplateMessage]:
    """The messages with the roles and texts that templates take. Raises `ApiError` for one without content."""
    return [_template_message(message, number) for number, message in enumerate(messages)]


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
        "variables": {**_effort(body, template), **_verbosity(body, template), **_variables(body, template)},
    }


def echoed(body: ChatRequest) -> str:
    """With `echo`, the text of the last message, which the answer continues. Raises `ApiError` if it does not."""
    if not body.echo:
        return ""
    if not body.continue_final_message:
        raise invalid("echo: needs continue_final_message to be true.", "echo")
    return body.messages[-1].text


def _template_message(message: Message, number: int) -> TemplateMessage:
    if message.content is None and message.role != "assistant":
        param = f"messages[{number}].content"
        raise invalid(f"{param}: this field is required for the role {message.role}.", param)
    role = "system" if message.role == "developer" else message.role
    named = {} if message.name is None else {"name": message.name}
    return {"role": role, "content": message.text, **named}


def _effort(body: ChatRequest, template: ChatTemplate) -> Mapping[str, object]:
    """`reasoning_effort` as the variable that the template has for it, or as a switch for thinking."""
    effort = body.reasoning_effort
    if effort is None:
        return {}
    if template.uses("reasoning_effort") and effort != "none":
        return {"reasoning_effort": effort}
    switches = {name: effort != "none" for name in _SWITCHES if template.uses(name)}
    if not switches and effort != "none":
        raise unsupported("reasoning_effort", ["'none' (this model's chat template takes no other)"], repr(effort))
    return switches


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

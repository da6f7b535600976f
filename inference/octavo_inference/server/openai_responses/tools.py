"""Tools in requests of the Responses API: their definitions, and the choice among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo_inference.answers.tools import MAX_TOOLS, Mode, Tools, choose
from octavo_inference.chat_format.tools import ToolSpec
from octavo_inference.server.errors import invalid
from octavo_inference.server.openai.tools import ToolName

if TYPE_CHECKING:
    from octavo_inference.server.openai_responses.request_body import InputFields


class ResponseTool(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A function that the model may call: functions are the only kind of tools that is supported.

    `parameters` is the JSON Schema of its arguments; without it, any object. With `strict`, arguments always match it.
    """

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedResponseTool(msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="function"):
    """The answer is a call of this function."""

    name: ToolName


class AllowedResponseTool(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One of the tools that may be called."""

    type: Literal["function"]
    name: ToolName


class AllowedResponseTools(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="allowed_tools"
):
    """Some of the tools may be called, with the mode `required` one of them must be; the prompt shows all."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedResponseTool], Meta(min_length=1, max_length=MAX_TOOLS)]


ToolChoiceOption = Literal["none", "auto", "required"] | NamedResponseTool | AllowedResponseTools
ToolList = Annotated[list[ResponseTool], Meta(max_length=MAX_TOOLS)]


def tools_of(body: InputFields) -> Tools | None:
    """The tools of a request; None if the model may call none, and then the prompt shows none.

    Raises `ApiError` and `RequestError` for fields that contradict each other.
    """
    mode, names = _choice(body.tool_choice)
    if not body.tools and mode in {"required", "named"}:
        raise invalid("tool_choice: needs tools.", "tool_choice")
    if not body.tools or mode == "none":
        return None
    return choose(
        [ToolSpec(tool.name, tool.parameters, bool(tool.strict), tool.description or "") for tool in body.tools],
        mode,
        names,
        parallel=body.parallel_tool_calls is not False,
        place=lambda number: f"tools[{number}]",
        choice_place="tool_choice",
    )


def _choice(given: ToolChoiceOption | None) -> tuple[Mode | Literal["none"], list[str] | None]:
    if isinstance(given, NamedResponseTool):
        return "named", [given.name]
    if isinstance(given, AllowedResponseTools):
        return given.mode, [tool.name for tool in given.tools]
    return given or "auto", None

"""Tools in the requests of the OpenAI chat API: their definitions, and the choice among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo_inference.answers.tools import MAX_TOOLS, Mode, Tools, choose
from octavo_inference.chat_format.tools import ToolSpec
from octavo_inference.server.errors import invalid

if TYPE_CHECKING:
    from octavo_inference.server.openai.requests import ChatRequest

ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]


class FunctionDefinition(msgspec.Struct, forbid_unknown_fields=True):
    """A function that the model may call.

    `parameters` is the JSON Schema of its arguments; without it, any object. With `strict`, arguments always match it.
    """

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def spec(self) -> ToolSpec:
        """The tool, the same for every API."""
        return ToolSpec(self.name, self.parameters, bool(self.strict), self.description or "")


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool: functions are the only kind that is supported."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(msgspec.Struct, forbid_unknown_fields=True):
    """The name of a function among the tools."""

    name: ToolName


class NamedTool(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """The answer is a call of this function."""

    function: FunctionName


class AllowedTool(msgspec.Struct, forbid_unknown_fields=True):
    """One of the tools that may be called."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(msgspec.Struct, forbid_unknown_fields=True):
    """The tools that may be called; with the mode `required`, one of them must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"):
    """Some of the tools may be called; the prompt shows all."""

    allowed_tools: AllowedTools


ToolChoiceOption = Literal["none", "auto", "required"] | NamedTool | AllowedToolsChoice
ToolList = Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)]
FunctionList = Annotated[list[FunctionDefinition], Meta(max_length=MAX_TOOLS)]


def tools_of(body: ChatRequest) -> Tools | None:
    """The tools of a request; None if the model may call none, and then the prompt shows none.

    Raises `ApiError` and `RequestError` for fields that contradict each other.
    """
    if body.functions is not None or body.function_call is not None:
        return _functions(body)
    given = body.tools or []
    specs = [tool.function.spec() for tool in given]
    mode, names = _choice(body.tool_choice)
    if not specs and mode in {"required", "named"}:
        raise invalid("tool_choice: needs tools.", "tool_choice")
    if not specs or mode == "none":
        return None
    return choose(
        specs,
        mode,
        names,
        parallel=body.parallel_tool_calls is not False,
        place=lambda number: f"tools[{number}].function",
        choice_place="tool_choice",
    )


def _functions(body: ChatRequest) -> Tools | None:
    """The functions of a request in the older form: the answer shows the first call only."""
    if body.tools or body.tool_choice not in (None, "none", "auto"):
        raise invalid("functions: an older form of tools; use one of them.", "functions")
    specs = [function.spec() for function in body.functions or []]
    choice = body.function_call
    if isinstance(choice, FunctionName) and not specs:
        raise invalid("function_call: needs functions.", "function_call")
    if not specs or choice == "none":
        return None
    return choose(
        specs,
        "named" if isinstance(choice, FunctionName) else "auto",
        [choice.name] if isinstance(choice, FunctionName) else None,
        parallel=True,
        place=lambda number: f"functions[{number}]",
        choice_place="function_call",
    )


def _choice(given: ToolChoiceOption | None) -> tuple[Mode | Literal["none"], list[str] | None]:
    if isinstance(given, NamedTool):
        return "named", [given.function.name]
    if isinstance(given, AllowedToolsChoice):
        return given.allowed_tools.mode, [tool.function.name for tool in given.allowed_tools.tools]
    return given or "auto", None

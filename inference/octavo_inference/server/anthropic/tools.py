"""Tools in the requests of the Anthropic API: their definitions, and the choice among them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo_inference.answers.tools import MAX_TOOLS, Mode, Tools, choose
from octavo_inference.chat_format.tools import ToolSpec
from octavo_inference.server.anthropic.blocks import CacheControl
from octavo_inference.server.errors import invalid

ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}\Z")]
_MODES: dict[str, Mode] = {"auto": "auto", "any": "required", "tool": "named"}


class AnthropicTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool that the client runs.

    `input_schema` is the JSON Schema of its input, which with `strict` always matches it. `eager_input_streaming` has
    no effect: inputs are always streamed as they are generated.
    """

    name: ToolName
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    type: Literal["custom"] | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None


class AnthropicToolChoice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The model may call tools, must call any or the one with `name`, or calls none and does not see them."""

    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None


ToolList = Annotated[list[AnthropicTool], Meta(max_length=MAX_TOOLS)]


def tools_of(tools: list[AnthropicTool] | None, choice: AnthropicToolChoice | None) -> Tools | None:
    """The tools of a request; None if the model may call none. Raises `ApiError` and `RequestError`."""
    kind = choice.type if choice else "auto"
    if choice is not None and (choice.name is None) == (kind == "tool"):
        needs = "this field is required for the type tool" if kind == "tool" else "only the type tool has it"
        raise invalid(f"tool_choice.name: {needs}.", "tool_choice.name")
    if not tools and kind in {"any", "tool"}:
        raise invalid("tool_choice: needs tools.", "tool_choice")
    if not tools or kind == "none":
        return None
    specs = [ToolSpec(tool.name, tool.input_schema, bool(tool.strict), tool.description or "") for tool in tools]
    return choose(
        specs,
        _MODES[kind],
        [choice.name] if choice is not None and choice.name is not None else None,
        parallel=choice is None or not choice.disable_parallel_tool_use,
        place=lambda number: f"tools[{number}]",
        choice_place="tool_choice.name",
        schema_field="input_schema",
    )

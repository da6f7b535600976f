"""The tools of a request and how the model may use them, the same for every API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from octavo_inference.chat_format.tools import ToolChoice, ToolSpec
from octavo_inference.common.errors import RequestError
from octavo_inference.grammar.json_schema import check_schema

MAX_TOOLS = 128
# Of schemas that are only shown to the model, and of arguments in earlier calls.
MAX_DEPTH = 64
Mode = Literal["auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that the prompt shows, and the choice among them. Without `parallel`, at most one call."""

    specs: tuple[ToolSpec, ...]
    choice: ToolChoice
    parallel: bool = True

    @property
    def callable(self) -> tuple[ToolSpec, ...]:
        """The tools that the model may call."""
        return tuple(spec for spec in self.specs if spec.name in self.choice.names)

    @property
    def enforced(self) -> tuple[ToolSpec, ...]:
        """The tools whose schema the answer must match."""
        return tuple(spec for spec in self.callable if spec.strict or self.choice.mode != "auto")

    @property
    def is_enforced(self) -> bool:
        """True if a grammar enforces something of the calls."""
        return bool(self.enforced) or not self.parallel or len(self.callable) < len(self.specs)

    def for_template(self) -> list[dict[str, object]]:
        """The tools as chat templates take them."""
        return [_template_tool(spec) for spec in self.specs]


def choose(
    specs: Sequence[ToolSpec],
    mode: Mode,
    names: Sequence[str] | None,
    *,
    parallel: bool,
    place: Callable[[int], str],
    choice_place: str,
    schema_field: str = "parameters",
) -> Tools:
    """The tools of a request. `names` are those that may be called, None for all.

    `place` is the field of the tool of a number, which has a name and the schema in `schema_field`; `choice_place` that
    of the choice. Slow for large schemas. Raises `RequestError`.
    """
    known: set[str] = set()
    for number, spec in enumerate(specs):
        if spec.name in known:
            field = f"{place(number)}.name"
            raise RequestError(f"{field}: two tools have the name {spec.name!r}; rename one.", field)
        known.add(spec.name)
    allowed = tuple(dict.fromkeys(spec.name for spec in specs) if names is None else dict.fromkeys(names))
    unknown = next((name for name in allowed if name not in known), None)
    if unknown is not None:
        found = ", ".join(sorted(known)) or "none"
        raise RequestError(f"{choice_place}: no tool has the name {unknown!r}; the tools: {found}."[:512], choice_place)
    tools = Tools(tuple(specs), ToolChoice(mode, allowed), parallel)
    for number, spec in enumerate(specs):
        if spec.parameters is not None:
            field = f"{place(number)}.{schema_field}"
            if spec in tools.enforced:
                check_schema(spec.parameters, field)
            elif not is_shallow(spec.parameters, MAX_DEPTH):
                raise RequestError(f"{field}: nested deeper than {MAX_DEPTH} levels; flatten it.", field)
    return tools


def described_tools(tools: Sequence[Mapping[str, object]], choice: str, *, parallel: bool) -> Tools | None:
    """The tools that are dicts of the OpenAI API; None if the model may call none.

    `choice` is auto, required, none or a name. Raises `RequestError`.
    """
    specs = [_described(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
    if not specs and choice not in {"auto", "none"}:
        raise RequestError("tool_choice: needs tools.", "tool_choice")
    if not specs or choice == "none":
        return None
    mode: Mode = "auto" if choice == "auto" else "required" if choice == "required" else "named"
    return choose(
        specs,
        mode,
        [choice] if mode == "named" else None,
        parallel=parallel,
        place=lambda number: f"tools[{number}].function",
        choice_place="tool_choice",
    )


def _described(tool: Mapping[str, object], place: str) -> ToolSpec:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise RequestError(f"{place}: it must be {{'type': 'function', 'function': {{'name': …}}}}.", place)
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise RequestError(f"{place}.function.parameters: it must be a JSON schema.", f"{place}.function.parameters")
    return ToolSpec(name, parameters, bool(function.get("strict")), str(function.get("description") or ""))


def is_shallow(value: object, depth: int) -> bool:
    """True if lists and objects are nested at most this deep in a JSON value."""
    if not isinstance(value, dict | list):
        return True
    return depth > 0 and all(
        is_shallow(entry, depth - 1) for entry in (value.values() if isinstance(value, dict) else value)
    )


def _template_tool(spec: ToolSpec) -> dict[str, object]:
    function: dict[str, object] = {"name": spec.name}
    if spec.description:
        function["description"] = spec.description
    # Templates read the properties of every tool.
    function["parameters"] = spec.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}

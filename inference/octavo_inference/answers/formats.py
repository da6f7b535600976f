"""Which formats a model's answers have: by flag, else by its chat template."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from octavo_inference.chat_format.formats.known import TOOL_FORMATS, detect_tool_format, tool_format
from octavo_inference.chat_format.reasoning import (
    REASONING_FORMATS,
    ReasoningFormat,
    detect_reasoning_format,
    reasoning_format,
)
from octavo_inference.chat_format.tool_format import ToolFormat
from octavo_inference.common.errors import ModelError

NONE = "none"
# The form of calls for models without one of their own.
GENERIC = "hermes"


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """`tools` is None if calls are read only where the grammar enforces them; `reasoning` None without thinking."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    @property
    def enforced_tools(self) -> ToolFormat:
        """The form of calls that a grammar enforces."""
        return self.tools or tool_format(GENERIC)


def answer_formats(template: str | None, tool_parser: str | None, reasoning_parser: str | None) -> AnswerFormats:
    """The formats for a chat template; the parsers are names of formats, `none`, or None for the template's own.

    Raises `ModelError` for an unknown name.
    """
    tools = _named("tool-call-parser", tool_parser, TOOL_FORMATS)
    reasoning = _named("reasoning-parser", reasoning_parser, REASONING_FORMATS)
    if tool_parser is None:
        tools = detect_tool_format(template or "") or GENERIC
    if reasoning_parser is None:
        reasoning = detect_reasoning_format(template or "")
    return AnswerFormats(
        None if tools is None else tool_format(tools), None if reasoning is None else reasoning_format(reasoning)
    )


def _named(flag: str, name: str | None, known: Iterable[str]) -> str | None:
    if name is None or name == NONE:
        return None
    if name not in known:
        raise ModelError(f"--{flag}: no format has the name {name!r}; give one of {', '.join(sorted(known))}, {NONE}")
    return name

"""Which formats a model's answers have: by flag, else by its chat template."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_inference.chat_format.formats.known import (
    detect_reasoning_format,
    detect_tool_format,
    reasoning_format,
    tool_format,
)
from octavo_inference.chat_format.reasoning import ReasoningFormat
from octavo_inference.chat_format.tool_format import ToolFormat
from octavo_protocol.engine_settings import ReasoningParserName, ToolParserName

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


def answer_formats(
    template: str | None, tool_parser: ToolParserName | None, reasoning_parser: ReasoningParserName | None
) -> AnswerFormats:
    """The formats of a model: those of its chat template where None is given."""
    tools = tool_parser or detect_tool_format(template or "") or GENERIC
    reasoning = reasoning_parser or detect_reasoning_format(template or "") or NONE
    return AnswerFormats(
        None if tools == NONE else tool_format(tools), None if reasoning == NONE else reasoning_format(reasoning)
    )

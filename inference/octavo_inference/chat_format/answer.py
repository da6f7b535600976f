"""The parser of a model's answers: thinking, calls and text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo_inference.chat_format.events import AnswerParser, Event, Text
from octavo_inference.chat_format.formats.harmony import HARMONY, HARMONY_REASONING, HarmonyParser
from octavo_inference.chat_format.reasoning import ReasoningFormat, ThinkParser
from octavo_inference.chat_format.tool_format import NO_TOKENS, ToolFormat
from octavo_inference.chat_format.tools import ToolSpec


class TextParser:
    """An `AnswerParser` of answers that are text."""

    in_reasoning = False

    def push(self, text: str) -> list[Event]:
        """See `AnswerParser`."""
        return [Text(text)] if text else []

    def finish(self) -> list[Event]:
        """See `AnswerParser`."""
        return []


def answer_parser(
    tools: ToolFormat | None,
    reasoning: ReasoningFormat | None,
    specs: Sequence[ToolSpec],
    *,
    thinking: bool,
    special: Mapping[str, int] = NO_TOKENS,
) -> AnswerParser:
    """A parser for one answer.

    `tools` and `reasoning` are the model's formats, None where calls or thinking are not looked for. `specs` are the
    tools that the model may call. `thinking`: the answer begins inside the thinking, as the chat template wrote the
    start marker into the prompt. `special`: see `ToolFormat`. Harmony's parser does both, if one of them is harmony.
    """
    if HARMONY is tools or HARMONY_REASONING is reasoning:
        return HarmonyParser(specs if tools is not None else ())
    parser: AnswerParser = TextParser() if tools is None or not specs else tools.parser(specs, special)
    return parser if reasoning is None else ThinkParser(reasoning, parser, thinking=thinking)

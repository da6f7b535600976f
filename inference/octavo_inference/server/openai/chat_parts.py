"""Messages and deltas of the chat API from the parts of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET

from octavo_inference.answers.reader import AnswerReader
from octavo_inference.chat_format.events import CallArguments, CallStart, Event, Reasoning, Text
from octavo_inference.server.openai.responses import (
    CalledFunctionText,
    ChatDelta,
    ChatMessage,
    FunctionDelta,
    ToolCallDelta,
    ToolCallMessage,
)


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """`head` is text before the answer. `functions`: calls have the older form. `reasoning`: the thinking is shown."""

    head: str = ""
    functions: bool = False
    reasoning: bool = True

    def message(self, answer: AnswerReader) -> ChatMessage:
        """The message of a complete answer."""
        content = self.head + answer.text
        calls = [ToolCallMessage(call.id, CalledFunctionText(call.name, call.arguments)) for call in answer.calls]
        thought = answer.reasoning if self.reasoning and answer.reasoning else UNSET
        return ChatMessage(
            None if calls and not content else content,
            reasoning=thought,
            reasoning_content=thought,
            tool_calls=calls if calls and not self.functions else UNSET,
            function_call=calls[0].function if calls and self.functions else UNSET,
        )

    def delta(self, events: Sequence[Event]) -> ChatDelta | None:
        """The delta of parts; None without any that is shown."""
        content = "".join(event.text for event in events if isinstance(event, Text))
        thought = "".join(event.text for event in events if isinstance(event, Reasoning)) if self.reasoning else ""
        calls = _call_deltas(events)
        if self.functions:
            calls = [call for call in calls if call.index == 0]
        if not (content or thought or calls):
            return None
        return ChatDelta(
            content=content or None,
            reasoning=thought or None,
            reasoning_content=thought or None,
            tool_calls=calls if calls and not self.functions else None,
            function_call=calls[0].function if calls and self.functions else None,
        )

    def finish_reason(self, reason: str, answer: AnswerReader) -> str:
        """Why an answer ended: `tool_calls` if it has calls and all of them are complete."""
        if reason != "stop" or not answer.calls or not answer.calls[-1].is_complete:
            return reason
        return "function_call" if self.functions else "tool_calls"


def _call_deltas(events: Sequence[Event]) -> list[ToolCallDelta]:
    """One delta for each call among the parts."""
    starts: dict[int, CallStart] = {}
    arguments: dict[int, list[str]] = {}
    for event in events:
        if isinstance(event, CallStart):
            starts[event.index] = event
            arguments.setdefault(event.index, [])
        elif isinstance(event, CallArguments):
            arguments.setdefault(event.index, []).append(event.text)
    deltas = []
    for index, parts in arguments.items():
        text = "".join(parts)
        if (start := starts.get(index)) is None:
            deltas.append(ToolCallDelta(index, FunctionDelta(text)))
        else:
            deltas.append(ToolCallDelta(index, FunctionDelta(text, start.name), start.id, "function"))
    return deltas

"""Harmony, the format of gpt-oss: messages on the channels `analysis`, `commentary` and `final`.

Source: docs/format.md of openai/harmony. An answer begins behind `<|start|>assistant`. Messages on `analysis` are the
thinking; those to a function, on any channel, are calls; the others are text. The format's special tokens are no text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from octavo_inference.chat_format.calls import Calls
from octavo_inference.chat_format.events import AnswerParser, Event
from octavo_inference.chat_format.lark import Rules
from octavo_inference.chat_format.past_calls import PastCall, PastResult, json_text
from octavo_inference.chat_format.readers import END, PlainRun, Reader, until
from octavo_inference.chat_format.reasoning import ReasoningFormat
from octavo_inference.chat_format.tool_format import CallLayout, ToolFormat
from octavo_inference.chat_format.tools import ToolSpec

_START, _CHANNEL, _MESSAGE, _STOP = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_CALL, _RETURN, _CONSTRAIN = "<|call|>", "<|return|>", "<|constrain|>"
_MARKERS = (_START, _CHANNEL, _MESSAGE, _STOP, _CALL, _RETURN, _CONSTRAIN)
_BEHIND_CONTENT = (_STOP, _CALL, _RETURN, _START, _CHANNEL)
_RECIPIENT = re.compile(r"to=functions\.([A-Za-z0-9_.-]+)")
_ANALYSIS = re.compile(r"<\|channel\|>\s*analysis")
_MAX_HEADER = 1000


class HarmonyParser:
    """An `AnswerParser` of calls and thinking. It shows none of the format's markers as text."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self.in_reasoning = False
        self._calls = Calls(tools)
        self._reader = self._messages()
        self._run: PlainRun | None = next(self._reader)

    def push(self, text: str) -> list[Event]:
        """See `AnswerParser`."""
        position = 0
        while position < len(text):
            run = self._run
            found = None if run is None else run.match(text, position)
            if run is None or found is None:
                self._run = self._reader.send(text[position])
                position += 1
            else:
                run.sink(found[0])
                position = found.end()
        return self._calls.take()

    def finish(self) -> list[Event]:
        """See `AnswerParser`."""
        self._reader.send(END)
        self._calls.finish()
        return self._calls.take()

    def _messages(self) -> Reader[None]:
        at = yield
        marker = ""
        while at:
            header, is_message, at = yield from _header(marker, at)
            name = _RECIPIENT.search(header)
            if not is_message:
                self._calls.text(header)
                marker, at = yield from until(_MARKERS, at, self._calls.text)
            elif name is not None and name[1] in self._calls.tools:
                marker, at = yield from self._call(name[1], at)
            elif _ANALYSIS.search(header):
                self.in_reasoning = True
                marker, at = yield from until(_BEHIND_CONTENT, at, self._calls.reasoning)
                self.in_reasoning = False
            else:
                marker, at = yield from until(_BEHIND_CONTENT, at, self._calls.text)
        yield

    def _call(self, name: str, at: str) -> Reader[tuple[str, str]]:
        self._calls.start(name)
        marker, at = yield from until(_BEHIND_CONTENT, at, self._calls.arguments)
        self._calls.end()
        return marker, at


def _header(marker: str, at: str) -> Reader[tuple[str, bool, str]]:
    """Reads the header of a message: to `<|message|>`. Else its text is that of an answer in another format."""
    read = marker if marker in {_START, _CHANNEL} else ""
    is_header = bool(read)
    while at and len(read) < _MAX_HEADER:
        read += at
        at = yield
        if read.endswith(_MESSAGE):
            return read, True, at
        if not is_header and not any(marker.startswith(read[: len(marker)]) for marker in (_START, _CHANNEL, " to=")):
            break
    for text in _MARKERS:
        read = read.replace(text, "")
    return read, False, at


def _parse(tools: Sequence[ToolSpec], _: Collection[str]) -> AnswerParser:
    return HarmonyParser(tools)


def _text(call: PastCall) -> str:
    return f"{call.name} {_CONSTRAIN}json{_MESSAGE}{json_text(call.arguments)}"


def _result(result: PastResult) -> str:
    head = f"{_START}functions.{result.name} to=assistant{_CHANNEL}commentary"
    return f"{head}{_MESSAGE}{result.content}{_STOP}"


def _layout(special: Mapping[str, int]) -> CallLayout:
    rules = Rules(special)
    start, channel, message, stop = (rules.literal(text) for text in (_START, _CHANNEL, _MESSAGE, _STOP))
    opened = f'{start} "assistant"'
    before = f'({opened})? ({channel} ("analysis" | "commentary") {message} TEXT {stop} {opened})*'
    final = f'{before} {channel} "final" {message}'
    opening = f"{_CHANNEL}commentary to=functions."
    return CallLayout(
        opening,
        f"{_CALL}{_START}assistant{opening}",
        "",
        _text,
        _result,
        no_call=f"{final} TEXT",
        before=before,
        before_answer=final,
    )


def _call(rules: Rules, tool: ToolSpec) -> str:
    return f"{rules.literal(f'{tool.name} {_CONSTRAIN}json{_MESSAGE}')} {rules.json(tool.parameters)}"


HARMONY = ToolFormat("harmony", _MARKERS, _parse, _layout, _call)
HARMONY_REASONING = ReasoningFormat("harmony", f"{_CHANNEL}analysis{_MESSAGE}", _STOP)

"""Kimi K2: a section of calls, each with an id of the form `functions.NAME:NUMBER`.

Source: the template of moonshotai/Kimi-K2-Instruct (its copy in llama.cpp's models/templates/moonshotai-Kimi-K2.jinja);
vLLM's tests/tool_parsers/test_kimi_k2_tool_parser.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from octavo_inference.chat_format.calls import Calls
from octavo_inference.chat_format.formats.json_calls import json_arguments
from octavo_inference.chat_format.formats.sections import section
from octavo_inference.chat_format.lark import Rules
from octavo_inference.chat_format.past_calls import PastCall, PastResult, json_text
from octavo_inference.chat_format.readers import NotACallError, Reader, literal, space
from octavo_inference.chat_format.tool_format import CallLayout, ToolFormat, blocks
from octavo_inference.chat_format.tools import ToolSpec

_ALL, _ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_ONE, _ONE_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_SPACE_NAME = "functions."
_ID = re.compile(r"functions\.[A-Za-z0-9_.-]+:[0-9]{1,10}", re.ASCII)
_COLON = frozenset(":")
_DIGITS = frozenset("0123456789")


def _read_call(calls: Calls, at: str) -> Reader[str]:
    at = yield from space(at)
    at = yield from literal(_SPACE_NAME, at)
    name, at = yield from calls.names.read(_COLON, at)
    number, at = yield from _number((yield))
    at = yield from space(at)
    at = yield from literal(_ARGUMENTS, at)
    return (yield from json_arguments(calls, name, at, f"{_SPACE_NAME}{name}:{number}"))


def _number(at: str) -> Reader[tuple[str, str]]:
    read = ""
    while at in _DIGITS and len(read) < 10:
        read += at
        at = yield
    if not read:
        raise NotACallError
    return read, at


def _own_id(given: str, name: str, number: int) -> str:
    return given if _ID.fullmatch(given) else f"{_SPACE_NAME}{name}:{number}"


def _text(call: PastCall) -> str:
    return f"{call.id.removeprefix(_SPACE_NAME)}{_ARGUMENTS}{json_text(call.arguments)}"


def _result(result: PastResult) -> str:
    return f"## Return of {result.id}\n{result.content}"


def _layout(_: Mapping[str, int]) -> CallLayout:
    opening = f"{_ONE}{_SPACE_NAME}"
    return CallLayout(f"{_ALL}{opening}", f"{_ONE_END}{opening}", f"{_ONE_END}{_ALL_END}", _text, _result, _ALL)


def _call(rules: Rules, tool: ToolSpec) -> str:
    name, arguments = rules.literal(f"{tool.name}:"), rules.literal(_ARGUMENTS)
    return f"{name} /[0-9]{{1,3}}/ {arguments} {rules.json(tool.parameters)}"


_MARKERS = (_ALL, _ALL_END, _ONE, _ONE_END, _ARGUMENTS)
KIMI_K2 = ToolFormat(
    "kimi_k2",
    _MARKERS,
    blocks(section(_read_call, _ONE, _ONE_END, _ALL_END), (_ALL,)),
    _layout,
    _call,
    own_id=_own_id,
)

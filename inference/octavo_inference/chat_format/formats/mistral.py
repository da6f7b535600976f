"""Mistral: `[TOOL_CALLS]` with a list of JSON objects, or with a name and its arguments in newer models.

Sources: vLLM's tests/tool_parsers/test_mistral_tool_parser.py: `[TOOL_CALLS] [{"name": ..., "arguments": ...}]` up to
the tokenizer's version 7, then `[TOOL_CALLS]name{...}` (11) and `[TOOL_CALLS]name[ARGS]{...}` (13), also with
`[CALL_ID]id` before `[ARGS]`.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo_inference.chat_format.calls import Calls
from octavo_inference.chat_format.formats.json_calls import calls_in_json, json_arguments, named_object
from octavo_inference.chat_format.lark import Rules
from octavo_inference.chat_format.readers import NotACallError, Reader, literal, one_of, space
from octavo_inference.chat_format.tool_format import CallLayout, ToolFormat, blocks
from octavo_inference.chat_format.tools import ToolSpec

_START, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_JSON = frozenset("[{")
_BEHIND_NAME = frozenset("[{ ")
_ID_SIZE = 64


def _block(calls: Calls, _: str) -> Reader[str]:
    at = yield from space((yield))
    if at in _JSON:
        return (yield from calls_in_json(calls, at))
    name, at = yield from calls.names.read(_BEHIND_NAME, at)
    call_id: str | None = None
    if at == "[":
        marker, at = yield from one_of((_ARGS, _ID), at)
        if marker == _ID:
            call_id, at = yield from _call_id(at)
    return (yield from json_arguments(calls, name, at, call_id))


def _call_id(at: str) -> Reader[tuple[str, str]]:
    read = ""
    while at.isalnum() and at.isascii():
        read += at
        if len(read) > _ID_SIZE:
            raise NotACallError
        at = yield
    return read, (yield from literal(_ARGS, at))


def _layout(special: Mapping[str, int]) -> CallLayout:
    if _ARGS in special:
        return CallLayout(_START, _START, "", trigger=_START)
    return CallLayout(f"{_START} [", ", ", "]", trigger=_START)


def _call(rules: Rules, tool: ToolSpec) -> str:
    if _ARGS in rules.special:
        return f"{rules.literal(tool.name + _ARGS)} {rules.json(tool.parameters)}"
    return named_object(rules, tool)


MISTRAL = ToolFormat("mistral", (_START, _ARGS, _ID), blocks(_block, (_START,)), _layout, _call)

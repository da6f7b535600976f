"""Mistral: `[TOOL_CALLS]` with a list of JSON objects, or with a name and its arguments in newer models.

Sources: vLLM's tests/tool_parsers/test_mistral_tool_parser.py: `[TOOL_CALLS] [{"name": ..., "arguments": ...}]` up to
the tokenizer's version 7, then `[TOOL_CALLS]name{...}` (11) and `[TOOL_CALLS]name[ARGS]{...}` (13), also with
`[CALL_ID]id` before `[ARGS]`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from octavo_inference.chat_format.calls import Calls
from octavo_inference.chat_format.formats.json_calls import calls_in_json, json_arguments, named_object
from octavo_inference.chat_format.lark import Rules
from octavo_inference.chat_format.past_calls import PastCall, PastResult, json_text
from octavo_inference.chat_format.readers import NotACallError, Reader, literal, one_of, space
from octavo_inference.chat_format.tool_format import CallLayout, ToolFormat, blocks
from octavo_inference.chat_format.tools import ToolSpec

_START, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_RESULT, _RESULT_END = "[TOOL_RESULTS]", "[/TOOL_RESULTS]"
_OWN_ID = re.compile(r"[a-zA-Z0-9]{9}", re.ASCII)
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


def _own_id(given: str, *_: object) -> str:
    """Templates refuse ids that are not nine letters and digits."""
    if _OWN_ID.fullmatch(given):
        return given
    return hashlib.blake2b(given.encode(errors="replace")).hexdigest()[:9]


def _object_text(call: PastCall) -> str:
    return json_text({"name": call.name, "arguments": call.arguments, "id": call.id})


def _named_text(call: PastCall) -> str:
    return f"{call.name}{_ARGS}{json_text(call.arguments)}"


def _result(result: PastResult) -> str:
    return f"{_RESULT} {json_text({'content': result.content, 'call_id': result.id})}{_RESULT_END}"


def _bare_result(result: PastResult) -> str:
    return f"{_RESULT}{result.content}{_RESULT_END}"


def _layout(special: Mapping[str, int]) -> CallLayout:
    if _ARGS in special:
        return CallLayout(_START, _START, "", _named_text, _bare_result, _START)
    return CallLayout(f"{_START} [", ", ", "]", _object_text, _result, _START)


def _call(rules: Rules, tool: ToolSpec) -> str:
    if _ARGS in rules.special:
        return f"{rules.literal(tool.name + _ARGS)} {rules.json(tool.parameters)}"
    return named_object(rules, tool)


MISTRAL = ToolFormat("mistral", (_START, _ARGS, _ID), blocks(_block, (_START,)), _layout, _call, own_id=_own_id)

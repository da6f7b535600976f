"""DeepSeek: V3 and R1 write a fenced JSON object behind the name, V3.1 a bare one.

Sources: the templates of deepseek-ai/DeepSeek-R1 and DeepSeek-V3.1 (vLLM's
examples/tool_chat_template_deepseekr1.jinja and tool_chat_template_deepseekv31.jinja).
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo_inference.chat_format.calls import Calls
from octavo_inference.chat_format.formats.json_calls import json_arguments
from octavo_inference.chat_format.formats.sections import section
from octavo_inference.chat_format.lark import Rules
from octavo_inference.chat_format.past_calls import PastCall, PastResult, json_text
from octavo_inference.chat_format.readers import Reader, literal, space
from octavo_inference.chat_format.tool_format import CallLayout, ToolFormat, blocks
from octavo_inference.chat_format.tools import ToolSpec

_ALL, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_ONE, _ONE_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_FENCE, _FENCE_END = "\n```json\n", "\n```"
_NEW_LINE, _MARKER = frozenset("\n"), frozenset("<")


def _fenced(calls: Calls, at: str) -> Reader[str]:
    at = yield from literal(f"function{_SEPARATOR}", at)
    name, at = yield from calls.names.read(_NEW_LINE, at)
    at = yield from literal(_FENCE, at)
    at = yield from json_arguments(calls, name, at)
    at = yield from space(at)
    return (yield from literal(_FENCE_END.strip(), at))


def _plain(calls: Calls, at: str) -> Reader[str]:
    name, at = yield from calls.names.read(_MARKER, at)
    at = yield from literal(_SEPARATOR, at)
    return (yield from json_arguments(calls, name, at))


def _v3_text(call: PastCall) -> str:
    return f"{call.name}{_FENCE}{json_text(call.arguments)}{_FENCE_END}"


def _v31_text(call: PastCall) -> str:
    return f"{call.name}{_SEPARATOR}{json_text(call.arguments)}"


def _v31_result(result: PastResult) -> str:
    return f"<｜tool▁output▁begin｜>{result.content}<｜tool▁output▁end｜>"


def _v3_result(result: PastResult) -> str:
    return f"<｜tool▁outputs▁begin｜>{_v31_result(result)}<｜tool▁outputs▁end｜>"


def _v3_layout(_: Mapping[str, int]) -> CallLayout:
    one = f"{_ONE}function{_SEPARATOR}"
    return CallLayout(f"{_ALL}{one}", f"{_ONE_END}\n{one}", f"{_ONE_END}{_ALL_END}", _v3_text, _v3_result, _ALL)


def _v31_layout(_: Mapping[str, int]) -> CallLayout:
    return CallLayout(f"{_ALL}{_ONE}", f"{_ONE_END}{_ONE}", f"{_ONE_END}{_ALL_END}", _v31_text, _v31_result, _ALL)


def _v3_call(rules: Rules, tool: ToolSpec) -> str:
    return f"{rules.literal(tool.name + _FENCE)} {rules.json(tool.parameters)} {rules.literal(_FENCE_END)}"


def _v31_call(rules: Rules, tool: ToolSpec) -> str:
    return f"{rules.literal(tool.name + _SEPARATOR)} {rules.json(tool.parameters)}"


_MARKERS = (_ALL, _ALL_END, _ONE, _ONE_END, _SEPARATOR)
_FENCED = blocks(section(_fenced, _ONE, _ONE_END, _ALL_END), (_ALL,))
_PLAIN = blocks(section(_plain, _ONE, _ONE_END, _ALL_END), (_ALL,))
DEEPSEEK_V3 = ToolFormat("deepseek_v3", _MARKERS, _FENCED, _v3_layout, _v3_call)
DEEPSEEK_V31 = ToolFormat("deepseek_v31", _MARKERS, _PLAIN, _v31_layout, _v31_call)

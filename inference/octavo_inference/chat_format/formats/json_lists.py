"""A list of JSON objects behind a marker: Granite 3 and Phi-4.

Sources: vLLM's tests/tool_parsers/test_granite_tool_parser.py (`<|tool_call|>` of Granite 3.0, `<tool_call>` of 3.1),
examples/tool_chat_template_phi4_mini.jinja (`functools[...]`); the model card of microsoft/Phi-4-mini-instruct
(`<|tool_call|>[...]<|/tool_call|>`).
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo_inference.chat_format.calls import Calls
from octavo_inference.chat_format.formats.json_calls import calls_in_json, named_object
from octavo_inference.chat_format.past_calls import PastResult, json_text, object_text
from octavo_inference.chat_format.readers import NotACallError, Reader, literal, space
from octavo_inference.chat_format.tool_format import CallLayout, ToolFormat, blocks

_TOKEN, _TOKEN_END = "<|tool_call|>", "<|/tool_call|>"
_TEXT, _TEXT_END = "<tool_call>", "</tool_call>"
_FUNCTOOLS = "functools"
_ENDS = {_TOKEN: _TOKEN_END, _TEXT: _TEXT_END}


def _block(calls: Calls, marker: str) -> Reader[str]:
    """The end marker may be left out."""
    at = yield from space((yield))
    if at != "[":
        raise NotACallError
    at = yield from calls_in_json(calls, at)
    return (yield from literal(_ENDS[marker], at)) if at == "<" and marker in _ENDS else at


def _granite_layout(special: Mapping[str, int]) -> CallLayout:
    start = _TOKEN if _TOKEN in special else _TEXT
    barred = (_TEXT,) if start == _TOKEN else (_TOKEN,)
    return CallLayout(f"{start}[", ", ", "]", object_text, trigger=start, barred=barred)


def _phi4_result(result: PastResult) -> str:
    return json_text({"result": result.content})


def _phi4_layout(special: Mapping[str, int]) -> CallLayout:
    if _TOKEN in special:
        return CallLayout(
            f"{_TOKEN}[", ", ", f"]{_TOKEN_END}", object_text, _phi4_result, _TOKEN, barred=(f"{_FUNCTOOLS}[",)
        )
    return CallLayout(f"{_FUNCTOOLS}[", ", ", "]", object_text, _phi4_result, f"{_FUNCTOOLS}[", barred=(_TOKEN,))


GRANITE = ToolFormat("granite", (_TOKEN,), blocks(_block, (_TOKEN, _TEXT)), _granite_layout, named_object)
PHI4 = ToolFormat("phi4", (_TOKEN, _TOKEN_END), blocks(_block, (_TOKEN, _FUNCTOOLS)), _phi4_layout, named_object)

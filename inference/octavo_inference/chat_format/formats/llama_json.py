"""Llama 3: a JSON object `{"name": ..., "parameters": ...}` as the whole answer, or behind `<|python_tag|>`.

Sources: the template of meta-llama/Llama-3.1-8B-Instruct; vLLM's examples/tool_chat_template_llama3.1_json.jinja and
tests/tool_parsers/test_llama3_json_tool_parser.py (several calls with `; ` between them).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from octavo_inference.chat_format.calls import Calls
from octavo_inference.chat_format.formats.json_calls import call_object, named_object
from octavo_inference.chat_format.lark import Rules
from octavo_inference.chat_format.past_calls import PastCall, PastResult, json_text, object_text
from octavo_inference.chat_format.readers import Reader, space
from octavo_inference.chat_format.tool_format import CallLayout, ToolFormat, blocks
from octavo_inference.chat_format.tools import ToolSpec

_TAG = "<|python_tag|>"
# Llama 4.
_START, _END = "<|python_start|>", "<|python_end|>"
# References that mean something else in a schema around this one.
_REFERENCE = re.compile(r'"\$ref": "(?!#/(\$defs|definitions)/)')


def _block(calls: Calls, marker: str) -> Reader[str]:
    at = "{" if marker == "{" else (yield from space((yield)))
    at = yield from call_object(calls, at)
    while at == ";":
        at = yield from space((yield))
        at = yield from call_object(calls, at)
    return at


def _text(call: PastCall) -> str:
    return object_text(call, "parameters")


def _result(result: PastResult) -> str:
    return json_text({"output": result.content})


def _layout(_: Mapping[str, int]) -> CallLayout:
    return CallLayout("", "; ", "", _text, _result, no_call=r"/(\s*[^{\s](.|\n)*)?/")


def _call(rules: Rules, tool: ToolSpec) -> str:
    """One schema rather than text around one: in a grammar, it may stand beside another (`answer`)."""
    parameters = {"type": "object"} if tool.parameters is None else tool.parameters
    if _REFERENCE.search(json.dumps(parameters)):
        return named_object(rules, tool, "parameters")
    definitions = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    return rules.json_of(
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "parameters": parameters},
            "required": ["name", "parameters"],
            "additionalProperties": False,
            **definitions,
        }
    )


LLAMA_JSON = ToolFormat("llama3_json", (_TAG, _START, _END), blocks(_block, (_TAG, _START), bare="{"), _layout, _call)

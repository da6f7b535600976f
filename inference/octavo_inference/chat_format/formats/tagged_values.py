"""Calls whose arguments are bare text between tags: GLM-4.5, Qwen3-Coder and Seed-OSS. Types come from the schema.

Sources: the templates of zai-org/GLM-4.5, Qwen/Qwen3-Coder-480B-A35B-Instruct and ByteDance-Seed/Seed-OSS-36B-Instruct
(copies in llama.cpp's models/templates and vLLM's examples); vLLM's tests/tool_parsers/test_glm4_moe_tool_parser.py and
test_qwen3coder_tool_parser.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from octavo_inference.chat_format.arguments import Arguments
from octavo_inference.chat_format.calls import Calls
from octavo_inference.chat_format.formats.bare_values import tagged_parameters
from octavo_inference.chat_format.lark import Rules
from octavo_inference.chat_format.past_calls import PastCall, bare_text
from octavo_inference.chat_format.readers import NotACallError, Reader, literal, one_of, space
from octavo_inference.chat_format.tool_format import CallLayout, ToolFormat, blocks
from octavo_inference.chat_format.tools import ToolSpec

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_SEED, _SEED_END = "<seed:tool_call>", "</seed:tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_ENDS = {_CALL: _CALL_END, _SEED: _SEED_END}
_GREATER, _BEHIND_GLM_NAME = frozenset(">"), frozenset("\n< ")
_MAX_KEY = 1000


def _functions(calls: Calls, marker: str) -> Reader[str]:
    """Reads `<function=` blocks, behind the marker around them or `<function=` itself."""
    at = yield
    if marker in _ENDS:
        at = yield from space(at)
        at = yield from literal(_FUNCTION, at)
    while True:
        name, _ = yield from calls.names.read(_GREATER, at)
        at = yield
        arguments = Arguments(calls, name)
        while True:
            at = yield from space(at)
            tag, at = yield from one_of((_PARAMETER, _FUNCTION_END), at)
            if tag == _FUNCTION_END:
                break
            key, at = yield from _key(">", at)
            if at == "\n":
                at = yield
            _, at = yield from arguments.text_value(key, (f"\n{_PARAMETER_END}", _PARAMETER_END), at)
        arguments.close()
        if marker not in _ENDS:
            return at
        at = yield from space(at)
        tag, at = yield from one_of((_FUNCTION, _ENDS[marker]), at)
        if tag != _FUNCTION:
            return at


def _glm(calls: Calls, _: str) -> Reader[str]:
    name, at = yield from calls.names.read(_BEHIND_GLM_NAME, (yield from space((yield))))
    arguments = Arguments(calls, name)
    while True:
        at = yield from space(at)
        tag, at = yield from one_of((_KEY, _CALL_END), at)
        if tag == _CALL_END:
            arguments.close()
            return at
        key, at = yield from _key(_KEY_END, at)
        at = yield from space(at)
        at = yield from literal(_VALUE, at)
        _, at = yield from arguments.text_value(key.strip(), (_VALUE_END,), at)


def _key(end: str, at: str) -> Reader[tuple[str, str]]:
    """Reads a parameter's name and what is behind it."""
    read = ""
    while not read.endswith(end):
        read += at
        if not at or len(read) > _MAX_KEY:
            raise NotACallError
        at = yield
    return read.removesuffix(end), at


def _qwen_call(rules: Rules, tool: ToolSpec) -> str:
    parameters = tagged_parameters(rules, tool, (f"{_PARAMETER}", ">\n", f"\n{_PARAMETER_END}\n"))
    return f"{rules.literal(tool.name + '>')} {rules.literal(chr(10))} {parameters}"


def _seed_call(rules: Rules, tool: ToolSpec) -> str:
    parameters = tagged_parameters(rules, tool, (f"{_PARAMETER}", ">", f"{_PARAMETER_END}\n"))
    return f"{rules.literal(tool.name + '>')} {rules.literal(chr(10))} {parameters}"


def _glm_call(rules: Rules, tool: ToolSpec) -> str:
    parameters = tagged_parameters(rules, tool, (_KEY, f"{_KEY_END}\n{_VALUE}", f"{_VALUE_END}\n"))
    return f"{rules.literal(tool.name)} {rules.literal(chr(10))} {parameters}"


def _glm_layout(_: Mapping[str, int]) -> CallLayout:
    return CallLayout(_CALL, f"{_CALL_END}\n{_CALL}", _CALL_END, _glm_text, trigger=_CALL)


def _glm_text(call: PastCall) -> str:
    values = (
        f"{_KEY}{key}{_KEY_END}\n{_VALUE}{bare_text(value)}{_VALUE_END}\n" for key, value in call.arguments.items()
    )
    return f"{call.name}\n{''.join(values)}"


def _function_text(call: PastCall, space: str) -> str:
    """`space` is around each value."""
    values = (
        f"{_PARAMETER}{key}>{space}{bare_text(value)}{space}{_PARAMETER_END}\n" for key, value in call.arguments.items()
    )
    return f"{call.name}>\n{''.join(values)}"


def _functions_layout(start: str, end: str, space: str) -> CallLayout:
    opening, closing = f"{start}\n{_FUNCTION}", f"{_FUNCTION_END}\n{end}"
    write = functools.partial(_function_text, space=space)
    return CallLayout(opening, f"{closing}\n{opening}", closing, write, trigger=start, barred=(_FUNCTION,))


GLM45 = ToolFormat(
    "glm45",
    (_CALL, _CALL_END, _KEY, _KEY_END, _VALUE, _VALUE_END),
    blocks(_glm, (_CALL,)),
    _glm_layout,
    _glm_call,
)
QWEN3_CODER = ToolFormat(
    "qwen3_coder",
    (_CALL, _CALL_END),
    blocks(_functions, (_CALL, _FUNCTION)),
    lambda _: _functions_layout(_CALL, _CALL_END, "\n"),
    _qwen_call,
)
SEED_OSS = ToolFormat(
    "seed_oss",
    (_SEED, _SEED_END),
    blocks(_functions, (_SEED, _FUNCTION)),
    lambda _: _functions_layout(_SEED, _SEED_END, ""),
    _seed_call,
)

"""Llama 3.2 and 4, Gemma 3: a list of Python calls, `[get_weather(city="Paris"), get_time()]`.

Sources: vLLM's examples/tool_chat_template_llama4_pythonic.jinja, tool_chat_template_gemma3_pythonic.jinja and
tests/tool_parsers/test_llama4_pythonic_tool_parser.py (also between `<|python_start|>` and `<|python_end|>`).
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo_inference.chat_format.arguments import Arguments
from octavo_inference.chat_format.calls import Calls
from octavo_inference.chat_format.formats.bare_values import keyword_arguments
from octavo_inference.chat_format.formats.python_values import python_value
from octavo_inference.chat_format.lark import Rules
from octavo_inference.chat_format.past_calls import PastCall
from octavo_inference.chat_format.readers import NotACallError, Reader, nowhere, space
from octavo_inference.chat_format.tool_format import CallLayout, ToolFormat, blocks
from octavo_inference.chat_format.tools import ToolSpec

_START, _END = "<|python_start|>", "<|python_end|>"
_BRACKET = frozenset("(")
_MAX_NAME = 200


def _block(calls: Calls, marker: str) -> Reader[str]:
    at = "[" if marker == "[" else (yield from space((yield)))
    if at != "[":
        raise NotACallError
    while True:
        at = yield from space((yield))
        name, _ = yield from calls.names.read(_BRACKET, at)
        at = yield from _arguments(Arguments(calls, name))
        at = yield from space(at)
        if at == "]":
            return (yield)
        if at != ",":
            raise NotACallError


def _arguments(arguments: Arguments) -> Reader[str]:
    at = yield from space((yield))
    while at != ")":
        name, at = yield from _name(at)
        if at != "=":
            raise NotACallError
        sink = arguments.key(name)
        at = yield from python_value((yield from space((yield))), sink or nowhere)
        arguments.done()
        at = yield from space(at)
        if at == ",":
            at = yield from space((yield))
        elif at != ")":
            raise NotACallError
    arguments.close()
    return (yield)


def _name(at: str) -> Reader[tuple[str, str]]:
    read = ""
    while (read + at).isidentifier() and len(read) < _MAX_NAME and at:
        read += at
        at = yield
    if not read:
        raise NotACallError
    return read, (yield from space(at))


def _text(call: PastCall) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def _layout(_: Mapping[str, int]) -> CallLayout:
    return CallLayout("[", ", ", "]", _text, no_call=r"/(\s*[^\[\s](.|\n)*)?/")


def _call(rules: Rules, tool: ToolSpec) -> str:
    return f"{rules.literal(tool.name + '(')} {keyword_arguments(rules, tool)} {rules.literal(')')}"


PYTHONIC = ToolFormat("pythonic", (_START, _END), blocks(_block, (_START,), bare="["), _layout, _call)

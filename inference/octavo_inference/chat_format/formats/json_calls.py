"""Calls as JSON objects with `name` and `arguments` (or `parameters`), one or a list of them."""

from __future__ import annotations

import json

from octavo_inference.chat_format.calls import Calls
from octavo_inference.chat_format.lark import Rules
from octavo_inference.chat_format.readers import NotACallError, Reader, json_string, json_value, nowhere, space
from octavo_inference.chat_format.tools import ToolSpec

_COMMA = frozenset(",")
_QUOTE = frozenset('"')


def calls_in_json(calls: Calls, at: str) -> Reader[str]:
    """Reads one call object, or a list of them, which may be empty."""
    at = yield from space(at)
    if at != "[":
        return (yield from call_object(calls, at))
    at = yield from space((yield))
    while at != "]":
        at = yield from call_object(calls, at)
        at = yield from space(at)
        if at in _COMMA:
            at = yield from space((yield))
        elif at != "]":
            raise NotACallError
    return (yield)


def call_object(calls: Calls, at: str) -> Reader[str]:
    """Reads one call object.

    The arguments are passed on as they come, behind the name; before it, they are held until the name is known. A
    bracket that is missing at the end is no error: models forget it.
    """
    if at != "{":
        raise NotACallError
    arguments: list[str] | None = None
    at = yield from space((yield))
    while at != "}":
        key, at = yield from json_string(at)
        at = yield from space(at)
        if at != ":":
            raise NotACallError
        at = yield from space((yield))
        if key == "name" and not calls.is_open:
            at = yield from _name(calls, at)
            calls.arguments("".join(arguments or ()))
        elif key in {"arguments", "parameters"} and arguments is None:
            arguments = []
            at = yield from json_value(at, calls.arguments if calls.is_open else arguments.append)
        else:
            at = yield from json_value(at, nowhere)
        at = yield from space(at)
        if at in _COMMA:
            at = yield from space((yield))
        elif at != "}":
            if arguments is None or not calls.is_open:
                raise NotACallError
            calls.end()
            return at
    if not calls.is_open:
        raise NotACallError
    if arguments is None:
        calls.arguments("{}")
    calls.end()
    return (yield)


def _name(calls: Calls, at: str) -> Reader[str]:
    if at != '"':
        raise NotACallError
    name, _ = yield from calls.names.read(_QUOTE, (yield))
    calls.start(name)
    return (yield)


def json_arguments(calls: Calls, name: str, at: str, call_id: str | None = None) -> Reader[str]:
    """Reads the arguments of a call whose name has been read: a JSON object, passed on as it comes."""
    at = yield from space(at)
    if at != "{":
        raise NotACallError
    calls.start(name, call_id)
    at = yield from json_value(at, calls.arguments)
    calls.end()
    return at


def named_object(rules: Rules, tool: ToolSpec, arguments: str = "arguments") -> str:
    """A call object as a Lark expression. `arguments` is the name of the arguments' field."""
    head = json.dumps({"name": tool.name}, ensure_ascii=False)[:-1] + f', "{arguments}": '
    return f"{rules.literal(head)} {rules.json(tool.parameters)} {rules.literal('}')}"

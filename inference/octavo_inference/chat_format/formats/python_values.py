"""Python literals, passed on as JSON. JSON itself is read, too."""

from __future__ import annotations

import json
import re

from octavo_inference.chat_format.readers import END, NotACallError, PlainRun, Reader, Sink, space
from octavo_inference.chat_format.schema_types import escaped

_MAX_DEPTH = 32
_MAX_WORD = 400
_QUOTES = frozenset("'\"")
_RUNS = {quote: re.compile(rf"[^\\{quote}]+").match for quote in _QUOTES}
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-._")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\\": "\\", "'": "'", '"': '"', "/": "/", "0": "\0"}
_HEX = frozenset("0123456789abcdefABCDEF")
_HEX_SIZES = {"x": 2, "u": 4, "U": 8}


def python_value(at: str, sink: Sink, depth: int = 0) -> Reader[str]:
    """Reads a literal: a string, number, `True`, `False`, `None`, list or dictionary with strings as keys."""
    if depth > _MAX_DEPTH:
        raise NotACallError
    if at in _QUOTES:
        return (yield from _string(at, sink))
    if at == "[":
        return (yield from _items("[", "]", sink, depth))
    if at == "{":
        return (yield from _items("{", "}", sink, depth))
    return (yield from _word(at, sink))


def _items(opening: str, closing: str, sink: Sink, depth: int) -> Reader[str]:
    sink(opening)
    at = yield from space((yield))
    count = 0
    while at != closing:
        if count:
            sink(", ")
        count += 1
        if opening == "{":
            if at not in _QUOTES:
                raise NotACallError
            at = yield from space((yield from _string(at, sink)))
            if at != ":":
                raise NotACallError
            sink(": ")
            at = yield from space((yield))
        at = yield from space((yield from python_value(at, sink, depth + 1)))
        if at == ",":
            at = yield from space((yield))
        elif at != closing:
            raise NotACallError
    sink(closing)
    return (yield)


def _string(quote: str, sink: Sink) -> Reader[str]:
    plain = PlainRun(_RUNS[quote], lambda text: sink(escaped(text)))
    sink('"')
    at = yield plain
    while at != quote:
        if at is END:
            return END
        if at == "\\":
            at = yield from _escape((yield), sink)
        else:
            sink(escaped(at))
            at = yield plain
    sink('"')
    return (yield)


def _escape(at: str, sink: Sink) -> Reader[str]:
    """Reads what follows a backslash. Python keeps the backslash of one that it does not know."""
    size = _HEX_SIZES.get(at, 0)
    if not size:
        if at is END:
            return END
        if at != "\n":
            sink(escaped(_ESCAPES.get(at, "\\" + at)))
        return (yield)
    digits = ""
    at = yield
    while at in _HEX and len(digits) < size:
        digits += at
        at = yield
    if len(digits) < size or int(digits, 16) > 0x10FFFF:
        raise NotACallError
    code = int(digits, 16)
    # As in JSON: a character may be written as two surrogates, which are no characters.
    sink(f"\\u{code:04x}" if code <= 0xFFFF else chr(code))
    return at


def _word(at: str, sink: Sink) -> Reader[str]:
    read = ""
    while at in _WORD and len(read) < _MAX_WORD:
        read += at
        at = yield
    sink(_WORDS.get(read) or _number(read))
    return at


def _number(text: str) -> str:
    try:
        value = json.loads(text.removeprefix("+"), parse_constant=_refuse)
    except ValueError:
        raise NotACallError from None
    if isinstance(value, float) and value in {float("inf"), float("-inf")}:
        raise NotACallError
    return text.removeprefix("+")


def _refuse(constant: str) -> None:
    raise ValueError(constant)

r"""Coroutines that read parts of formats, one character at a time.

Each takes the character at hand and returns the first one behind the part that it reads: END at the end of the answer.
A reader raises `NotACallError` at the first character that does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reader = Generator[None, str, T]
Sink = Callable[[str], None]

END = ""
"""The character behind the last one."""

SPACE = frozenset(" \t\n\r")
_SCALAR = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.")
_OPENING = frozenset("{[")
_CLOSING = frozenset("}]")
_JSON = _SCALAR | SPACE | frozenset("{}[]:,")


class NotACallError(Exception):
    """What was read since the last part of a call is no part of one."""


def prefixes(texts: Iterable[str]) -> frozenset[str]:
    """All beginnings of the texts, without the empty one and the texts themselves."""
    return frozenset(text[:end] for text in texts for end in range(1, len(text)))


_prefixes = lru_cache(maxsize=100)(prefixes)


def space(at: str) -> Reader[str]:
    """Reads white space."""
    while at in SPACE:
        at = yield
    return at


def literal(text: str, at: str) -> Reader[str]:
    """Reads exactly this text."""
    for expected in text:
        if at != expected:
            raise NotACallError
        at = yield
    return at


def one_of(texts: tuple[str, ...], at: str) -> Reader[tuple[str, str]]:
    """Reads one of the texts, of which none is the beginning of another. Returns it, too."""
    begun = _prefixes(texts)
    read = at
    while read not in texts:
        if read not in begun or at is END:
            raise NotACallError
        at = yield
        read += at
    return read, (yield)


class Names:
    """Names of functions, ready to be read."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._begun = prefixes(self._names)

    def read(self, stops: frozenset[str], at: str) -> Reader[tuple[str, str]]:
        """Reads one of the names, up to one of the characters `stops`. Returns it, too."""
        read = ""
        while at not in stops or read not in self._names:
            read += at
            if at is END or (read not in self._begun and read not in self._names):
                raise NotACallError
            at = yield
        return read, at


def until(ends: tuple[str, ...], at: str, sink: Sink) -> Reader[tuple[str, str]]:
    """Passes on everything before the first of the texts `ends`. Returns that text, or END, and the next character."""
    begun = _prefixes(ends)
    tail = ""
    while at:
        if not tail and at not in begun:
            sink(at)
            at = yield
            continue
        tail += at
        while tail and tail not in begun:
            if tail in ends:
                return tail, (yield)
            sink(tail[0])
            tail = tail[1:]
        at = yield
    return END, END


def json_string(at: str) -> Reader[tuple[str, str]]:
    """Reads a JSON string of at most 1,000 characters, such as a key. Returns its value, too."""
    parts: list[str] = []
    at = yield from json_value(at, parts.append, limit=1000)
    try:
        value = json.loads("".join(parts))
    except ValueError:
        raise NotACallError from None
    if not isinstance(value, str):
        raise NotACallError
    return value, at


def json_value(at: str, sink: Sink, limit: int | None = None) -> Reader[str]:
    """Passes on a JSON value: as far as its brackets and quotes tell, nothing else is checked.

    Stops at a character that no JSON has there, and after `limit` characters.
    """
    depth = count = 0
    while True:
        if at == '"':
            at, size = yield from _quoted(sink, limit)
            count += size
        elif depth or at in _OPENING:
            if at is END or at not in _JSON:
                return at
            depth += (at in _OPENING) - (at in _CLOSING)
            sink(at)
            count += 1
            at = yield
        else:
            return (yield from _scalar(at, sink))
        if depth == 0 or at is END:
            return at
        if limit is not None and count > limit:
            raise NotACallError


def _quoted(sink: Sink, limit: int | None) -> Reader[tuple[str, int]]:
    sink('"')
    count = 1
    at = yield
    while at and at != '"':
        sink(at)
        count += 1
        if at == "\\":
            at = yield
            if not at:
                break
            sink(at)
        at = yield
        if limit is not None and count > limit:
            raise NotACallError
    if at:
        sink(at)
        at = yield
    return at, count


def _scalar(at: str, sink: Sink) -> Reader[str]:
    if at not in _SCALAR:
        raise NotACallError
    while at in _SCALAR:
        sink(at)
        at = yield
    return at

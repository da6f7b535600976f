r"""Coroutines that read parts of formats, one character at a time.

Each takes the character at hand and returns the first one behind the part that it reads: END at the end of the answer.
A reader raises `NotACallError` at the first character that does not fit. Where it passes characters on unchanged, it
yields the `PlainRun` of them, and gets only the first character behind the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Sink = Callable[[str], object]


class PlainRun(NamedTuple):
    """Characters that all go to a sink: `match` is that of a regular expression for one or more of them."""

    match: Callable[[str, int], re.Match[str] | None]
    sink: Sink


Reader = Generator[Any, str, T]
"""Yields None, or the `PlainRun` that may follow."""

END = ""
"""The character behind the last one."""

SPACE = frozenset(" \t\n\r")
_SCALAR = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.")
_OPENING = frozenset("{[")
_CLOSING = frozenset("}]")
_JSON = _SCALAR | SPACE | frozenset("{}[]:,")
_QUOTED_RUN = re.compile(r'[^"\\]+').match
_BETWEEN_BRACKETS_RUN = re.compile(r"[a-zA-Z0-9+\-. \t\n\r:,]+").match
_SCALAR_RUN = re.compile(r"[a-zA-Z0-9+\-.]+").match


class NotACallError(Exception):
    """What was read since the last part of a call is no part of one."""


def nowhere(_: str) -> None:
    """A sink for what has no place."""


_SPACE_RUN = PlainRun(re.compile(r"[ \t\n\r]+").match, nowhere)


def prefixes(texts: Iterable[str]) -> frozenset[str]:
    """All beginnings of the texts, without the empty one and the texts themselves."""
    return frozenset(text[:end] for text in texts for end in range(1, len(text)))


_prefixes = lru_cache(maxsize=100)(prefixes)


@lru_cache(maxsize=100)
def finder(markers: frozenset[str]) -> Callable[..., re.Match[str] | None]:
    """A search for the first of the markers, or for the beginning of one at the end of the text.

    None of the markers is the beginning of another.
    """
    return re.compile(_tree(markers) or "(?!)").search


def _tree(markers: Iterable[str]) -> str:
    """A regular expression that looks at each character once, as far as it is that of a marker."""
    rests: dict[str, set[str]] = {}
    for marker in markers:
        rests.setdefault(marker[0], set()).add(marker[1:])
    return "|".join(
        re.escape(first) + ("" if "" in others else rf"(?:{_tree(others)}|\Z)") for first, others in rests.items()
    )


@lru_cache(maxsize=100)
def _none_of(characters: frozenset[str]) -> Callable[[str, int], re.Match[str] | None]:
    return re.compile(f"[^{re.escape(''.join(sorted(characters)))}]+").match


def space(at: str) -> Reader[str]:
    """Reads white space."""
    while at in SPACE:
        at = yield _SPACE_RUN
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
    find = finder(frozenset(ends))
    others = PlainRun(_none_of(frozenset(end[0] for end in ends)), sink)
    tail = ""
    while at:
        tail += at
        found = find(tail)
        start = found.start() if found else len(tail)
        if start:
            sink(tail[:start])
            tail = tail[start:]
        if tail in ends:
            return tail, (yield)
        at = yield None if tail else others
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
    between = PlainRun(_BETWEEN_BRACKETS_RUN, sink) if limit is None else None
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
            at = yield between if depth else None
        else:
            return (yield from _scalar(at, sink))
        if depth == 0 or at is END:
            return at
        if limit is not None and count > limit:
            raise NotACallError


def _quoted(sink: Sink, limit: int | None) -> Reader[tuple[str, int]]:
    inner = PlainRun(_QUOTED_RUN, sink) if limit is None else None
    sink('"')
    count = 1
    at = yield inner
    while at and at != '"':
        sink(at)
        count += 1
        if at == "\\":
            at = yield
            if not at:
                break
            sink(at)
        at = yield inner
        if limit is not None and count > limit:
            raise NotACallError
    if at:
        sink(at)
        at = yield
    return at, count


def _scalar(at: str, sink: Sink) -> Reader[str]:
    if at not in _SCALAR:
        raise NotACallError
    rest = PlainRun(_SCALAR_RUN, sink)
    while at in _SCALAR:
        sink(at)
        at = yield rest
    return at

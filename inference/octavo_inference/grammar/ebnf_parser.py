"""Parses EBNF as llama.cpp has it (GBNF). Line breaks end a rule, except inside of parentheses and around `|`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NoReturn

from octavo_inference.grammar.ebnf_nodes import (
    SIGNS,
    EbnfEither,
    EbnfName,
    EbnfNode,
    EbnfRepeat,
    EbnfSequence,
    EbnfText,
)
from octavo_inference.grammar.refusal import refusal

MAX_NESTING = 64
MAX_RULES = 2000

_TOKEN = re.compile(
    r"""(?P<space>[ \t]+|\#[^\n]*)
      | (?P<line>\r?\n|\r)
      | (?P<rule>[A-Za-z_][\w-]*)[ \t]*::=
      | (?P<name>[A-Za-z_][\w-]*)
      | "(?P<text>(?:\\.|[^"\\])*)"
      | \[(?P<set>(?:\\.|[^\]\\])*)\]
      | \{[ ]*(?P<low>\d{1,6})[ ]*(?P<range>,[ ]*(?P<high>\d{0,6})[ ]*)?\}
      | (?P<sign>[()|*+?.])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<c>.))", re.DOTALL)
_BAR = re.compile(r"(?:\s++|\#[^\n]*+)*+\|")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}


class EbnfParser:
    """Parses one grammar. Mistakes raise `RequestError` for `param`."""

    def __init__(self, text: str, param: str) -> None:
        self._text = text
        self._param = param
        self._position = 0
        self._token: re.Match[str] | None = None
        self._next()

    def rules(self) -> dict[str, EbnfNode]:
        """All rules by name."""
        found: dict[str, EbnfNode] = {}
        self._skip_lines()
        while self._token is not None:
            name = self._token["rule"]
            if name is None:
                self._fail("expected a rule 'NAME ::= …'")
            if name in found:
                self._fail(f"rule {name[:64]!r} is defined twice")
            if len(found) == MAX_RULES:
                self._fail(f"more than {MAX_RULES} rules")
            self._next()
            self._skip_lines()
            found[name] = self._either(0)
            if self._token is not None and self._token["line"] is None:
                self._fail("expected the end of the line")
            self._skip_lines()
        return found

    def _either(self, nesting: int) -> EbnfNode:
        if nesting > MAX_NESTING:
            self._fail(f"more than {MAX_NESTING} parentheses inside each other")
        options = [self._sequence(nesting)]
        while self._is("|"):
            self._next()
            self._skip_lines()
            options.append(self._sequence(nesting))
        return options[0] if len(options) == 1 else EbnfEither(tuple(options))

    def _sequence(self, nesting: int) -> EbnfNode:
        parts: list[EbnfNode] = []
        while True:
            if self._token is not None and self._token["line"] is not None and (nesting or self._bar_follows()):
                self._skip_lines()
            part = self._part(nesting)
            if part is None:
                return parts[0] if len(parts) == 1 else EbnfSequence(tuple(parts))
            parts.append(self._repeated(part))

    def _part(self, nesting: int) -> EbnfNode | None:
        token = self._token
        if token is None:
            return None
        if token["name"] is not None:
            found: EbnfNode = EbnfName(token["name"])
        elif token["text"] is not None:
            found = EbnfText(json.dumps(self._unescaped(token["text"])))
        elif token["set"] is not None:
            found = EbnfText(self._set(token["set"]))
        elif token["sign"] == ".":
            found = EbnfText("/(?s:.)/")
        elif token["sign"] == "(":
            self._next()
            found = self._either(nesting + 1)
            self._skip_lines()
            if not self._is(")"):
                self._fail("expected ')'")
        else:
            return None
        self._next()
        return found

    def _repeated(self, part: EbnfNode) -> EbnfNode:
        counts = self._counts()
        if counts is None:
            return part
        if self._counts() is not None:
            self._fail("two repetitions of one part; put the first one in parentheses")
        return EbnfRepeat(part, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        """A repetition if one is next: least and most times."""
        token = self._token
        if token is None:
            return None
        if token["low"] is not None:
            low = int(token["low"])
            high = low if token["range"] is None else int(token["high"]) if token["high"] else None
            if high is not None and high < low:
                self._fail(f"a repetition from {low} to {high}")
        elif token["sign"] is not None and token["sign"] in SIGNS:
            low, high = SIGNS[token["sign"]]
        else:
            return None
        self._next()
        return low, high

    def _set(self, source: str) -> str:
        """Lark for a set such as `[^a-z]`: all characters by their numbers, so that none is special."""
        negated = source.startswith("^")
        body = source[1:] if negated else source
        characters = list(self._characters(body))
        pieces = []
        at = 0
        while at < len(characters):
            first = characters[at][0]
            if at + 2 < len(characters) and characters[at + 1] == ("-", False):
                last = characters[at + 2][0]
                if last < first:
                    self._fail(f"a range of characters from {first!r} to {last!r}")
                pieces.append(f"{_code(first)}-{_code(last)}")
                at += 3
            else:
                pieces.append(_code(first))
                at += 1
        if not pieces:
            self._fail("an empty set of characters")
        return f"/[{'^' if negated else ''}{''.join(pieces)}]/"

    def _characters(self, source: str) -> Iterator[tuple[str, bool]]:
        """Characters of a set, and whether each is escaped."""
        at = 0
        while at < len(source):
            if source[at] == "\\" and (found := _ESCAPE.match(source, at)):
                yield self._escape(found), True
                at = found.end()
            else:
                yield source[at], False
                at += 1

    def _unescaped(self, source: str) -> str:
        return _ESCAPE.sub(self._escape, source)

    def _escape(self, found: re.Match[str]) -> str:
        digits = found["x"] or found["u"] or found["U"]
        if digits is None:
            letter = found["c"]
            if letter.isalnum() and letter not in _LETTERS:
                self._fail(f"an unknown escape \\{letter}")
            return _LETTERS.get(letter, letter)
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            self._fail(f"\\{found[0][1:]} is not a character")
        return chr(code)

    def _bar_follows(self) -> bool:
        """True if the next token behind line breaks is `|`."""
        return _BAR.match(self._text, self._position) is not None

    def _is(self, sign: str) -> bool:
        return self._token is not None and self._token["sign"] == sign

    def _skip_lines(self) -> None:
        while self._token is not None and self._token["line"] is not None:
            self._next()

    def _next(self) -> None:
        while self._position < len(self._text):
            found = _TOKEN.match(self._text, self._position)
            if found is None:
                self._fail(f"{self._text[self._position : self._position + 20]!r} is not EBNF")
            self._position = found.end()
            if found["space"] is None:
                self._token = found
                return
        self._token = None

    def _fail(self, problem: str) -> NoReturn:
        line = self._text.count("\n", 0, self._position) + 1
        raise refusal(self._param, f"line {line}: {problem}")


def _code(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"

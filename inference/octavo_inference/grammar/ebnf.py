"""Converts EBNF as llama.cpp has it (GBNF: `root ::= "a" [0-9]+ rule`) to Lark.

llguidance divides a text in tokens, terminals, before it parses, each as long as possible. So every part of the
grammar without recursion becomes one terminal: within it, all ways to match are tried. Only where parts of a recursive
rule meet does the longest match win. Line breaks end a rule, except inside of parentheses and around `|`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from octavo_inference.grammar.pattern_size import MAX_PATTERN_SIZE
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
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, slots=True)
class _Text:
    """Lark for a text or a set of characters."""

    lark: str


@dataclass(frozen=True, slots=True)
class _Name:
    name: str


@dataclass(frozen=True, slots=True)
class _Repeat:
    inner: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class _Either:
    options: tuple[Node, ...]


Node: TypeAlias = "_Text | _Name | _Repeat | _Sequence | _Either"


def ebnf_to_lark(text: str, param: str) -> str:
    """A grammar in Lark from one in EBNF, whose rule `root` is the answer. Raises `RequestError`."""
    rules = _Parser(text, param).rules()
    if "root" not in rules:
        raise refusal(param, "the grammar has no rule 'root ::= …', which is the answer")
    for name, rule in rules.items():
        unknown = next((found for found in _names(rule) if found not in rules), None)
        if unknown is not None:
            raise refusal(param, f"rule {name[:64]!r} refers to {unknown[:64]!r}, which is not a rule")
    return _Writer(rules, param).grammar()


class _Parser:
    def __init__(self, text: str, param: str) -> None:
        self._text = text
        self._param = param
        self._position = 0
        self._token: re.Match[str] | None = None
        self._next()

    def rules(self) -> dict[str, Node]:
        """All rules by name."""
        found: dict[str, Node] = {}
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

    def _either(self, nesting: int) -> Node:
        if nesting > MAX_NESTING:
            self._fail(f"more than {MAX_NESTING} parentheses inside each other")
        options = [self._sequence(nesting)]
        while self._is("|"):
            self._next()
            self._skip_lines()
            options.append(self._sequence(nesting))
        return options[0] if len(options) == 1 else _Either(tuple(options))

    def _sequence(self, nesting: int) -> Node:
        parts: list[Node] = []
        while True:
            if self._token is not None and self._token["line"] is not None and (nesting or self._bar_follows()):
                self._skip_lines()
            part = self._part(nesting)
            if part is None:
                return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))
            parts.append(self._repeated(part))

    def _part(self, nesting: int) -> Node | None:
        token = self._token
        if token is None:
            return None
        if token["name"] is not None:
            found: Node = _Name(token["name"])
        elif token["text"] is not None:
            found = _Text(json.dumps(self._unescaped(token["text"])))
        elif token["set"] is not None:
            found = _Text(self._set(token["set"]))
        elif token["sign"] == ".":
            found = _Text("/(?s:.)/")
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

    def _repeated(self, part: Node) -> Node:
        counts = self._counts()
        if counts is None:
            return part
        if self._counts() is not None:
            self._fail("two repetitions of one part; put the first one in parentheses")
        return _Repeat(part, *counts)

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
        elif token["sign"] is not None and token["sign"] in _SIGNS:
            low, high = _SIGNS[token["sign"]]
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


class _Writer:
    """Writes rules as Lark: those without recursion as terminals, which have upper-case names."""

    def __init__(self, rules: Mapping[str, Node], param: str) -> None:
        self._rules = rules
        self._param = param
        used = _reachable(rules)
        regular = _regular(rules, used)
        self._recursive = set(used) - set(regular)
        self._names = {
            name: f"r{number}" if name in self._recursive else f"T{number}" for number, name in enumerate(used)
        }
        self._extra: list[str] = []
        self._sizes: dict[str, int] = {}
        for name in regular:
            self._sizes[name] = self._size(rules[name])

    def grammar(self) -> str:
        lines = [f"start: {self._names['root']}"]
        for name, written in self._names.items():
            node = self._rules[name]
            body = self._rule(node) if name in self._recursive else self._terminal(node)
            lines.append(f"{written}: {body}")
        return "\n".join([*lines, *self._extra]) + "\n"

    def _rule(self, node: Node) -> str:
        """A node of a recursive rule: its longest parts without recursion become terminals."""
        if self._is_regular(node):
            return self._named(node)
        if isinstance(node, _Either):
            return "(" + " | ".join(map(self._rule, node.options)) + ")"
        if isinstance(node, _Sequence):
            parts: list[str] = []
            run: list[Node] = []
            for part in (*node.parts, None):
                if part is not None and self._is_regular(part):
                    run.append(part)
                    continue
                if run:
                    parts.append(self._named(run[0] if len(run) == 1 else _Sequence(tuple(run))))
                    run = []
                if part is not None:
                    parts.append(self._rule(part))
            return " ".join(parts)
        if isinstance(node, _Repeat):
            if (node.high or node.low) > MAX_PATTERN_SIZE:
                self._refuse()
            return f"({self._rule(node.inner)})" + _counts(node)
        return self._names[node.name] if isinstance(node, _Name) else node.lark

    def _named(self, node: Node) -> str:
        """A terminal for a node without recursion."""
        if isinstance(node, _Text):
            return node.lark
        if isinstance(node, _Name):
            return self._names[node.name]
        self._size(node)
        name = f"X{len(self._extra)}"
        self._extra.append(f"{name}: {self._terminal(node)}")
        return name

    def _terminal(self, node: Node) -> str:
        if isinstance(node, _Text):
            return node.lark
        if isinstance(node, _Name):
            return self._names[node.name]
        if isinstance(node, _Repeat):
            return f"({self._terminal(node.inner)})" + _counts(node)
        if isinstance(node, _Sequence):
            return " ".join(map(self._terminal, node.parts)) or '""'
        return "(" + " | ".join(map(self._terminal, node.options)) + ")"

    def _is_regular(self, node: Node) -> bool:
        return not any(name in self._recursive for name in _names(node))

    def _size(self, node: Node) -> int:
        """Characters and sets of a node without recursion, with all names and repetitions written out."""
        if isinstance(node, _Text):
            size = max(1, len(node.lark) - 2) if node.lark[0] == '"' else 1
        elif isinstance(node, _Name):
            size = self._sizes[node.name]
        elif isinstance(node, _Repeat):
            size = self._size(node.inner) * max(1, node.low, node.high or 0)
        else:
            size = sum(map(self._size, node.parts if isinstance(node, _Sequence) else node.options))
        if size > MAX_PATTERN_SIZE:
            self._refuse()
        return size

    def _refuse(self) -> NoReturn:
        raise refusal(
            self._param,
            f"a part of the grammar has more than {MAX_PATTERN_SIZE} characters with its rules and repetitions written "
            "out; use * or +, or smaller counts",
        )


def _counts(node: _Repeat) -> str:
    sign = next((sign for sign, counts in _SIGNS.items() if counts == (node.low, node.high)), None)
    return sign or f"{{{node.low},{'' if node.high is None else node.high}}}"


def _names(node: Node) -> Iterator[str]:
    """The rules that a node refers to."""
    open_ = [node]
    while open_:
        found = open_.pop()
        if isinstance(found, _Name):
            yield found.name
        elif isinstance(found, _Repeat):
            open_.append(found.inner)
        elif isinstance(found, _Sequence):
            open_ += found.parts
        elif isinstance(found, _Either):
            open_ += found.options


def _reachable(rules: Mapping[str, Node]) -> list[str]:
    """The rules that `root` needs, in the order of the grammar."""
    found, open_ = {"root"}, ["root"]
    while open_:
        new = set(_names(rules[open_.pop()])) - found
        found |= new
        open_ += new
    return [name for name in rules if name in found]


def _regular(rules: Mapping[str, Node], used: list[str]) -> list[str]:
    """The rules without recursion, each behind those that it refers to.

    They are what can be taken away one by one, always a rule that refers to none that is left.
    """
    needs = {name: set(_names(rules[name])) for name in used}
    users: dict[str, list[str]] = {name: [] for name in used}
    for name, needed in needs.items():
        for inner in needed:
            users[inner].append(name)
    left = {name: len(needed) for name, needed in needs.items()}
    done = [name for name, count in left.items() if not count]
    for name in done:
        for user in users[name]:
            left[user] -= 1
            if not left[user]:
                done.append(user)
    return done


def _code(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"

"""Writes the rules of EBNF as Lark.

llguidance divides a text in tokens, terminals, before it parses, each as long as possible. So every part of the
grammar without recursion becomes one terminal: within it, all ways to match are tried. Only where parts of a recursive
rule meet does the longest match win.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from octavo_inference.grammar.ebnf_nodes import (
    SIGNS,
    EbnfEither,
    EbnfName,
    EbnfNode,
    EbnfRepeat,
    EbnfSequence,
    EbnfText,
    names_in,
)
from octavo_inference.grammar.pattern_size import MAX_PATTERN_SIZE
from octavo_inference.grammar.refusal import refusal


class LarkWriter:
    """Writes rules as Lark: those without recursion as terminals, which have upper-case names."""

    def __init__(self, rules: Mapping[str, EbnfNode], param: str) -> None:
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
        """The grammar, whose rule `start` is `root`."""
        lines = [f"start: {self._names['root']}"]
        for name, written in self._names.items():
            node = self._rules[name]
            body = self._rule(node) if name in self._recursive else self._terminal(node)
            lines.append(f"{written}: {body}")
        return "\n".join([*lines, *self._extra]) + "\n"

    def _rule(self, node: EbnfNode) -> str:
        """A node of a recursive rule: its longest parts without recursion become terminals."""
        if self._is_regular(node):
            return self._named(node)
        if isinstance(node, EbnfEither):
            return "(" + " | ".join(map(self._rule, node.options)) + ")"
        if isinstance(node, EbnfSequence):
            parts: list[str] = []
            run: list[EbnfNode] = []
            for part in (*node.parts, None):
                if part is not None and self._is_regular(part):
                    run.append(part)
                    continue
                if run:
                    parts.append(self._named(run[0] if len(run) == 1 else EbnfSequence(tuple(run))))
                    run = []
                if part is not None:
                    parts.append(self._rule(part))
            return " ".join(parts)
        if isinstance(node, EbnfRepeat):
            if (node.high or node.low) > MAX_PATTERN_SIZE:
                self._refuse()
            return f"({self._rule(node.inner)})" + _counts(node)
        return self._names[node.name] if isinstance(node, EbnfName) else node.lark

    def _named(self, node: EbnfNode) -> str:
        """A terminal for a node without recursion."""
        if isinstance(node, EbnfText):
            return node.lark
        if isinstance(node, EbnfName):
            return self._names[node.name]
        self._size(node)
        name = f"X{len(self._extra)}"
        self._extra.append(f"{name}: {self._terminal(node)}")
        return name

    def _terminal(self, node: EbnfNode) -> str:
        if isinstance(node, EbnfText):
            return node.lark
        if isinstance(node, EbnfName):
            return self._names[node.name]
        if isinstance(node, EbnfRepeat):
            return f"({self._terminal(node.inner)})" + _counts(node)
        if isinstance(node, EbnfSequence):
            return " ".join(map(self._terminal, node.parts)) or '""'
        return "(" + " | ".join(map(self._terminal, node.options)) + ")"

    def _is_regular(self, node: EbnfNode) -> bool:
        return not any(name in self._recursive for name in names_in(node))

    def _size(self, node: EbnfNode) -> int:
        """Characters and sets of a node without recursion, with all names and repetitions written out."""
        if isinstance(node, EbnfText):
            size = max(1, len(node.lark) - 2) if node.lark[0] == '"' else 1
        elif isinstance(node, EbnfName):
            size = self._sizes[node.name]
        elif isinstance(node, EbnfRepeat):
            size = self._size(node.inner) * max(1, node.low, node.high or 0)
        else:
            size = sum(map(self._size, node.parts if isinstance(node, EbnfSequence) else node.options))
        if size > MAX_PATTERN_SIZE:
            self._refuse()
        return size

    def _refuse(self) -> NoReturn:
        raise refusal(
            self._param,
            f"a part of the grammar has more than {MAX_PATTERN_SIZE} characters with its rules and repetitions written "
            "out; use * or +, or smaller counts",
        )


def _counts(node: EbnfRepeat) -> str:
    sign = next((sign for sign, counts in SIGNS.items() if counts == (node.low, node.high)), None)
    return sign or f"{{{node.low},{'' if node.high is None else node.high}}}"


def _reachable(rules: Mapping[str, EbnfNode]) -> list[str]:
    """The rules that `root` needs, in the order of the grammar."""
    found, open_ = {"root"}, ["root"]
    while open_:
        new = set(names_in(rules[open_.pop()])) - found
        found |= new
        open_ += new
    return [name for name in rules if name in found]


def _regular(rules: Mapping[str, EbnfNode], used: list[str]) -> list[str]:
    """The rules without recursion, each behind those that it refers to.

    They are what can be taken away one by one, always a rule that refers to none that is left.
    """
    needs = {name: set(names_in(rules[name])) for name in used}
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

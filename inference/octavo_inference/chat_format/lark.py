"""Pieces of grammars in llguidance's variant of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo_inference.common.errors import RequestError
from octavo_inference.grammar.sources import json_schema_rule

MAX_SCHEMAS = 1 << 20
"""Bytes of the schemas in a grammar, each as often as it occurs."""
_ANY = r"/(.|\n)*/"


@dataclass(slots=True)
class Rules:
    """A grammar's rules under way. `special` are the ids of markers that are special tokens of the vocabulary."""

    special: Mapping[str, int]
    lines: list[str] = field(default_factory=list)
    _count: int = 0
    _size: int = 0

    def add(self, name: str, *alternatives: str, options: str = "") -> str:
        """Define a rule. Returns its name."""
        self._count += 1
        name = f"{name}_{self._count}"
        self.lines.append(f"{name}{options}: {' | '.join(alternatives)}")
        return name

    def terminal(self, name: str, body: str) -> str:
        """Define a terminal. Returns its name."""
        self._count += 1
        self.lines.append(f"{name}_{self._count}: {body}")
        return f"{name}_{self._count}"

    def literal(self, text: str) -> str:
        """Exactly this text, with special tokens where it has their texts."""
        if not text:
            return '""'
        pattern = "|".join(re.escape(marker) for marker in sorted(self.special, key=len, reverse=True))
        pieces = re.split(f"({pattern})", text) if pattern else [text]
        return " ".join(
            f"<[{self.special[piece]}]>" if piece in self.special else json.dumps(piece, ensure_ascii=False)
            for piece in pieces
            if piece
        )

    def json(self, schema: Mapping[str, Any] | None) -> str:
        """A JSON value of a schema; of None: any object."""
        return self.json_of({"type": "object"} if schema is None else schema)

    def json_of(self, schema: Mapping[str, Any] | bool) -> str:
        """A JSON value of a schema."""
        rule = json_schema_rule(schema)
        self._size += len(rule)
        if self._size > MAX_SCHEMAS:
            raise RequestError(
                f"tools: their schemas make a grammar of more than {MAX_SCHEMAS} bytes; give fewer or smaller ones.",
                "tools",
            )
        return rule

    def text(self, start: str, barred: Iterable[str] = ()) -> str:
        """The grammar's text with this start rule. `TEXT` is any text without special tokens and `barred` texts."""
        return "\n".join([f"start: {start}", *self.lines, f"TEXT: {any_text(barred)}"]) + "\n"


def any_text(barred: Iterable[str] = ()) -> str:
    """A terminal: any text without special tokens, and without these texts."""
    return " & ".join([_ANY, *(f"~/(.|\\n)*{quoted(text)}(.|\\n)*/" for text in barred)])


def quoted(text: str) -> str:
    """A text within a regular expression."""
    return "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def alternatives(expressions: Iterable[str]) -> str:
    """One of several expressions."""
    return "(" + " | ".join(expressions) + ")"

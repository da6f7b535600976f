"""Pieces of grammars in llguidance's variant of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

TEXT = r"/(.|\n)*/"
"""Any text, without special tokens."""


@dataclass(slots=True)
class Rules:
    """A grammar's rules under way. `special` are the ids of markers that are special tokens of the vocabulary."""

    special: Mapping[str, int]
    lines: list[str] = field(default_factory=list)
    _count: int = 0

    def add(self, name: str, *alternatives: str, options: str = "") -> str:
        """Define a rule. Returns its name."""
        self._count += 1
        name = f"{name}_{self._count}"
        self.lines.append(f"{name}{options}: {' | '.join(alternatives)}")
        return name

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
        return json_schema_rule({} if isinstance(schema, bool) else dict(schema))

    def text(self, start: str) -> str:
        """The grammar's text with this start rule. `TEXT` is any text."""
        return "\n".join([f"start: {start}", *self.lines, f"TEXT: {TEXT}"]) + "\n"


def json_schema_rule(schema: dict[str, Any]) -> str:
    """A JSON value of a schema, with the separators that `json.dumps` writes."""
    style = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return "%json " + json.dumps({**schema, "x-guidance": style})


def alternatives(expressions: Iterable[str]) -> str:
    """One of several expressions."""
    return "(" + " | ".join(expressions) + ")"

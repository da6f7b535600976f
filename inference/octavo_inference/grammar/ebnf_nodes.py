"""The parts of a grammar in EBNF."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
"""Repetitions: least and most times."""


@dataclass(frozen=True, slots=True)
class EbnfText:
    """Lark for a text or a set of characters."""

    lark: str


@dataclass(frozen=True, slots=True)
class EbnfName:
    """A rule by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class EbnfRepeat:
    """A part `low` to `high` times; None is without bound."""

    inner: EbnfNode
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class EbnfSequence:
    """Parts, one after the other."""

    parts: tuple[EbnfNode, ...]


@dataclass(frozen=True, slots=True)
class EbnfEither:
    """One of some parts."""

    options: tuple[EbnfNode, ...]


EbnfNode: TypeAlias = "EbnfText | EbnfName | EbnfRepeat | EbnfSequence | EbnfEither"


def names_in(node: EbnfNode) -> Iterator[str]:
    """The rules that a node refers to."""
    open_ = [node]
    while open_:
        found = open_.pop()
        if isinstance(found, EbnfName):
            yield found.name
        elif isinstance(found, EbnfRepeat):
            open_.append(found.inner)
        elif isinstance(found, EbnfSequence):
            open_ += found.parts
        elif isinstance(found, EbnfEither):
            open_ += found.options

"""Reads fields of structural tags. Each function refuses by name what does not fit: `where` is the object's place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from octavo_inference.grammar.refusal import refusal
from octavo_inference.grammar.sources import literal

Fields = Mapping[str, Any]

# Names that Lark takes for special tokens.
_TOKEN_NAME = re.compile(r"<[^<>\s\"\\\[\]]+>")


def refuse(where: str, problem: str) -> NoReturn:
    """Raise the error for a place."""
    raise refusal(where, problem)


def fields_of(value: Any, where: str) -> Fields:
    """An object."""
    if not isinstance(value, Mapping):
        refuse(where, "it must be an object")
    return value


def only(value: Any, names: Sequence[str], where: str) -> None:
    """Refuse an object with other fields than these."""
    unknown = next((name for name in fields_of(value, where) if name not in names), None)
    if unknown is not None:
        refuse(where, f"field {str(unknown)[:64]!r} is not supported; supported: {', '.join(sorted(names))}")


def entries(value: Fields, name: str, where: str) -> Sequence[Any]:
    """A list with at least one entry."""
    found = value.get(name)
    if not isinstance(found, list) or not found:
        refuse(f"{where}.{name}", "it must be a list with at least one entry")
    return found


def text(value: Fields, name: str, where: str) -> str:
    """A text."""
    found = value.get(name)
    if not isinstance(found, str):
        refuse(f"{where}.{name}", "it must be a text")
    return found


def texts(value: Fields, name: str, where: str) -> tuple[str, ...]:
    """A list of texts, which may be left out."""
    found = value.get(name, [])
    if not isinstance(found, list) or not all(isinstance(entry, str) and entry for entry in found):
        refuse(f"{where}.{name}", "it must be a list of texts, of which none is empty")
    return tuple(found)


def flag(value: Fields, name: str, where: str, *, default: bool = False) -> bool:
    """True or false."""
    found = value.get(name, default)
    if not isinstance(found, bool):
        refuse(f"{where}.{name}", "it must be true or false")
    return found


def number(value: Fields, name: str, where: str, low: int, high: int) -> int:
    """A whole number within bounds."""
    found = value.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not low <= found <= high:
        refuse(f"{where}.{name}", f"it must be a whole number from {low} to {high}")
    return found


def token(given: Any, where: str) -> str:
    """The expression of a token by its id, or of a special one by its name."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return f"<[{given}]>"
    if isinstance(given, str) and _TOKEN_NAME.fullmatch(given):
        return given
    return refuse(where, "it must be the id of a token, or the name of a special token in angle brackets")


def either(alternatives: Sequence[str]) -> str:
    """The expression of one of some expressions."""
    return alternatives[0] if len(alternatives) == 1 else "(" + " | ".join(alternatives) + ")"


def one_of(alternatives: Sequence[str]) -> str:
    """The expression of one of some texts."""
    return either([literal(alternative) for alternative in alternatives])

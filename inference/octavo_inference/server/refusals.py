"""Refusals of request bodies, in one form: the field, that it is not supported, and what is.

`explain` turns a type error of msgspec into such a refusal. What a field supports comes from its declared type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import inspect

from octavo_inference.server.errors import ApiError, invalid

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*?)`(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_AT_KEY = re.compile(r"(.*) - at `key` in `\$\.?(.*)`$", re.DOTALL)
_AT = re.compile(r"(.*) - at `\$\.?(.*)`$", re.DOTALL)
_VALUE = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_GOT = re.compile(r"Expected `.*`, got `(.*)`", re.DOTALL)
_EMPTY = re.compile(r"Expected `(array|object)` of length <= 0")
_STEP = re.compile(r"\[[^\]]*\]|[^.\[]+")
_WORDS = {
    "array": "a list",
    "object": "an object",
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
}
_LEAVE_OUT = "null (leave it out)"


def unsupported(param: str, supported: Iterable[object], value: object = "") -> ApiError:
    """400 for a value of a field, or any value without one, that this server does not support.

    `supported` are the values that it does; texts are shown as they are given here.
    """
    subject = f"{value} is not" if value else "not"
    return invalid(
        f"{param}: {subject} supported; supported: {', '.join(map(str, supported))}.", param, "unsupported_value"
    )


def explain(text: str, kind: type[msgspec.Struct]) -> ApiError:
    """The refusal for a message of msgspec about a body of this type, with its path as `param`."""
    if unknown := _UNKNOWN.match(text):
        param = _joined(unknown[2], unknown[1])[:128]
        return invalid(f"{param}: this server knows no such field; leave it out.", param, "unknown_parameter")
    if missing := _MISSING.match(text):
        param = _joined(missing[2], missing[1])
        return invalid(f"{param}: this field is required.", param, "missing_required_parameter")
    located = _AT_KEY.match(text)
    key = "a key: " if located else ""
    located = located or _AT.match(text)
    if located is None:
        return invalid(f"The body must be a JSON object: {text}.", None, "invalid_type")
    problem, param = located[1], located[2][:128]
    if not key and (supported := _supported(problem, located[2], kind)):
        return unsupported(param, supported, "" if supported == [_LEAVE_OUT] else _found(problem))
    problem = re.sub(r"`([a-z |]+)`", lambda m: " or ".join(_WORDS.get(t, t) for t in m[1].split(" | ")), problem)
    return invalid(f"{param}: {key}{problem[0].lower()}{problem[1:]}.", param, "invalid_value")


def _joined(outer: str | None, name: str) -> str:
    return ".".join(part for part in (outer, name) if part)


def _found(problem: str) -> str:
    """The value that was found, as far as msgspec names it."""
    if value := _VALUE.match(problem):
        return {"True": "true", "False": "false"}.get(value[1], value[1])[:128]
    if got := _GOT.match(problem):
        return _WORDS.get(got[1], got[1])
    return ""


def _supported(problem: str, path: str, kind: type[msgspec.Struct]) -> list[str]:
    """The values that the field at `path` supports, if they can be listed and the problem is another value."""
    if _EMPTY.match(problem):
        return ["an empty one", _LEAVE_OUT]
    if not (_VALUE.match(problem) or _GOT.match(problem)):
        return []
    types = [inspect.type_info(kind)]
    for step in _STEP.findall(path):
        types = [entry for found in types for entry in _entries(found, step)]
    if types and all(isinstance(found, inspect.NoneType) for found in types):
        return [_LEAVE_OUT]
    values = [value for found in types if isinstance(found, inspect.LiteralType) for value in found.values]
    return [_shown(value) for value in values]


def _entries(found: inspect.Type, step: str) -> Iterator[inspect.Type]:
    """The types of a field or entry of a type, unions as their parts."""
    inner: list[inspect.Type] = []
    if isinstance(found, inspect.StructType):
        inner = [field.type for field in found.fields if field.encode_name == step]
    elif isinstance(found, inspect.ListType):
        inner = [found.item_type]
    elif isinstance(found, inspect.DictType):
        inner = [found.value_type]
    for entry in inner:
        plain = entry.type if isinstance(entry, inspect.Metadata) else entry
        yield from plain.types if isinstance(plain, inspect.UnionType) else (plain,)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)

"""300 JSON schemas in the style of public ones, always the same: for tests, and to measure how long compiling takes.

Each kind has its share. Names and values are drawn from short lists of words; the shapes are those that APIs, settings
files and extraction tasks have.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from octavo_inference.grammar.json_schema import FORMATS

Schema = dict[str, Any]
COUNT = 300
OPENAPI_COUNT = 40

_NOUNS = (
    "id", "name", "title", "email", "city", "country", "street", "status", "kind", "price", "total", "count", "rate",
    "score", "tags", "items", "owner", "author", "created", "updated", "start", "end", "url", "path", "size", "width",
    "height", "color", "level", "notes", "summary", "priority", "amount", "currency",
)  # fmt: skip
_WORDS = (
    "red", "green", "blue", "low", "medium", "high", "open", "closed", "draft", "paid", "new", "old", "north", "south",
    "east", "west", "alpha", "beta",
)  # fmt: skip
_PATTERNS = (
    "^[A-Z]{2}-[0-9]{4}$", "^[a-z0-9]+(-[a-z0-9]+)*$", "^\\d{3}-\\d{2}-\\d{4}$", "^#[0-9a-fA-F]{6}$", "^v?\\d+\\.\\d+$",
    "[0-9]", "^(GET|POST|PUT)$", "^[^@\\s]+@[^@\\s]+$", "^\\+?[1-9][0-9]{6,14}$", "^.{1,20}$", "^\\w+$", "x$",
)  # fmt: skip


def corpus() -> list[tuple[str, Schema]]:
    """The schemas, each with its kind."""
    kinds = list(_KINDS.items())
    found = []
    for number in range(COUNT):
        kind, make = kinds[number % len(kinds)]
        drawn = random.Random(number)
        found.append((kind, {"$schema": "https://json-schema.org/draft/2020-12/schema", **make(drawn)}))
    return found


def openapi() -> list[tuple[Schema, Schema]]:
    """Schemas in the dialect of OpenAPI 3.0, each with one of the same meaning in JSON Schema."""
    found = []
    for number in range(OPENAPI_COUNT):
        drawn = random.Random(number)
        pairs = {name: _openapi(drawn) for name in _names(drawn, drawn.randint(2, 6))}
        given: Schema = {"type": "object", "required": [*pairs], "xml": {"name": "a"}}
        meant: Schema = {"type": "object", "required": [*pairs]}
        given["properties"] = {name: pair[0] for name, pair in pairs.items()}
        meant["properties"] = {name: pair[1] for name, pair in pairs.items()}
        found.append((given, meant))
    return found


def _openapi(drawn: random.Random) -> tuple[Schema, Schema]:
    text, number = _text(drawn), _number(drawn)
    low = drawn.randint(0, 100)
    null = {"type": "null"}
    pairs: list[tuple[Schema, Schema]] = [
        ({**text, "nullable": True}, {"anyOf": [text, null]}),
        ({**text, "nullable": False, "format": "password"}, text),
        ({"allOf": [number], "nullable": True}, {"anyOf": [number, null]}),
        ({"anyOf": [number, text], "nullable": True}, {"anyOf": [number, text, null]}),
        ({"type": "integer", "format": "int32"}, {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}),
        ({"type": "integer", "format": "int64", "minimum": low}, {"type": "integer", "minimum": low}),
        ({"type": "number", "format": "double"}, {"type": "number"}),
        ({"type": "integer", "minimum": low, "exclusiveMinimum": True}, {"type": "integer", "exclusiveMinimum": low}),
        ({"type": "array", "items": number, "uniqueItems": False}, {"type": "array", "items": number}),
        (
            {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": text},
            {"type": "object", "additionalProperties": text},
        ),
    ]
    return drawn.choice(pairs)


def _names(drawn: random.Random, count: int) -> list[str]:
    return drawn.sample(_NOUNS, count)


def _number(drawn: random.Random) -> Schema:
    low = drawn.randint(-1000, 1000)
    kind = drawn.choice(["integer", "number"])
    bounds: list[Schema] = [
        {},
        {"minimum": low},
        {"maximum": low + 0.5 if kind == "number" else low},
        {"minimum": low, "maximum": low + drawn.randint(1, 5000)},
        {"exclusiveMinimum": low, "exclusiveMaximum": low + 7},
        {"multipleOf": drawn.choice([2, 5, 25])},
    ]
    return {"type": kind, **drawn.choice(bounds)}


def _text(drawn: random.Random) -> Schema:
    low = drawn.randint(0, 5)
    bounds: list[Schema] = [{}, {"minLength": low}, {"maxLength": 40}, {"minLength": low, "maxLength": low + 9}]
    return {"type": "string", "description": "A text.", **drawn.choice(bounds)}


def _pattern(drawn: random.Random) -> Schema:
    return {"type": "string", "pattern": drawn.choice(_PATTERNS)}


def _format(drawn: random.Random) -> Schema:
    return {"type": "string", "format": drawn.choice(FORMATS)}


def _enum(drawn: random.Random) -> Schema:
    size = drawn.choice([1, 3, 8, 200])
    values: list[Any] = [f"{word}{n or ''}" for n in range(size) for word in _WORDS][:size]
    return {"enum": values + drawn.choice([[], [None], [0, 1.5, True]])}


def _large_enum(drawn: random.Random) -> Schema:
    return {"type": "string", "enum": [f"{drawn.choice(_WORDS)} {n}" for n in range(drawn.choice([1000, 10_000]))]}


def _flag(_: random.Random) -> Schema:
    return {"type": "boolean"}


def _leaf(drawn: random.Random) -> Schema:
    return drawn.choice([_number, _text, _pattern, _format, _enum, _flag])(drawn)


def _nullable(drawn: random.Random) -> Schema:
    leaf = _text(drawn)
    return drawn.choice([{**leaf, "type": ["string", "null"]}, {"anyOf": [leaf, {"type": "null"}], "default": None}])


def _object(drawn: random.Random, make: Callable[[random.Random], Schema] = _leaf, most: int = 7) -> Schema:
    names = _names(drawn, drawn.randint(1, most))
    required = drawn.choice([names, names[:1], []])
    return {
        "type": "object",
        "title": "An object",
        "properties": {name: make(drawn) for name in names},
        **({"required": required} if required else {}),
        **drawn.choice([{}, {"additionalProperties": False}]),
    }


def _nested(drawn: random.Random, depth: int = 0) -> Schema:
    def inner(drawn: random.Random) -> Schema:
        return _leaf(drawn) if depth > 5 or drawn.random() < 0.6 else _nested(drawn, depth + 1)

    return _object(drawn, inner, most=4)


def _array(drawn: random.Random) -> Schema:
    low = drawn.randint(0, 3)
    bounds: list[Schema] = [{}, {"minItems": low}, {"maxItems": low + 5}, {"minItems": low, "maxItems": low + 2}]
    return {"type": "array", "items": drawn.choice([_leaf, _object])(drawn), **drawn.choice(bounds)}


def _tuple(drawn: random.Random) -> Schema:
    return {
        "type": "array",
        "prefixItems": [_leaf(drawn) for _ in range(drawn.randint(1, 4))],
        **drawn.choice([{"items": False}, {"items": {"type": "integer"}}, {"minItems": 1}]),
    }


def _any_of(drawn: random.Random) -> Schema:
    return _object(drawn, lambda drawn: {"anyOf": [_object(drawn), _array(drawn), _leaf(drawn)]}, most=3)


def _one_of(drawn: random.Random) -> Schema:
    """A union that a constant tells apart, as pydantic writes it."""
    kinds = drawn.sample(_WORDS, drawn.randint(2, 5))
    alternatives = {}
    for kind in kinds:
        inner = _object(drawn, most=3)
        inner["properties"] = {"kind": {"const": kind, "type": "string"}, **inner["properties"]}
        inner["required"] = ["kind", *(name for name in inner.get("required", ()) if name != "kind")]
        alternatives[kind] = inner
    mapping = {kind: f"#/$defs/{kind}" for kind in kinds}
    refs = [{"$ref": place} for place in mapping.values()]
    union = {"oneOf": refs, "discriminator": {"propertyName": "kind", "mapping": mapping}}
    return {"$defs": alternatives, "type": "object", "properties": {"items": {"type": "array", "items": union}}}


def _all_of(drawn: random.Random) -> Schema:
    first, second = _names(drawn, 2)
    return {
        "allOf": [
            {"type": "object", "properties": {first: _text(drawn)}, "required": [first]},
            {"type": "object", "properties": {second: _number(drawn)}, "required": [second]},
        ]
    }


def _recursive(drawn: random.Random) -> Schema:
    children = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 3}
    node = {"type": "object", "properties": {"value": _leaf(drawn), "children": children}, "required": ["value"]}
    other = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
    return {"$defs": {"node": node}, "type": "object", "properties": {"root": {"$ref": "#/$defs/node"}, "next": other}}


def _additional(drawn: random.Random) -> Schema:
    return {**_object(drawn), "additionalProperties": drawn.choice([True, False, _number(drawn), _text(drawn)])}


def _pattern_properties(drawn: random.Random) -> Schema:
    return {
        "type": "object",
        "patternProperties": {"^x-[a-z]+$": _leaf(drawn), "^[0-9]+$": _number(drawn)},
        "additionalProperties": False,
        **drawn.choice([{}, {"minProperties": 1}, {"maxProperties": 3}]),
    }


_KINDS: dict[str, Callable[[random.Random], Schema]] = {
    "flat object": _object,
    "nested objects": _nested,
    "array with bounds": _array,
    "tuple (prefixItems)": _tuple,
    "anyOf": _any_of,
    "oneOf by a constant": _one_of,
    "allOf": _all_of,
    "recursion": _recursive,
    "pattern": lambda drawn: _object(drawn, _pattern),
    "format": lambda drawn: _object(drawn, _format),
    "bounds of numbers": lambda drawn: _object(drawn, _number),
    "lengths of texts": lambda drawn: _object(drawn, _text),
    "enum": lambda drawn: _object(drawn, _enum),
    "enum of 1,000 or 10,000": lambda drawn: {"type": "object", "properties": {"value": _large_enum(drawn)}},
    "nullable": lambda drawn: _object(drawn, _nullable),
    "additionalProperties": _additional,
    "patternProperties": _pattern_properties,
}

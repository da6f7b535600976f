"""Checks JSON schemas: bounds, and keywords that the grammar would not enforce.

llguidance enforces the keywords of `SUPPORTED`. Annotations restrict nothing. Any other keyword is refused by name,
also where llguidance would ignore it: an answer that breaks its schema is worse than an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeAlias
from urllib.parse import unquote

from octavo_inference.grammar.pattern_size import check_pattern
from octavo_inference.grammar.refusal import refusal

Schema: TypeAlias = "Mapping[str, Any] | bool"

MAX_SCHEMA = 1 << 20
"""Bytes of a schema as JSON: enough for an enum of 10,000 entries."""
MAX_DEPTH = 32
"""Subschemas inside each other."""
_EXACT = 2**53
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

_ONE = ("items", "additionalItems", "additionalProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
SUPPORTED = (
    "type", "enum", "const", "$ref", "$defs", "definitions", "anyOf", "oneOf", "allOf",
    "properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties",
    "items", "prefixItems", "additionalItems", "minItems", "maxItems",
    "minLength", "maxLength", "pattern", "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
)  # fmt: skip
ANNOTATIONS = frozenset({
    "$schema", "$id", "id", "$comment", "title", "description", "default", "examples", "example", "readOnly",
    "writeOnly", "deprecated", "discriminator", "externalDocs",
})  # fmt: skip
"""Keywords without effect on validation, in JSON Schema and OpenAPI; in addition, all that begin with `x-`."""
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_INSTEAD = {
    "nullable": ' Instead of nullable, give "null" as one of the types.',
    "$anchor": " Refer to schemas by their place, such as '#/$defs/NAME'.",
}


def check_schema(schema: object, param: str) -> None:
    """Refuse a schema that is too large, or that the grammar would not enforce. Raises `RequestError` for `param`."""
    if not isinstance(schema, Mapping | bool):
        raise refusal(param, f"a schema must be an object, not {_kind(schema)}")
    if schema is False:
        raise refusal(param, "the schema false allows no answer")
    try:
        size = len(json.dumps(schema, allow_nan=False))
    except RecursionError:
        raise refusal(param, f"nested too deeply; at most {MAX_DEPTH} schemas inside each other") from None
    except (ValueError, TypeError) as error:
        raise refusal(param, f"not JSON: {error}") from None
    if size > MAX_SCHEMA:
        raise refusal(param, f"a schema of {size} bytes; the limit is {MAX_SCHEMA}")
    if isinstance(schema, Mapping):
        _Check(schema, param).run()


class _Check:
    """A walk over the subschemas of a schema. Those that references name are among them, wherever they are."""

    def __init__(self, root: Mapping[str, Any], param: str) -> None:
        self._root = root
        self._param = param
        self._seen: set[int] = set()

    def run(self) -> None:
        open_: list[tuple[object, str, int]] = [(self._root, "", 1)]
        while open_:
            node, place, depth = open_.pop()
            if isinstance(node, bool) or id(node) in self._seen:
                continue
            if not isinstance(node, Mapping):
                self._refuse(f"a schema must be an object, not {_kind(node)}", place)
            if depth > MAX_DEPTH:
                raise refusal(self._param, f"nested too deeply; at most {MAX_DEPTH} schemas inside each other")
            self._seen.add(id(node))
            self._check(node, place)
            open_ += ((inner, where, depth + 1) for inner, where in self._inner(node, place))
            if "$ref" in node:
                open_.append((self._target(node["$ref"], place), str(node["$ref"])[2:].replace("/", "."), 1))

    def _inner(self, node: Mapping[str, Any], place: str) -> Iterator[tuple[object, str]]:
        for keyword in _ONE:
            if keyword in node and not (keyword == "items" and isinstance(node[keyword], list)):
                yield node[keyword], _joined(place, keyword)
        for keyword in (*_LISTS, "items"):
            if isinstance(node.get(keyword), list):
                yield from ((inner, _joined(place, f"{keyword}[{n}]")) for n, inner in enumerate(node[keyword]))
            elif keyword in node and keyword != "items":
                self._refuse(f"{keyword} must be a list of schemas, not {_kind(node[keyword])}", place)
        for keyword in _BY_NAME:
            if keyword not in node:
                continue
            if not isinstance(node[keyword], Mapping):
                self._refuse(f"{keyword} must be an object, not {_kind(node[keyword])}", place)
            yield from ((inner, _joined(place, f"{keyword}.{name}")) for name, inner in node[keyword].items())

    def _check(self, node: Mapping[str, Any], place: str) -> None:
        for keyword in node:
            if keyword == "x-guidance" or not (
                keyword in SUPPORTED or keyword in ANNOTATIONS or keyword.startswith("x-")
            ):
                self._refuse(
                    f"keyword {keyword[:64]!r} is not supported; supported: {', '.join(SUPPORTED)}."
                    + _INSTEAD.get(keyword, ""),
                    place,
                )
        if place and any(isinstance(node.get(keyword), str) for keyword in ("$id", "id")):
            self._refuse("keyword '$id' is supported at the root only", place)
        if "additionalItems" in node and not isinstance(node.get("items"), list):
            self._refuse("keyword 'additionalItems' is supported with a list of items only", place)
        if isinstance(node.get("items"), list) and "prefixItems" in node:
            self._refuse("items must be a schema, not a list, where there are prefixItems", place)
        self._check_values(node, place)

    def _check_values(self, node: Mapping[str, Any], place: str) -> None:
        kinds = node.get("type", [])
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if kind not in TYPES:
                self._refuse(f"type {str(kind)[:64]!r} is not supported; supported: {', '.join(TYPES)}", place)
        if "format" in node and node["format"] not in FORMATS:
            name = str(node["format"])[:64]
            self._refuse(f"format {name!r} is not supported; supported: {', '.join(FORMATS)}", place)
        self._check_numbers([node.get("const"), node.get("enum"), *(node.get(name) for name in _NUMBERS)], place)
        patterns = node.get("patternProperties", {})
        for pattern in [node.get("pattern"), *(patterns if isinstance(patterns, Mapping) else ())]:
            if isinstance(pattern, str):
                check_pattern(pattern, self._param)

    def _check_numbers(self, values: list[Any], place: str) -> None:
        """Refuse whole numbers that a double cannot hold: the grammar would have another one."""
        open_ = values
        while open_:
            value = open_.pop()
            if isinstance(value, int) and abs(value) > _EXACT:
                self._refuse(f"{str(value)[:64]} is not exact as a double; the limit is 2^53", place)
            elif isinstance(value, Mapping):
                open_ += value.values()
            elif isinstance(value, list):
                open_ += value

    def _target(self, reference: object, place: str) -> object:
        """The schema that a reference names."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            self._refuse(
                f"$ref {str(reference)[:128]!r} is not supported; supported: places in the same schema, such as "
                "'#/$defs/NAME'",
                place,
            )
        found: Any = self._root
        for step in unquote(reference).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isascii() and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            else:
                self._refuse(f"$ref {reference[:128]!r} names no place in the schema", place)
        return found

    def _refuse(self, problem: str, place: str) -> NoReturn:
        raise refusal(self._param, f"{problem} (at {place[:128]})" if place else problem)


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "true or false"
    names = {str: "a text", list: "a list", dict: "an object", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), "this")

"""Checks JSON schemas: bounds, and keywords that the grammar would not enforce.

The grammar enforces the keywords of `SUPPORTED`. Annotations restrict nothing, and so do some other keywords with some
values (`HARMLESS`). Any other keyword is refused by name, also where llguidance would ignore it: an answer that breaks
its schema is worse than an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

from octavo_inference.grammar.pattern_size import check_pattern
from octavo_inference.grammar.plain_schema import NUMBER_FORMATS, OPEN_FORMATS
from octavo_inference.grammar.refusal import refusal
from octavo_inference.grammar.schema_walk import ANNOTATIONS, BY_NAME, LISTS, subschemas, target

Schema: TypeAlias = "Mapping[str, Any] | bool"

MAX_SCHEMA = 1 << 20
"""Bytes of a schema as JSON: enough for an enum of 10,000 entries."""
MAX_DEPTH = 32
"""Subschemas inside each other."""
_EXACT = 2**53
_MAX_COUNT = 2**31
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_FLAGS_IN_DRAFT_4 = ("exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BOUNDS = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"))

SUPPORTED = (
    "type", "enum", "const", "$ref", "$defs", "definitions", "anyOf", "oneOf", "allOf",
    "properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties",
    "items", "prefixItems", "additionalItems", "minItems", "maxItems",
    "minLength", "maxLength", "pattern", "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "nullable",
)  # fmt: skip
HARMLESS: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "propertyNames": (True, {}, {"type": "string"}),
}
"""Values with which a keyword restricts nothing, so that it is accepted. All others are refused."""
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_INSTEAD = {
    "uniqueItems": " Leave it out, or set it to false.",
    "$anchor": " Refer to schemas by their place, such as '#/$defs/NAME'.",
}


def check_schema(schema: object, param: str) -> None:
    """Refuse a schema that is too large, or that the grammar would not enforce. Raises `RequestError` for `param`."""
    if not isinstance(schema, Mapping | bool):
        raise refusal(param, f"a schema must be an object, not {_kind(schema)}")
    if schema is False:
        raise refusal(param, "the schema false allows no answer")
    try:
        size = len(json.dumps(schema, allow_nan=False, ensure_ascii=False).encode())
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
            open_ += ((inner, _joined(place, where), depth + 1) for inner, where in subschemas(node))
            if "$ref" in node:
                open_.append((self._target(node["$ref"], place), str(node["$ref"])[2:].replace("/", "."), 1))

    def _check(self, node: Mapping[str, Any], place: str) -> None:
        for keyword, value in node.items():
            if keyword in HARMLESS:
                if value not in HARMLESS[keyword]:
                    self._refuse_keyword(keyword, place)
            elif keyword == "x-guidance" or not (
                keyword in SUPPORTED or keyword in ANNOTATIONS or keyword.startswith("x-")
            ):
                self._refuse_keyword(keyword, place)
        for keyword in LISTS:
            if keyword in node and not isinstance(node[keyword], list):
                self._refuse(f"{keyword} must be a list of schemas, not {_kind(node[keyword])}", place)
        for keyword in BY_NAME:
            if keyword in node and not isinstance(node[keyword], Mapping):
                self._refuse(f"{keyword} must be an object, not {_kind(node[keyword])}", place)
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
        if "nullable" in node and not isinstance(node["nullable"], bool):
            self._refuse(f"nullable must be true or false, not {_kind(node['nullable'])}", place)
        if "format" in node:
            self._check_format(node["format"], kinds, place)
        self._check_kinds(node, place)
        self._check_numbers([node.get("const"), node.get("enum"), *(node.get(name) for name in _NUMBERS)], place)
        patterns = node.get("patternProperties", {})
        for pattern in [node.get("pattern"), *(patterns if isinstance(patterns, Mapping) else ())]:
            if isinstance(pattern, str):
                check_pattern(pattern, self._param)

    def _check_kinds(self, node: Mapping[str, Any], place: str) -> None:
        """Refuse values of keywords that are of the wrong kind, and bounds that allow nothing."""
        for keyword in _NUMBERS:
            value = node.get(keyword, 1)
            is_flag = isinstance(value, bool)
            if not isinstance(value, int | float) or (is_flag and keyword not in _FLAGS_IN_DRAFT_4):
                self._refuse(f"{keyword} must be a number, not {_kind(value)}", place)
        if node.get("multipleOf", 1) <= 0:
            self._refuse(f"multipleOf is {node['multipleOf']}; give a number above 0", place)
        for keyword in _COUNTS:
            value = node.get(keyword, 0)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_COUNT:
                self._refuse(f"{keyword} must be a whole number from 0 to 2^31, not {str(value)[:64]}", place)
        for low, high in _BOUNDS:
            if node.get(low, 0) > node.get(high, _MAX_COUNT):
                self._refuse(f"{low} {node[low]} is above {high} {node[high]}; no value has both", place)
        if not isinstance(node.get("pattern", ""), str):
            self._refuse(f"pattern must be a text, not {_kind(node['pattern'])}", place)
        names = node.get("required", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            self._refuse("required must be a list of names", place)
        if not isinstance(node.get("enum", [1]), list) or not node.get("enum", [1]):
            self._refuse("enum must be a list of at least one value", place)

    def _check_format(self, name: object, kinds: object, place: str) -> None:
        known = (*FORMATS, *OPEN_FORMATS, *NUMBER_FORMATS)
        if name not in known:
            self._refuse(f"format {str(name)[:64]!r} is not supported; supported: {', '.join(known)}", place)
        if name in NUMBER_FORMATS and (kinds == "string" or (isinstance(kinds, list) and "string" in kinds)):
            self._refuse(f"format {name!r} is for numbers, and the type has 'string'; use a pattern instead", place)

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
        try:
            return target(self._root, reference)
        except KeyError:
            self._refuse(f"$ref {reference[:128]!r} names no place in the schema", place)

    def _refuse_keyword(self, keyword: str, place: str) -> NoReturn:
        self._refuse(
            f"keyword {keyword[:64]!r} is not supported; supported: {', '.join(SUPPORTED)}."
            + _INSTEAD.get(keyword, ""),
            place,
        )

    def _refuse(self, problem: str, place: str) -> NoReturn:
        raise refusal(self._param, f"{problem} (at {place[:128]})" if place else problem)


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "true or false"
    names = {str: "a text", list: "a list", dict: "an object", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), "this")

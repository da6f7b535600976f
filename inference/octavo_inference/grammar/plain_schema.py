"""Says by keywords that llguidance has what others say: those of OpenAPI and older drafts, and those without effect."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from octavo_inference.grammar.schema_walk import ANNOTATIONS, subschemas, target

Node = dict[str, Any]

# llguidance has bounds as doubles and in 64 bits with a sign: these are the widest ones.
_WIDEST = 2**63 - 2**10
INTEGER_FORMATS: dict[str, tuple[int, int]] = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-_WIDEST, _WIDEST),
    "uint8": (0, 2**8 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, _WIDEST),
}
"""Formats of whole numbers, with the least and the greatest one."""
NUMBER_FORMATS = (*INTEGER_FORMATS, "float", "double")
"""Formats of numbers. `float` and `double` restrict no JSON number: it is rounded to one."""
OPEN_FORMATS = ("password", "path")
"""Formats of texts that allow every text."""
_WITHOUT_EFFECT = ("nullable", "uniqueItems", "propertyNames", "unevaluatedProperties", "unevaluatedItems")
"""Keywords that restrict nothing, with the values that `json_schema` accepts."""
_REWRITTEN = frozenset({*_WITHOUT_EFFECT, "format", "exclusiveMinimum", "exclusiveMaximum"})
# With null as one of the types, what these say would have to change, too.
_BRANCHES = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
_OUTSIDE = ANNOTATIONS | {"$defs", "definitions"}


def plain_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A checked schema (`json_schema.check_schema`) in keywords that llguidance has. The given one stays as it is."""
    if all(_REWRITTEN.isdisjoint(node) for node in _nodes(schema)):
        return schema
    copied: Node = msgspec.json.decode(msgspec.json.encode(schema))
    for node in _nodes(copied):
        _rewrite(node)
    return copied


def _nodes(root: Mapping[str, Any]) -> Iterator[Any]:
    """All subschemas that are objects, each once, and before those inside of it."""
    seen: set[int] = set()
    open_: list[object] = [root]
    while open_:
        node = open_.pop()
        if not isinstance(node, Mapping) or id(node) in seen:
            continue
        seen.add(id(node))
        reference = node.get("$ref")
        if isinstance(reference, str):
            with contextlib.suppress(KeyError):
                open_.append(target(root, reference))
        yield node
        open_ += (inner for inner, _ in subschemas(node))


def _rewrite(node: Node) -> None:
    _exclusive(node, "minimum", "exclusiveMinimum")
    _exclusive(node, "maximum", "exclusiveMaximum")
    _number_format(node)
    nullable = node.get("nullable")
    for keyword in _WITHOUT_EFFECT:
        node.pop(keyword, None)
    if nullable:
        _allow_null(node)


def _exclusive(node: Node, keyword: str, flag: str) -> None:
    """Say by a bound of its own that a bound is exclusive: in OpenAPI 3.0 and draft 4, a flag says so."""
    if isinstance(node.get(flag), bool) and node.pop(flag) and keyword in node:
        node[flag] = node.pop(keyword)


def _number_format(node: Node) -> None:
    """Say by bounds what the format of a number restricts."""
    name = node.get("format")
    if name in OPEN_FORMATS or name in NUMBER_FORMATS:
        del node["format"]
    if name in INTEGER_FORMATS:
        low, high = INTEGER_FORMATS[name]
        kinds = node.get("type")
        if isinstance(kinds, list):
            node["type"] = list(dict.fromkeys("integer" if kind == "number" else kind for kind in kinds))
        elif kinds == "number":
            node["type"] = "integer"
        node["minimum"] = max(low, node.get("minimum", low))
        node["maximum"] = min(high, node.get("maximum", high))


def _allow_null(node: Node) -> None:
    """Allow null, too: as one of the types, or as an alternative to all that the node says."""
    restricting = [keyword for keyword in node if keyword not in _OUTSIDE and not keyword.startswith("x-")]
    if restricting == ["anyOf"]:
        # The alternatives keep their places, which references may name.
        node["anyOf"].append({"type": "null"})
    elif _BRANCHES & node.keys():
        node["anyOf"] = [{keyword: node.pop(keyword) for keyword in restricting}, {"type": "null"}]
    elif "type" in node:
        types = node["type"] if isinstance(node["type"], list) else [node["type"]]
        node["type"] = [*types, *(["null"] if "null" not in types else [])]

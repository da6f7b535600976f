"""From a structural schema to specs that break one bound each."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
# The pattern's own alphabet has neither.
_ILLEGAL = " \u00e9"


@dataclass(frozen=True, slots=True)
class Violation:
    """A spec that is wrong at `path` (as the API server writes it) for breaking `bound`."""

    path: str
    bound: str
    spec: Json


def violations(schema: Json, base: Json) -> Iterator[Violation]:
    """One spec for each bound of each field; everything else in it is as `base` has it, or the least there may be."""
    for keys, path, node in _fields((), "spec", schema):
        for bound, value in _breaking(node):
            spec = copy.deepcopy(base)
            _put(spec, schema, keys, value)
            yield Violation(path, bound, spec)


def least(node: Json) -> Any:
    """The smallest value that a node's own bounds allow."""
    if "default" in node and node["default"] != {}:
        return copy.deepcopy(node["default"])
    if "enum" in node:
        return node["enum"][0]
    kind = node.get("type")
    if kind == "object":
        return {name: least(node["properties"][name]) for name in node.get("required", [])}
    if kind == "array":
        return [least(node["items"])] * node.get("minItems", 0)
    if kind == "integer":
        return node.get("minimum", 0)
    if kind == "boolean":
        return False
    return "1" if node.get("x-kubernetes-int-or-string") else "a" * max(1, node.get("minLength", 0))


def _fields(keys: tuple[Any, ...], path: str, node: Json) -> Iterator[tuple[tuple[Any, ...], str, Json]]:
    if keys:
        yield keys, path, node
    for name, field in node.get("properties", {}).items():
        yield from _fields((*keys, name), f"{path}.{name}", field)
    if node.get("type") == "array":
        yield from _fields((*keys, 0), f"{path}[0]", node["items"])
    if isinstance(node.get("additionalProperties"), dict):
        yield from _fields((*keys, "some"), f"{path}.some", node["additionalProperties"])


def _breaking(node: Json) -> Iterator[tuple[str, Any]]:
    if "enum" in node:
        yield "enum", 7 if node["type"] == "integer" else "Unheard"
    elif node.get("type") == "integer":
        yield "minimum", node["minimum"] - 1
        yield "maximum", node["maximum"] + 1
    elif node.get("type") == "string":
        yield "maxLength", "a" * (node["maxLength"] + 1)
        if node.get("minLength"):
            yield "minLength", ""
    elif node.get("type") == "array":
        yield "maxItems", [least(node["items"])] * (node["maxItems"] + 1)
        if node.get("minItems"):
            yield "minItems", []
    elif "additionalProperties" in node:
        yield "maxProperties", {f"k{n}": "a" for n in range(node["maxProperties"] + 1)}
    if "pattern" in node:
        yield "pattern", _ILLEGAL
    for name in node.get("required", []):
        yield f"required {name}", {key: value for key, value in least(node).items() if key != name}


def _put(spec: Json, schema: Json, keys: tuple[Any, ...], value: Any) -> None:
    """Set the value at `keys`; what is missing on the way is made as small as may be."""
    place: Any = spec
    node = schema
    for key, following in zip(keys, (*keys[1:], None), strict=True):
        child = node["items"] if key == 0 else node.get("properties", {}).get(key) or node["additionalProperties"]
        if following is None:
            made = value
        elif following == 0:
            made = [least(child["items"])]
        else:
            made = place.get(key) if isinstance(place, dict) else place[0]
            made = least(child) if not isinstance(made, dict) else made
        if key == 0:
            place[0] = made
        else:
            place[key] = made
        place, node = made, child

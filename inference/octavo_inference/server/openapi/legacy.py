"""Rewrites an OpenAPI 3.1 document as 3.0, the newest version that the packaged Swagger UI renders.

Only for display: what 3.0 cannot express is left out.
"""

from __future__ import annotations

from typing import Any

Node = dict[str, Any]

_NULL = {"type": "null"}


def as_openapi_30(document: Node) -> Node:
    """A document of OpenAPI 3.0."""
    rewritten: Node = _rewritten(document)
    return {**rewritten, "openapi": "3.0.3"}


def _rewritten(node: Any) -> Any:
    if isinstance(node, list):
        return [_rewritten(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "contentSchema" in node:
        return _rewritten(node["contentSchema"])
    node = {key: _rewritten(value) for key, value in node.items() if key not in {"propertyNames", "contentMediaType"}}
    for rewrite in (_nullable, _constant, _exclusive, _base64, _reference):
        node = rewrite(node)
    return node


def _nullable(node: Node) -> Node:
    if node.get("type") == "null":
        return {**{key: value for key, value in node.items() if key != "type"}, "nullable": True, "enum": [None]}
    options = node.get("anyOf")
    if not isinstance(options, list) or not any(_is_null(option) for option in options):
        return node
    rest = [option for option in options if not _is_null(option)]
    outer = {key: value for key, value in node.items() if key != "anyOf"}
    if len(rest) == 1 and "$ref" not in rest[0]:
        return {**rest[0], **outer, "nullable": True}
    return {**outer, "anyOf": rest, "nullable": True}


def _is_null(option: Any) -> bool:
    return bool(isinstance(option, dict) and option.get("enum") == [None])


def _constant(node: Node) -> Node:
    if "const" not in node:
        return node
    return {**{key: value for key, value in node.items() if key != "const"}, "enum": [node["const"]]}


def _exclusive(node: Node) -> Node:
    for name in ("Minimum", "Maximum"):
        bound = node.get(f"exclusive{name}")
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            node = {**node, name.lower(): bound, f"exclusive{name}": True}
    return node


def _base64(node: Node) -> Node:
    if node.get("contentEncoding") != "base64":
        return node
    return {**{key: value for key, value in node.items() if key != "contentEncoding"}, "format": "byte"}


def _reference(node: Node) -> Node:
    """In 3.0, fields next to a reference have no effect."""
    if "$ref" not in node or len(node) == 1:
        return node
    return {**{key: value for key, value in node.items() if key != "$ref"}, "allOf": [{"$ref": node["$ref"]}]}

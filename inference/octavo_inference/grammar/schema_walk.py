"""Walks over the subschemas of a JSON schema, and finds those that references name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

ONE = ("items", "additionalItems", "additionalProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems")
"""Keywords whose value is a schema; `items` may be a list of schemas."""
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
"""Keywords whose value is a list of schemas."""
BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value is an object of schemas."""
ANNOTATIONS = frozenset({
    "$schema", "$id", "id", "$comment", "title", "description", "default", "examples", "example", "readOnly",
    "writeOnly", "deprecated", "discriminator", "externalDocs", "xml",
})  # fmt: skip
"""Keywords without effect on validation, in JSON Schema and OpenAPI; in addition, all that begin with `x-`."""
_INDEX = re.compile(r"[0-9]{1,9}", re.ASCII)


def subschemas(node: Mapping[str, Any]) -> Iterator[tuple[object, str]]:
    """What stands where a node has schemas, with its place in the node. It need not be one."""
    for keyword in ONE:
        if keyword in node and not isinstance(node[keyword], list):
            yield node[keyword], keyword
    for keyword in (*LISTS, "items"):
        if isinstance(node.get(keyword), list):
            yield from ((inner, f"{keyword}[{number}]") for number, inner in enumerate(node[keyword]))
    for keyword in BY_NAME:
        if isinstance(node.get(keyword), Mapping):
            yield from ((inner, f"{keyword}.{name}") for name, inner in node[keyword].items())


def target(root: Mapping[str, Any], reference: str) -> object:
    """What stands at the place that a reference such as `#/$defs/NAME` names. Raises `KeyError` if nothing does."""
    found: Any = root
    for step in unquote(reference).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and _INDEX.fullmatch(name) and int(name) < len(found):
            found = found[int(name)]
        else:
            raise KeyError(reference)
    return found

"""What a tool's JSON schema says of its arguments, as far as formats that do not write JSON need it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo_inference.chat_format.tools import ToolSpec

Schema = Mapping[str, Any]

TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_WORDS = {"True": "true", "False": "false", "None": "null"}
_MAX_HOPS = 32
_quoted = json.JSONEncoder(ensure_ascii=False).encode


class Parameters:
    """The parameters of a tool, by name."""

    def __init__(self, tool: ToolSpec) -> None:
        self.tool = tool
        self.root: Schema = tool.parameters or {}
        schema = self.resolved(self.root)
        properties = schema.get("properties")
        self.properties: dict[str, Any] = properties if isinstance(properties, dict) else {}
        required = schema.get("required")
        self.required = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        self.schema = schema
        self._types: dict[str, frozenset[str]] = {}

    @property
    def are_open(self) -> bool:
        """Nothing is said of the parameters."""
        return not self.properties and not self.required and "properties" not in self.schema

    def resolved(self, schema: Any) -> Schema:
        """The schema behind references within the tool's schema."""
        for _ in range(_MAX_HOPS):
            if not isinstance(schema, Mapping):
                return {}
            reference = schema.get("$ref")
            if not isinstance(reference, str) or not reference.startswith("#"):
                return schema
            schema = self.root
            for part in reference.removeprefix("#").split("/")[1:]:
                schema = schema.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(schema, Mapping) else None
        return {}

    def types(self, name: str) -> frozenset[str]:
        """The JSON types that a parameter may have: all for one of which nothing is said."""
        if name not in self._types:
            self._types[name] = self.types_of(self.properties.get(name))
        return self._types[name]

    def types_of(self, schema: Any) -> frozenset[str]:
        """The JSON types that a schema allows."""
        return frozenset().union(*map(_types, self.branches(schema)))

    def branches(self, schema: Any) -> list[Schema]:
        """The schemas of which a value needs one: those of `anyOf` and `oneOf`, without references. Never none."""
        found: list[Schema] = []
        seen: set[int] = set()
        waiting = [schema]
        while waiting:
            branch = self.resolved(waiting.pop())
            if id(branch) in seen:
                continue
            seen.add(id(branch))
            choices = branch.get("anyOf") or branch.get("oneOf")
            if isinstance(choices, list):
                waiting += reversed(choices)
            else:
                found.append(branch)
        return found or [{}]


def _types(schema: Schema) -> frozenset[str]:
    if "const" in schema:
        return frozenset({_type_of(schema["const"])})
    if isinstance(schema.get("enum"), list):
        return frozenset(_type_of(value) for value in schema["enum"])
    kinds = schema.get("type")
    if isinstance(kinds, str | list):
        given = {kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if isinstance(kind, str)}
        return TYPES & (given | ({"null"} if schema.get("nullable") is True else set()))
    return TYPES


def as_json(text: str, types: frozenset[str]) -> str:
    """The JSON of a value that is written without quotes, if one of the types allows it; else that of the text."""
    if types == {"string"}:
        return _quoted(text)
    value = text.strip()
    value = _WORDS.get(value, value)
    kind = _json_type(value)
    if kind is None or ("string" in types and not _allows(types, kind)) or (kind == "string" and "string" in types):
        return _quoted(text)
    return value


def escaped(text: str) -> str:
    """The characters of a text within a JSON string."""
    return _quoted(text)[1:-1]


def _allows(types: frozenset[str], kind: str) -> bool:
    return kind in types or (kind == "integer" and "number" in types)


def _json_type(text: str) -> str | None:
    try:
        return _type_of(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _type_of(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds: dict[type, str] = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return kinds.get(type(value), "null")

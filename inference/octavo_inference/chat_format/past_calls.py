"""Calls and results of earlier turns, and how formats write them into a conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call in an earlier answer."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PastResult:
    """The result of the call with this id, of the function `name`."""

    id: str
    name: str
    content: str


def json_text(value: object) -> str:
    """A value as JSON, as templates write it: with spaces, and all characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def object_text(call: PastCall, arguments: str = "arguments") -> str:
    """A call as a JSON object. `arguments` is the name of the arguments' field."""
    return json_text({"name": call.name, arguments: call.arguments})


def tagged_result(result: PastResult) -> str:
    """A result between tags, as of Hermes and Qwen. Also for formats that have no text for it but a role of its own."""
    return f"<tool_response>\n{result.content}\n</tool_response>"


def bare_text(value: object) -> str:
    """A value without quotes if it is a text, else as JSON."""
    return value if isinstance(value, str) else json_text(value)


def same_id(given: str, *_: object) -> str:
    """The id as it is: most formats write none."""
    return given

from __future__ import annotations

import pytest

from octavo_inference.chat_format.formats.known import tool_format
from octavo_inference.chat_format.schema_types import TYPES, Parameters, as_json
from octavo_inference.chat_format.tools import ToolChoice, ToolSpec
from octavo_inference.common.errors import RequestError


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/text"}]}, {"integer", "string"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"const": True}, {"boolean"}),
        ({"description": "anything"}, TYPES),
        ({"$ref": "#/$defs/missing"}, TYPES),
        ({"$ref": "#/$defs/loop"}, TYPES),
        # As many paths as 2 to the power of 40.
        ({"$ref": "#/$defs/d0"}, {"string"}),
        ({"type": [{}]}, set()),
    ],
)
def test_types_of_a_parameter(schema: dict[str, object], types: set[str]) -> None:
    wide = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(40)}
    definitions = {
        **wide,
        "d40": {"type": "string"},
        "text": {"type": "string"},
        "loop": {"anyOf": [{"$ref": "#/$defs/loop"}]},
    }
    tool = ToolSpec("f", {"type": "object", "properties": {"a": schema}, "$defs": definitions})
    assert Parameters(tool).types("a") == types
    assert Parameters(tool).types("b") == TYPES
    grammar = tool_format("qwen3_coder").grammar([tool], ToolChoice("named", ("f",)), parallel=False)
    assert grammar is not None


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("5", {"integer"}, "5"),
        ("5", {"number"}, "5"),
        ("5", {"string"}, '"5"'),
        ("5", {"string", "null"}, '"5"'),
        ("null", {"string", "null"}, "null"),
        ("None", {"integer", "null"}, "null"),
        (" True ", {"boolean"}, "true"),
        ('{"a": [1]}', {"object"}, '{"a": [1]}'),
        ("{a}", {"object"}, '"{a}"'),
        ("NaN", {"number"}, '"NaN"'),
        ('"quoted"', TYPES, '"\\"quoted\\""'),
        ("[" * 100_000, {"array"}, '"' + "[" * 100_000 + '"'),
        ("9" * 10_000, {"integer"}, '"' + "9" * 10_000 + '"'),
    ],
)
def test_bare_text_as_json(text: str, types: set[str], expected: str) -> None:
    assert as_json(text, frozenset(types)) == expected


def test_schemas_that_are_no_schemas_do_no_harm() -> None:
    for parameters in ({"properties": [1], "required": 3}, {"type": 5, "properties": {"a": 7}}, {"$ref": 4}):
        assert Parameters(ToolSpec("f", parameters)).types("a") == TYPES


def test_schemas_too_large_for_a_grammar() -> None:
    definitions = {"big": {"enum": [str(n) for n in range(5000)]}}
    properties = {f"p{n}": {"type": "array", "items": {"$ref": "#/$defs/big"}} for n in range(100)}
    tool = ToolSpec("f", {"type": "object", "properties": properties, "$defs": definitions})
    choice = ToolChoice("named", ("f",))
    assert tool_format("hermes").grammar([tool], choice, parallel=False) is not None
    with pytest.raises(RequestError, match="more than 1048576 bytes; give fewer or smaller"):
        tool_format("glm45").grammar([tool], choice, parallel=False)

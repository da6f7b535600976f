"""Under each format's grammar, random tokens are calls that its parser reads, with arguments of the tools' schemas."""

from __future__ import annotations

import dataclasses
import json

import jsonschema
import pytest
from tests.unit.chat_format.sampled import RandomModel
from tests.unit.chat_format.written import parts

from octavo_inference.chat_format.events import merged
from octavo_inference.chat_format.formats.known import TOOL_FORMATS, tool_format
from octavo_inference.chat_format.tool_format import special_tokens
from octavo_inference.chat_format.tools import ToolChoice, ToolSpec

_SHORT = {"type": "string", "maxLength": 6}
TOOLS = [
    ToolSpec(
        "get_weather",
        {
            "type": "object",
            "properties": {
                "unit": {"enum": ["celsius", "kelvin"]},
                "city": _SHORT,
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
                "metric": {"type": "boolean"},
                "place": {"$ref": "#/$defs/place"},
                "note": {"anyOf": [_SHORT, {"type": "null"}]},
                "tags": {"type": "array", "items": _SHORT, "maxItems": 2},
            },
            "required": ["city", "days", "note"],
            "additionalProperties": False,
            "$defs": {
                "place": {
                    "type": "object",
                    "properties": {"north": {"type": "number"}},
                    "required": ["north"],
                    "additionalProperties": False,
                }
            },
        },
        strict=True,
    ),
    ToolSpec("get_time", {"type": "object", "properties": {}, "additionalProperties": False}),
    ToolSpec(
        "set_mode",
        {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "level": {"type": "integer"}, "by": {"const": "hand"}},
            "additionalProperties": False,
        },
    ),
]
STRICT = [dataclasses.replace(tool, strict=True) for tool in TOOLS]
NAMES = tuple(tool.name for tool in TOOLS)
SCHEMAS = {tool.name: tool.parameters for tool in TOOLS}
VARIANTS = [(name, special) for name in TOOL_FORMATS for special in (False, True) if name != "harmony" or special]


def _model(name: str, special: bool) -> tuple[RandomModel, dict[str, int]]:
    form = tool_format(name)
    model = RandomModel(form.markers if special else ())
    return model, special_tokens(form.markers, model.tokenizer)


def _calls(name: str, answer: str, special: dict[str, int]) -> tuple[str, list[tuple[str, str]]]:
    parser = tool_format(name).parser(TOOLS, special)
    events = [event for character in answer for event in parser.push(character)]
    text, calls, _ = parts(merged(events + parser.finish()))
    for called, arguments in calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[called])
    return text, calls


@pytest.mark.parametrize(("name", "special"), VARIANTS)
def test_required_calls(name: str, special: bool) -> None:
    model, tokens = _model(name, special)
    grammar = tool_format(name).grammar(TOOLS, ToolChoice("required", NAMES), parallel=True, special=tokens)
    assert grammar is not None
    numbers = set()
    for answer in model.answers(grammar, range(8)):
        text, calls = _calls(name, answer, tokens)
        assert calls, answer
        assert not text or name == "harmony"
        numbers.add(len(calls))
    assert max(numbers) > 1


@pytest.mark.parametrize(("name", "special"), VARIANTS)
def test_one_named_call(name: str, special: bool) -> None:
    model, tokens = _model(name, special)
    choice = ToolChoice("named", ("set_mode",))
    grammar = tool_format(name).grammar(TOOLS, choice, parallel=False, special=tokens)
    assert grammar is not None
    for answer in model.answers(grammar, range(4)):
        _, calls = _calls(name, answer, tokens)
        assert [called for called, _ in calls] == ["set_mode"], answer


@pytest.mark.parametrize(("name", "special"), VARIANTS)
def test_text_or_valid_calls(name: str, special: bool) -> None:
    model, tokens = _model(name, special)
    form = tool_format(name)
    grammar = form.grammar(STRICT, ToolChoice("auto", NAMES), parallel=True, special=tokens)
    one = form.grammar(TOOLS, ToolChoice("required", NAMES), parallel=False, special=tokens)
    assert grammar is not None
    assert one is not None
    for answer in model.answers(grammar, range(5)):
        _calls(name, answer, tokens)
    for answer in model.answers(one, range(2)):
        assert model.allows(grammar, answer)
    assert model.allows(grammar, "Hello.") == (name != "harmony")


def test_nothing_to_enforce() -> None:
    choice = ToolChoice("auto", NAMES[1:])
    for form in TOOL_FORMATS.values():
        assert form.grammar(TOOLS[1:], choice, parallel=True) is None
        assert form.grammar(TOOLS[1:], choice, parallel=False) is not None
        assert form.grammar(TOOLS, choice, parallel=True) is not None

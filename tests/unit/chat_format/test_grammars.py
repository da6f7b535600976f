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
from octavo_inference.common.errors import RequestError
from octavo_inference.grammar.sources import json_schema_rule
from octavo_inference.tokenizer.assets import load_assets

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
    model = RandomModel.of_bytes(form.markers if special else ())
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


@pytest.mark.parametrize("name", ["smollm2", "hermes", "qwen3_coder", "pythonic"])
def test_required_calls_in_the_tokens_of_the_built_in_model(name: str) -> None:
    model = RandomModel(load_assets("smollm2").tokenizer, "<|im_end|>")
    grammar = tool_format(name).grammar(TOOLS, ToolChoice("required", NAMES), parallel=True)
    assert grammar is not None
    for answer in model.answers(grammar, range(3)):
        text, calls = _calls(name, answer, {})
        assert calls
        assert not text


def test_nothing_to_enforce() -> None:
    choice = ToolChoice("auto", NAMES[1:])
    for form in TOOL_FORMATS.values():
        assert form.grammar(TOOLS[1:], choice, parallel=True) is None
        assert form.grammar(TOOLS[1:], choice, parallel=False) is not None
        assert form.grammar(TOOLS, choice, parallel=True) is not None


def test_free_text_begins_a_call_in_no_other_way() -> None:
    """Where a parser knows several start markers, and where text spells out a special token."""
    form = tool_format("qwen3_coder")
    choice = ToolChoice("auto", NAMES)
    for special in (False, True):
        model, tokens = _model("qwen3_coder", special)
        grammar = form.grammar(STRICT, choice, parallel=True, special=tokens)
        assert grammar is not None
        assert model.allows(grammar, "a < b, <func")
        assert not model.allows(grammar, "a <function=get_time>")
        assert not model.allows(grammar, "a <tool_call> b", spelled=True)
        assert model.allows(grammar, "a <tool_cat> b", spelled=True)


def test_markers_that_are_tokens_but_not_special() -> None:
    """As in Qwen's vocabulary."""
    form = tool_format("hermes")
    model = RandomModel.of_bytes(words=form.markers)
    tokens = special_tokens(form.markers, model.tokenizer)
    assert tokens.keys() == set(form.markers)
    call = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    assert len(model.tokenizer.encode(call).ids) < len(call) - 15
    choice = ToolChoice("required", NAMES)
    for behind_thinking in (False, True):
        grammar = form.grammar(TOOLS, choice, parallel=False, behind_thinking=behind_thinking, special=tokens)
        assert grammar is not None
        assert model.allows(grammar, call)
        assert model.allows(grammar, "\n" + call) == behind_thinking


def test_one_call_only() -> None:
    form = tool_format("hermes")
    model = RandomModel.of_bytes()
    call = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    for mode in ("required", "auto"):
        one = form.grammar(TOOLS, ToolChoice(mode, NAMES), parallel=False)
        more = form.grammar(TOOLS, ToolChoice(mode, NAMES), parallel=True)
        assert one is not None
        assert more is not None
        assert model.allows(one, call)
        assert not model.allows(one, f"{call}\n{call}")
        assert model.allows(more, f"{call}\n{call}")


def test_an_answer_of_a_schema_or_a_call() -> None:
    answer = json_schema_rule({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    for name in TOOL_FORMATS:
        model, tokens = _model(name, special=True)
        grammar = tool_format(name).grammar(
            TOOLS, ToolChoice("auto", NAMES), parallel=True, answer=answer, special=tokens
        )
        assert grammar is not None
        start = "<|channel|>final<|message|>" if name == "harmony" else ""
        assert model.allows(grammar, start + '{"a": 1}')
        assert not model.allows(grammar, start + '{"a": "b"}')
        assert not model.allows(grammar, start + "Hello.")


def test_only_allowed_tools() -> None:
    form = tool_format("hermes")
    model = RandomModel.of_bytes()
    grammar = form.grammar(TOOLS, ToolChoice("auto", ("get_time",)), parallel=True)
    assert grammar is not None
    for name, allowed in (("get_time", True), ("set_mode", False)):
        call = f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'
        assert model.allows(grammar, f"So: {call}") == allowed


def test_what_bare_text_cannot_enforce_is_refused_for_strict_tools() -> None:
    choice = ToolChoice("named", ("f",))
    schema = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}, "required": ["day"]}
    for strict in (False, True):
        tools = [ToolSpec("f", schema, strict=strict)]
        assert tool_format("hermes").grammar(tools, choice, parallel=False) is not None
        assert tool_format("pythonic").grammar(tools, choice, parallel=False) is not None
    assert tool_format("glm45").grammar([ToolSpec("f", schema)], choice, parallel=False) is not None
    for name in ("glm45", "qwen3_coder", "seed_oss"):
        with pytest.raises(RequestError, match="'f': format cannot be enforced"):
            tool_format(name).grammar([ToolSpec("f", schema, strict=True)], choice, parallel=False)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "minProperties": 1}
    with pytest.raises(RequestError, match="minProperties cannot be enforced"):
        tool_format("pythonic").grammar([ToolSpec("f", schema, strict=True)], choice, parallel=False)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "pattern": "^[a-c]{2}$"}, ["ab"], ["abc", "x"]),
        ({"type": "string", "pattern": "[0-9]"}, ["a1", "1"], ["a"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "\né"], ["a", "abcd"]),
        ({"type": ["string", "null"]}, ["null", "a<b"], []),
        ({"enum": ["a", 1, None]}, ["a", "1", "null"], ["b", "2"]),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["7", "null"], ["x", "7.5"]),
        ({"$ref": "#/$defs/p"}, ['{"p": []}', '{"p": [{"p": []}]}'], ["{}", "x"]),
        (True, ["anything", "[1]"], []),
    ],
)
def test_bare_values(schema: object, good: list[str], bad: list[str]) -> None:
    definitions = {
        "p": {
            "type": "object",
            "properties": {"p": {"type": "array", "items": {"$ref": "#/$defs/p"}}},
            "required": ["p"],
            "additionalProperties": False,
        }
    }
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"], "$defs": definitions}
    tools = [ToolSpec("f", parameters, strict=True)]
    for name, call in (
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=v>\n{}\n</parameter>\n</function>\n</tool_call>"),
        ("glm45", "<tool_call>f\n<arg_key>v</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"),
    ):
        for special in (False, True):
            model, tokens = _model(name, special)
            grammar = tool_format(name).grammar(tools, ToolChoice("named", ("f",)), parallel=False, special=tokens)
            assert grammar is not None
            for value in good:
                assert model.allows(grammar, call.format(value)), value
                parser = tool_format(name).parser(tools, tokens)
                _, calls, _ = parts(merged(parser.push(call.format(value)) + parser.finish()))
                jsonschema.validate(json.loads(calls[0][1]), parameters)
            for value in bad:
                assert not model.allows(grammar, call.format(value)), value

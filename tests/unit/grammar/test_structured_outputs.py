"""Structured outputs as requests have them, and the grammar of each."""

from __future__ import annotations

import json

import pytest

from octavo_inference.common.errors import RequestError
from octavo_inference.grammar.structured_outputs import StructuredOutputs, constraint_of, guidance_of

INTEGER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = {"begin": "<call=f>", "schema": INTEGER, "end": "</call>"}
LEGACY = {"type": "structural_tag", "triggers": ["<call="], "structures": [CALL, CALL | {"begin": "<call=g>"}]}


def formatted(**node) -> str:
    return json.dumps({"type": "structural_tag", "format": node})


def tag(begin: str, content: dict, end: str) -> dict:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


TAG = "structured_outputs.structural_tag"
DIGITS = {"type": "regex", "pattern": "[0-9]+"}


@pytest.mark.parametrize(
    ("outputs", "yes", "no"),
    [
        ({"json": INTEGER}, ['{"a": 1}'], ['{"a":1}', '{"a": "b"}']),
        ({"json": json.dumps(INTEGER)}, ['{"a": 1}'], ["{}"]),
        ({"json": INTEGER, "disable_any_whitespace": True}, ['{"a":1}'], ['{"a": 1}']),
        ({"json_object": True, "whitespace_pattern": " *"}, ['{ "a":1}'], ["[]"]),
        ({"regex": "a+/b"}, ["aa/b"], ["a/bb"]),
        ({"choice": ["yes", "no", ""]}, ["yes", ""], ["maybe"]),
        ({"grammar": 'start: /a+/ | start2\nstart2: "b"'}, ["aa", "b"], ["ab"]),
        ({"grammar": 'root ::= "a" root | "b"'}, ["aab"], ["a"]),
        (
            {"structural_tag": json.dumps(LEGACY)},
            ['so <call=f>{"a": 1}</call> and <call=g>{"a": 2}</call>.', "no < call", '<call=f>{"a": 1}</call>'],
            ["<call=h>", '<call=f>{"a": "b"}</call>'],
        ),
        (
            {"structural_tag": formatted(type="sequence", elements=[
                tag("<think>", {"type": "any_text"}, "</think>"),
                {"type": "or", "elements": [{"type": "const_string", "value": "no"}, DIGITS]},
            ])},
            ["<think>a < b</think>12", "<think></think>no"],
            ["12", "<think>a</think>", "<think>a</think>b</think>12"],
        ),
        (
            {"structural_tag": formatted(type="triggered_tags", triggers=["<f"], tags=[tag("<f>", DIGITS, "</f>")],
                                         at_least_one=True, stop_after_first=True)},
            ["<f>12</f>"],
            ["", "a<f>12</f>", "<f>12</f>a", "<f>12</f><f>1</f>"],
        ),
        (
            {"structural_tag": formatted(type="tags_with_separator", separator=", ",
                                         tags=[tag("<f>", DIGITS, "</f>")])},
            ["", "<f>1</f>", "<f>1</f>, <f>2</f>"],
            ["<f>1</f>, ", "<f>1</f><f>2</f>"],
        ),
    ],
)  # fmt: skip
def test_each_kind_accepts_its_answers(accepts, outputs, yes, no):
    grammar = guidance_of(StructuredOutputs(**outputs)).grammar
    assert [accepts(grammar, text) for text in yes + no] == [True] * len(yes) + [False] * len(no)


def test_an_expression_can_stand_in_a_larger_grammar(accepts):
    for outputs, text in (({"json": INTEGER}, '{"a": 1}'), ({"regex": "a+"}, "aa"), ({"choice": ["b"]}, "b")):
        expression = constraint_of(StructuredOutputs(**outputs)).expression
        assert accepts(f'start: "<" {expression} ">"', f"<{text}>")
    assert constraint_of(StructuredOutputs(grammar="start: /a/")).expression is None


@pytest.mark.parametrize(
    ("outputs", "field", "message"),
    [
        ({}, "structured_outputs", "give exactly one of json, regex, choice, grammar, json_object, structural_tag"),
        ({"json_object": False}, "structured_outputs", "it has none of them"),
        ({"regex": "a", "choice": ["a"]}, "structured_outputs", "not regex and choice"),
        ({"json": "{"}, "structured_outputs.json", "not JSON"),
        ({"json": "3"}, "structured_outputs.json", "a schema must be an object, not a number"),
        ({"json": {"not": {}}}, "structured_outputs.json", "keyword 'not' is not supported"),
        ({"regex": "a", "disable_any_whitespace": True}, "structured_outputs.disable_any_whitespace", "not for regex"),
        (
            {"json_object": True, "whitespace_pattern": " ", "disable_any_whitespace": True},
            "structured_outputs.whitespace_pattern",
            "contradict",
        ),
        ({"structural_tag": "[]"}, "structured_outputs.structural_tag", "the text of a JSON object"),
        (
            {"structural_tag": json.dumps(LEGACY | {"triggers": ["<other"]})},
            "structured_outputs.structural_tag.structures[0]",
            "begin '<call=f>' starts with none of the triggers",
        ),
        (
            {"structural_tag": formatted(type="qwen_xml_parameter")},
            "structured_outputs.structural_tag.format",
            "type 'qwen_xml_parameter' is not supported; supported: const_string, json_schema",
        ),
        (
            {"structural_tag": formatted(type="json_schema", json_schema={"if": {}})},
            "structured_outputs.structural_tag.format.json_schema",
            "keyword 'if'",
        ),
        ({"structural_tag": formatted(type="or", elements=[])}, f"{TAG}.format.elements", "list"),
        ({"structural_tag": formatted(type="any_text", max_tokens=3)}, f"{TAG}.format", "field 'max_tokens'"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(outputs, field, message):
    with pytest.raises(RequestError, match=message) as found:
        constraint_of(StructuredOutputs(**outputs))
    assert found.value.field == field
    assert str(found.value).startswith(f"{field}: ")

"""Calls and results of earlier turns: each format writes them as its model does, so its own parser reads them."""

from __future__ import annotations

import json
import string
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.chat_format.test_any_split import CALLS
from tests.unit.chat_format.written import Call, parsed, parts

from octavo_inference.answers.history import for_template
from octavo_inference.chat_format.formats.known import TOOL_FORMATS, tool_format
from octavo_inference.chat_format.past_calls import PastCall, PastResult

CASES = [(name, special) for name, form in TOOL_FORMATS.items() for special in ((), form.markers)]
RESULT = PastResult("functions.get_weather:3", "get_weather", 'It is "hot".')


def past(form: str, calls: list[Call]) -> list[PastCall]:
    made = tool_format(form).own_id
    return [PastCall(made(f"call_{n}", name, n), name, values) for n, (name, values) in enumerate(calls)]


@pytest.mark.parametrize(("name", "special"), CASES, ids=str)
@settings(max_examples=40, deadline=None)
@given(calls=st.lists(CALLS, min_size=1, max_size=3))
def test_a_parser_reads_what_its_format_writes(name: str, special: tuple[str, ...], calls: list[Call]) -> None:
    tokens = {marker: number for number, marker in enumerate(special)}
    answer = tool_format(name).written(past(name, calls), tokens)
    text, found, _ = parts(parsed(name, answer, special=tokens))
    assert text == ""
    assert [(called, json.loads(arguments)) for called, arguments in found] == calls


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'),
        ("smollm2", '<tool_call>[{"name": "f", "arguments": {"a": 1}}]</tool_call>'),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"),
        ("seed_oss", "<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n</seed:tool_call>"),
        ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"),
        ("llama3_json", '{"name": "f", "parameters": {"a": 1}}'),
        ("pythonic", "[f(a=1)]"),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abcdefgh1"}]'),
        ("kimi_k2", "functions.f:0<|tool_call_argument_begin|>{"),
        ("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"),
        ("harmony", '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'),
        ("granite", '<tool_call>[{"name": "f", "arguments": {"a": 1}}]'),
        ("phi4", 'functools[{"name": "f", "arguments": {"a": 1}}]'),
    ],
)
def test_the_text_of_a_call(name: str, written: str) -> None:
    form = tool_format(name)
    assert written in form.written([PastCall(form.own_id("abcdefgh1", "f", 0), "f", {"a": 1})])


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("hermes", '<tool_response>\nIt is "hot".\n</tool_response>'),
        ("smollm2", '<tool_response>\nIt is "hot".\n</tool_response>'),
        ("llama3_json", '{"output": "It is \\"hot\\"."}'),
        (
            "mistral",
            '[TOOL_RESULTS] {"content": "It is \\"hot\\".", "call_id": "functions.get_weather:3"}[/TOOL_RESULTS]',
        ),
        ("deepseek_v31", '<｜tool▁output▁begin｜>It is "hot".<｜tool▁output▁end｜>'),
        ("kimi_k2", '## Return of functions.get_weather:3\nIt is "hot".'),
        ("harmony", '<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>It is "hot".<|end|>'),
        ("phi4", '{"result": "It is \\"hot\\"."}'),
    ],
)
def test_the_text_of_a_result(name: str, written: str) -> None:
    assert tool_format(name).layout({}).result(RESULT) == written


@given(foreign=st.text(max_size=40))
def test_ids_of_mistral_are_nine_letters_and_digits(foreign: str) -> None:
    own = tool_format("mistral").own_id
    made = own(foreign, "f", 0)
    assert len(made) == 9
    assert set(made) <= set(string.ascii_letters + string.digits)
    assert own(foreign, "g", 5) == made == own(made, "f", 0)
    assert own(foreign + "x", "f", 0) != made


def test_ids_of_kimi_have_the_name_and_the_number() -> None:
    own = tool_format("kimi_k2").own_id
    assert own("call_7f", "get_time", 4) == "functions.get_time:4"
    assert own("functions.get_time:2", "get_time", 4) == "functions.get_time:2"


def test_calls_are_numbered_even_if_a_client_uses_an_id_again() -> None:
    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "call_0"},
    ]
    template: Any = SimpleNamespace(uses=lambda _: True, text_arguments=True)
    formats: Any = SimpleNamespace(enforced_tools=tool_format("kimi_k2"))
    tokenizer: Any = None
    shown: list[Any] = for_template(turn * 3, template, formats, tokenizer, None)
    ids = [message["tool_calls"][0]["id"] for message in shown[::2]]
    assert ids == [message["tool_call_id"] for message in shown[1::2]]
    assert ids == ["functions.f:0", "functions.f:1", "functions.f:2"]


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS.keys() - {"mistral", "kimi_k2"}))
def test_other_formats_keep_ids(name: str) -> None:
    assert tool_format(name).own_id("call_7f", "f", 1) == "call_7f"

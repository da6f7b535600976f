"""Answers in each format, written after the models' documentation. Those of the built-in model are recorded."""

from __future__ import annotations

import pytest
from tests.unit.chat_format.written import TOOLS, parsed, parts

from octavo_inference.chat_format.events import CallArguments, CallStart, Reasoning, Text, merged
from octavo_inference.chat_format.formats.known import tool_format

PARIS = '{"city": "Paris"}'
EXAMPLES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    # format, answer, its text, its calls
    (
        "hermes",
        'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        "Let me look.\n",
        [("get_weather", PARIS)],
    ),
    # The arguments first; a call without any; white space between calls.
    (
        "hermes",
        (
            '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>\n\n'
            '<tool_call>{"name": "get_time"}</tool_call>\n'
        ),
        "",
        [("get_weather", PARIS), ("get_time", "{}")],
    ),
    # A bracket forgotten; one too many; a name that is not known.
    (
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}</tool_call>',
        "",
        [("get_weather", PARIS)],
    ),
    (
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}}</tool_call> Done.',
        "}</tool_call> Done.",
        [("get_weather", PARIS)],
    ),
    (
        "hermes",
        '<tool_call>{"name": "get_wea", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "get_wea", "arguments": {}}</tool_call>',
        [],
    ),
    # A marker in a call that is none, and in an argument.
    (
        "hermes",
        'Use <tool_call> so: <tool_call><tool_call>{"name": "note", "arguments": {"a": "</tool_call>"}}</tool_call>',
        "Use <tool_call> so: <tool_call>",
        [("note", '{"a": "</tool_call>"}')],
    ),
    # Cut by max_tokens.
    (
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par',
        "",
        [("get_weather", '{"city": "Par')],
    ),
    ("hermes", '<tool_call>\n{"name": "get_wea', '<tool_call>\n{"name": "get_wea', []),
    (
        "smollm2",
        (
            '<tool_call>[\n{"name": "get_weather", "arguments": {"city": "Paris"}},\n{"name": "get_time", '
            '"arguments": {}}\n]</tool_call>'
        ),
        "",
        [("get_weather", PARIS), ("get_time", "{}")],
    ),
    ("smollm2", "<tool_call>[]</tool_call>I cannot.", "I cannot.", []),
    (
        "qwen3_coder",
        (
            "I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n"
            '2\n</parameter>\n<parameter=tags>\n["a", "b"]\n</parameter>\n<parameter=metric>\nTrue\n'
            "</parameter>\n</function>\n</tool_call>"
        ),
        "I look.\n\n",
        [("get_weather", '{"city": "Paris", "days": 2, "tags": ["a", "b"], "metric": true}')],
    ),
    # Lines of their own stay; no marker around; a parameter without a type; one twice.
    (
        "qwen3_coder",
        (
            '<function=note>\n<parameter=code>\n\nif a < b:\n  c = "</p>"\n\n</parameter>\n<parameter=n>1</parameter>\n'
            "<parameter=n>2</parameter>\n</function>"
        ),
        "",
        [("note", '{"code": "\\nif a < b:\\n  c = \\"</p>\\"\\n", "n": 1}')],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\nOops",
        "Oops",
        [("get_weather", PARIS)],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
        "",
        [("get_weather", '{"city": "Par')],
    ),
    (
        "seed_oss",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>",
        "",
        [("get_weather", PARIS)],
    ),
    (
        "glm45",
        (
            "I will look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
            "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>"
        ),
        "I will look.\n",
        [("get_weather", '{"city": "Paris", "days": 3}'), ("get_time", "{}")],
    ),
    # GLM-4.7 writes no line breaks.
    (
        "glm45",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        "",
        [("get_weather", PARIS)],
    ),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [("get_weather", PARIS)]),
    (
        "llama3_json",
        (
            '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}; '
            '{"name": "get_time", "parameters": {}}'
        ),
        "",
        [("get_weather", PARIS), ("get_time", "{}")],
    ),
    ("llama3_json", 'It is {"name": "get_time"}.', 'It is {"name": "get_time"}.', []),
    ("llama3_json", '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', []),
    (
        "pythonic",
        "[get_weather(city='L\\'Aquila', days=2, metric=True, tags=['a', \"b\"]), get_time()]",
        "",
        [("get_weather", '{"city": "L\'Aquila", "days": 2, "metric": true, "tags": ["a", "b"]}'), ("get_time", "{}")],
    ),
    ("pythonic", "<|python_start|>[note(a={'b': None, 'c': -1.5})]", "", [("note", '{"a": {"b": null, "c": -1.5}}')]),
    ("pythonic", "[1, 2] is a list.", "[1, 2] is a list.", []),
    ("pythonic", "[get_weather('Paris')]", "'Paris')]", [("get_weather", "{}")]),
    (
        "mistral",
        'Hello[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "a1b2c3d4e"}]',
        "Hello",
        [("get_weather", PARIS)],
    ),
    (
        "mistral",
        '[TOOL_CALLS]get_weather{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{}',
        "",
        [("get_weather", PARIS), ("get_time", "{}")],
    ),
    (
        "deepseek_v3",
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n'
            "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        "",
        [("get_weather", PARIS), ("get_time", "{}")],
    ),
    (
        "deepseek_v31",
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
            '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
        ),
        "",
        [("get_weather", PARIS)],
    ),
    (
        "granite",
        'Let me look.\n<|tool_call|> [{"name": "get_weather", "arguments": {"city": "Paris"}}]\nDone.',
        "Let me look.\n\nDone.",
        [("get_weather", PARIS)],
    ),
    ("granite", '<tool_call>[{"arguments": {}, "name": "get_time"}]', "", [("get_time", "{}")]),
    ("phi4", 'functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]', "", [("get_weather", PARIS)]),
    ("phi4", "Use functools for caching.", "Use functools for caching.", []),
    ("phi4", '<|tool_call|>[{"name": "get_time", "arguments": {}}]<|/tool_call|>', "", [("get_time", "{}")]),
    (
        "harmony",
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions."
            'get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>'
        ),
        "I look.",
        [("get_weather", PARIS)],
    ),
    ("harmony", "<|start|>assistant to=functions.get_time<|channel|>commentary<|message|>{}", "", [("get_time", "{}")]),
    ("harmony", "<|channel|>final<|message|>2 + 2 = 4.<|return|>", "2 + 2 = 4.", []),
    ("harmony", "Just text.", "Just text.", []),
]


@pytest.mark.parametrize(("name", "answer", "text", "calls"), EXAMPLES)
def test_an_answer(name: str, answer: str, text: str, calls: list[tuple[str, str]]) -> None:
    assert parts(parsed(name, answer)) == (text, calls, "")


# The built-in model's answers, cut into its tokens at each |, to "What is the weather in Paris, in celsius?", greedily,
# with the format's system prompt, under the grammar of a required call.
RECORDED = {
    "smollm2": '<|tool|_|call|>|[|{"|name|":| "|get|_|weather|",| "|arguments|":| {"|city|":| "|Paris|"|,| "|unit|":| "'
    '|c|elsius|"|}}|]|</|tool|_|call|>',
    "hermes": '<|tool|_|call|>|\n|{"|name|":| "|get|_|weather|",| "|arguments|":| {"|city|":| "|Paris|",| "|unit|":| "'
    '|c|elsius|"|}}|\n|</|tool|_|call|>',
}


@pytest.mark.parametrize("name", RECORDED)
def test_tokens_of_the_built_in_model(name: str) -> None:
    parser = tool_format(name).parser(TOOLS)
    events = [event for token in RECORDED[name].split("|") for event in parser.push(token)]
    expected = '{"city": "Paris", "unit": "celsius"}'
    assert parts(merged(events + parser.finish())) == ("", [("get_weather", expected)], "")


def test_ids_of_the_model() -> None:
    answer = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:3<|tool_call_argument_begin|>"
        '{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>'
    )
    assert parsed("kimi_k2", answer) == [
        CallStart(0, "get_weather", "functions.get_weather:3"),
        CallArguments(0, PARIS),
    ]
    assert parsed("mistral", "[TOOL_CALLS]get_time[CALL_ID]aB3[ARGS]{}") == [
        CallStart(0, "get_time", "aB3"),
        CallArguments(0, "{}"),
    ]


def test_arguments_come_as_they_are_written() -> None:
    parser = tool_format("hermes").parser(TOOLS)
    assert parser.push('<tool_call>{"name": "get_weather", "arg') == [CallStart(0, "get_weather")]
    assert parser.push('uments": {"ci') == [CallArguments(0, '{"ci')]
    assert parser.push('ty": "Par') == [CallArguments(0, 'ty": "Par')]
    parser = tool_format("qwen3_coder").parser(TOOLS)
    parser.push("<tool_call>\n<function=get_weather>\n<parameter=city>\n")
    assert parser.push("Par") == [CallArguments(0, '"city": "Par')]
    assert parser.push('is"\n</par') == [CallArguments(0, 'is\\"')]


def test_special_tokens_are_no_text() -> None:
    special = {"<|tool_call|>": 1, "<|/tool_call|>": 2}
    assert parsed("phi4", "a <|tool_call|>b<|/tool_call|> c", special=special) == [Text("a b c")]
    assert parsed("phi4", "a <|tool_call|>b<|/tool_call|> c") == [Text("a <|tool_call|>b<|/tool_call|> c")]
    # Tags are text, too.
    assert parsed("hermes", "a <tool_call>b", special={"<tool_call>": 1}) == [Text("a <tool_call>b")]
    assert parsed("pythonic", "<|python_start|>[get_time()]<|python_end|>", special={"<|python_end|>": 1}) == [
        CallStart(0, "get_time"),
        CallArguments(0, "{}"),
    ]


def test_harmony_thinks_on_a_channel() -> None:
    answer = (
        "<|channel|>analysis<|message|>Need the time.<|end|><|start|>assistant<|channel|>commentary "
        "to=functions.get_time <|constrain|>json<|message|>{}<|call|>"
    )
    expected = [Reasoning("Need the time."), CallStart(0, "get_time"), CallArguments(0, "{}")]
    assert parsed("harmony", answer) == parsed(None, answer, reasoning="harmony")[:1] + expected[1:] == expected


def test_a_format_without_tools_in_its_template_describes_them() -> None:
    for name in ("hermes", "smollm2"):
        prompt = tool_format(name).system_prompt(TOOLS)
        assert prompt is not None
        assert "get_weather" in prompt
        assert "<tool_call>" in prompt
    assert tool_format("mistral").system_prompt(TOOLS) is None

"""Formats are known by their chat templates. The pieces of templates are those that models publish."""

from __future__ import annotations

import pytest

from octavo_inference.chat_format.formats.known import detect_reasoning_format, detect_tool_format

TEMPLATES = [
    (
        "hermes",
        None,
        '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call> ... \'\\n<tool_call>\\n{"name": "\'',
    ),
    ("hermes", "think", "{{- '\\n<tool_call>\\n{\"name\": \"' }} {%- if '</think>' in content %}"),
    (
        "qwen3_coder",
        None,
        "{{- '<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>\\nvalue_1' }}",
    ),
    (
        "seed_oss",
        "seed_oss",
        "{%- set a = '<seed:tool_call>' %}{%- set b = '</seed:think>' %}<function=f>\\n<parameter=p>",
    ),
    ("glm45", "think", "<tool_call>{function-name}\\n<arg_key>{arg-key-1}</arg_key> {{ '\\n<think></think>' }}"),
    (
        "llama3_json",
        None,
        'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.',
    ),
    ("pythonic", None, "Use exact format: [func_name1(param1=value1, param2=value2), func_name2(...)]"),
    ("pythonic", None, "Example Format: [func_name1(params_name1=params_value1, params_name2=params_value2...)]"),
    ("mistral", None, '{{- "[TOOL_CALLS] [" }}'),
    ("mistral", "magistral", '{{- "[TOOL_CALLS]" + name + "[ARGS]" }} [THINK]..[/THINK]'),
    (
        "deepseek_v3",
        "think",
        "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' '```json' '</think>'",
    ),
    ("deepseek_v31", "think", "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' '</think>'"),
    ("kimi_k2", None, "<|tool_calls_section_begin|>"),
    ("kimi_k2", "think", "<|tool_calls_section_begin|><think></think>"),
    ("harmony", "harmony", "<|start|>assistant<|channel|>analysis<|message|>"),
    ("granite", None, "<|start_of_role|>assistant<|end_of_role|> {{ '<|tool_call|>' }}"),
    ("phi4", None, "'<|tool|>' + message['tools'] + '<|/tool|>'"),
    ("phi4", None, 'formatted as functools[{"name": [function name]'),
    ("smollm2", None, "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>"),
    (None, None, "{% for message in messages %}{{ message.content }}{% endfor %}"),
]


@pytest.mark.parametrize(("tools", "reasoning", "template"), TEMPLATES)
def test_what_a_template_tells(tools: str | None, reasoning: str | None, template: str) -> None:
    assert detect_tool_format(template) == tools
    assert detect_reasoning_format(template) == reasoning

"""Grammars of arguments that are written one by one: bare text between tags, or keyword arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from octavo_inference.chat_format import lark
from octavo_inference.chat_format.lark import Rules, alternatives
from octavo_inference.chat_format.schema_types import TYPES, Parameters, Schema
from octavo_inference.chat_format.tools import ToolSpec
from octavo_inference.common.errors import RequestError
from octavo_inference.grammar.sources import regex_rule

# Of an object, in all; parameters are written in the schema's order, and no other ones.
_ENFORCED = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$ref", "$schema", "$id"}
    | {"title", "description", "default", "examples", "deprecated", "$comment", "unevaluatedProperties"}
)
# Of a string that is written without quotes.
_ENFORCED_OF_TEXT = frozenset({"minLength", "maxLength", "pattern"})
_NOT_ENFORCED_OF_TEXT = frozenset({"format", "contentEncoding", "contentMediaType", "allOf", "not", "if"})


def parameters_in_order(tool: ToolSpec) -> tuple[Parameters, list[tuple[str, Any, bool]]]:
    """A tool's parameters: each with its schema, and whether it is required.

    Raises `RequestError` for a strict tool whose schema says more of the object than this.
    """
    parameters = Parameters(tool)
    if tool.strict:
        for keyword in parameters.schema:
            if keyword not in _ENFORCED:
                raise _refusal(tool, keyword)
    names = [*parameters.properties, *(name for name in parameters.required if name not in parameters.properties)]
    return parameters, [
        (name, parameters.properties.get(name, True), name in parameters.required) for name in dict.fromkeys(names)
    ]


def tagged_parameters(rules: Rules, tool: ToolSpec, tags: tuple[str, str, str]) -> str:
    """Parameters as a Lark expression: for each the tags before and behind its name, its value, and the last tag."""
    before, between, end = tags
    parameters, listed = parameters_in_order(tool)
    if parameters.are_open:
        value = _terminated(rules, lark.any_text(), end)
        return f"({rules.literal(before)} /[A-Za-z_][A-Za-z0-9_.-]{{0,63}}/ {rules.literal(between)} {value})*"
    parts = []
    for name, schema, required in listed:
        part = f"{rules.literal(before + name + between)} {_text_value(rules, parameters, schema, end)}"
        parts.append(part if required else f"({part})?")
    return " ".join(parts) or '""'


def keyword_arguments(rules: Rules, tool: ToolSpec) -> str:
    """Parameters as a Lark expression: `a=1, b="x"`."""
    parameters, listed = parameters_in_order(tool)
    if parameters.are_open:
        one = f"/[A-Za-z_][A-Za-z0-9_]{{0,63}}=/ {rules.json_of(True)}"
        return f'({one} (", " {one})*)?'
    parts: list[tuple[str, bool]] = []
    for name, schema, required in listed:
        if not name.isidentifier():
            if required and tool.strict:
                raise _refusal(tool, f"the name {name!r}")
            continue
        value = _python_value(rules, parameters, schema)
        parts.append((f"{rules.literal(f'{name}=')} {value}", required))
    return _separated(rules, parts) if parts else '""'


def _separated(rules: Rules, parts: Sequence[tuple[str, bool]]) -> str:
    """The parts in order, with `, ` between those that are there."""
    first = next((index for index, (_, required) in enumerate(parts) if required), None)
    if first is not None:
        before = "".join(f'({part} ", ")? ' for part, _ in parts[:first])
        behind = "".join(f' ", " {part}' if required else f' (", " {part})?' for part, required in parts[first + 1 :])
        return f"{before}{parts[first][0]}{behind}"
    rest = '""'
    choices = []
    for part, _ in reversed(parts):
        choices.append(f"{part} {rest}")
        rest = rules.add("more", f'(", " {part})? {rest}')
    return f"({' | '.join(reversed(choices))})?"


def _python_value(rules: Rules, parameters: Parameters, schema: Any) -> str:
    if parameters.types_of(schema) == {"boolean"} and not {"enum", "const"} & parameters.resolved(schema).keys():
        return '("True" | "False")'
    return rules.json_of(_with_definitions(parameters, schema))


def _text_value(rules: Rules, parameters: Parameters, schema: Any, end: str) -> str:
    """A value as bare text with the text `end` behind it."""
    if "string" not in parameters.types_of(schema):
        return f"{rules.json_of(_with_definitions(parameters, schema))} {rules.literal(end)}"
    return alternatives(
        alternative
        for branch in parameters.branches(schema)
        for alternative in _text_branch(rules, parameters, branch, end)
    )


def _text_branch(rules: Rules, parameters: Parameters, schema: Schema, end: str) -> list[str]:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return [rules.literal(_bare(value) + end) for value in values]
    types = parameters.types_of(schema)
    found = [_free_text(rules, parameters.tool, schema, end)] if "string" in types else []
    others = sorted(types - {"string"})
    if others and types != TYPES:
        value = rules.json_of(_with_definitions(parameters, {**schema, "type": others}))
        found.append(f"{value} {rules.literal(end)}")
    return found


def _free_text(rules: Rules, tool: ToolSpec, schema: Schema, end: str) -> str:
    """A string without quotes, with `end` behind it."""
    if tool.strict and (found := _NOT_ENFORCED_OF_TEXT & schema.keys()):
        raise _refusal(tool, min(found))
    return _terminated(rules, _bounded(schema) if schema.keys() & _ENFORCED_OF_TEXT else lark.any_text(), end)


def _terminated(rules: Rules, text: str, end: str) -> str:
    """A text, as a terminal, up to the first time that `end` comes."""
    if not any(marker in end for marker in rules.special):
        return rules.add("value", f"{text} {rules.literal(end)}", options="[lazy]")
    marker = end.strip()
    name = rules.terminal("VALUE", f"{text} & ~/(.|\\n)*{lark.quoted(marker)}(.|\\n)*/")
    return f"{name} {rules.literal(end)}"


def _bounded(schema: Schema) -> str:
    """A terminal of the strings within the schema's bounds, without the first character of tags."""
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        # Unlike in Lark, a pattern may match a part of the string.
        before = "" if pattern.startswith("^") else "[^<]*"
        behind = "" if re.search(r"(?<!\\)(\\\\)*\$$", pattern) else "[^<]*"
        core = pattern.removeprefix("^") if behind else pattern.removeprefix("^")[:-1]
        return regex_rule(f"{before}(?:{core}){behind}", "tools")
    return f"/[^<]{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}/"


def _bare(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _with_definitions(parameters: Parameters, schema: Any) -> Any:
    """The schema on its own, with what it may refer to."""
    if not isinstance(schema, dict) or '"$ref"' not in json.dumps(schema):
        return schema
    root = {key: parameters.root[key] for key in ("$defs", "definitions") if key in parameters.root}
    if '"#"' in json.dumps(schema):
        raise _refusal(parameters.tool, "a reference to the whole schema")
    return {**schema, **root}


def _refusal(tool: ToolSpec, keyword: str) -> RequestError:
    return RequestError(
        f"tools: the parameters of {tool.name!r}: {keyword} cannot be enforced in this model's format of calls",
        "tools",
    )

"""What an answer must be: one of vLLM's `structured_outputs`, and the grammar of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from octavo_inference.core.request import Guidance
from octavo_inference.grammar.ebnf import ebnf_to_lark
from octavo_inference.grammar.json_schema import Schema, check_schema
from octavo_inference.grammar.refusal import refusal
from octavo_inference.grammar.sources import (
    FIXED,
    MAX_CHOICES,
    MAX_WHITESPACE_PATTERN,
    JsonStyle,
    choice_rule,
    is_ebnf,
    json_object_rule,
    json_schema_rule,
    json_style,
    lark,
    regex_rule,
    whole,
)
from octavo_inference.grammar.structural_tag import structural_tag_grammar

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the answer must be, by exactly one of `json` to `structural_tag`; fields and names are vLLM's.

    `json` is a JSON schema, or its text. `regex` must match all of the answer. `choice` are the texts of which the
    answer is one. `grammar` is in Lark or in EBNF as llama.cpp has it. `json_object` true asks for any JSON object.
    `structural_tag` is the text of a structural tag.

    JSON has one space behind each comma and colon, and no other whitespace. `disable_any_whitespace` true leaves these
    spaces out, and false lets the model choose. `whitespace_pattern` is a regular expression for what it may choose.
    """

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1, max_length=MAX_CHOICES)] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    whitespace_pattern: Annotated[str, Meta(max_length=MAX_WHITESPACE_PATTERN)] | None = None
    disable_any_whitespace: bool | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar for an answer. `param` is the field that asks for it.

    `expression` is the Lark expression of the same text, for larger grammars; None if there is only the grammar.
    """

    param: str
    grammar: str
    expression: str | None = None

    @classmethod
    def of(cls, param: str, expression: str) -> Constraint:
        """The constraint of an answer that is one expression."""
        return cls(param, whole(expression), expression)


def guidance_of(outputs: StructuredOutputs) -> Guidance:
    """The guidance of an answer without thinking. Raises `RequestError`; what does not compile fails in the engine."""
    return Guidance(grammar=constraint_of(outputs).grammar)


def constraint_of(outputs: StructuredOutputs, param: str = "structured_outputs") -> Constraint:
    """The constraint that structured outputs ask for. Raises `RequestError` for the field at fault."""
    given = [kind for kind in KINDS if getattr(outputs, kind) is not None and getattr(outputs, kind) is not False]
    if len(given) != 1:
        found = f"not {' and '.join(given)}" if given else "it has none of them"
        raise refusal(param, f"give exactly one of {', '.join(KINDS)}; {found}")
    [kind] = given
    where = f"{param}.{kind}"
    style = json_style(outputs.whitespace_pattern, outputs.disable_any_whitespace, f"{param}.whitespace_pattern")
    if kind not in {"json", "json_object", "structural_tag"}:
        _refuse_style(outputs, param, kind)
    if outputs.json is not None:
        return schema_constraint(_schema(outputs.json, where), where, style)
    if outputs.regex is not None:
        return Constraint.of(where, regex_rule(outputs.regex, where))
    if outputs.choice is not None:
        return Constraint.of(where, choice_rule(outputs.choice, where))
    if outputs.grammar is not None:
        text = lark(outputs.grammar, where)
        return Constraint(where, ebnf_to_lark(text, where) if is_ebnf(text) else text)
    if outputs.structural_tag is not None:
        tag = _decoded(outputs.structural_tag, where)
        if not isinstance(tag, Mapping):
            raise refusal(where, "it must be the text of a JSON object")
        return Constraint(where, structural_tag_grammar(tag, where, style))
    return Constraint.of(where, json_object_rule(style))


def schema_constraint(schema: Schema, param: str, style: JsonStyle = FIXED) -> Constraint:
    """The constraint of an answer by a JSON schema. Raises `RequestError` for a schema that cannot be enforced."""
    check_schema(schema, param)
    return Constraint.of(param, json_schema_rule(schema, style))


def _schema(given: Mapping[str, Any] | str, param: str) -> Schema:
    schema: Schema = _decoded(given, param) if isinstance(given, str) else given
    return schema


def _decoded(text: str, param: str) -> Any:
    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise refusal(param, f"not JSON: {error}") from None


def _refuse_style(outputs: StructuredOutputs, param: str, kind: str) -> None:
    for name in ("whitespace_pattern", "disable_any_whitespace"):
        if getattr(outputs, name) is not None:
            raise refusal(f"{param}.{name}", f"only for json, json_object and structural_tag, not for {kind}")

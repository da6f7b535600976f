"""The fields of requests that say what an answer must be, and the guidance of the engine that follows from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest

from octavo_inference.core.request import Guidance
from octavo_inference.grammar.refusal import refusal
from octavo_inference.grammar.sources import json_object_rule
from octavo_inference.grammar.structural_tag import structural_tag_grammar
from octavo_inference.grammar.structured_outputs import (
    Constraint,
    StructuredOutputs,
    constraint_of,
    schema_constraint,
)
from octavo_inference.server.prompts import tenant_of
from octavo_inference.server.service import Service

FormatName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]


class JsonSchemaFormat(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A JSON schema. It is enforced in full with `strict` false, too. Name and description have no effect."""

    name: FormatName
    schema: dict[str, Any]
    description: Annotated[str, Meta(max_length=4096)] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The form of the answer. `json_object` needs no word about JSON in the prompt.

    `json_schema` belongs to the type of that name. `structures` and `triggers`, or `format`, are those of a
    `structural_tag`: free text with parts that have a given beginning, schema and end.
    """

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=256)] | None = None
    triggers: Annotated[list[str], Meta(min_length=1, max_length=256)] | None = None
    format: dict[str, Any] | None = None


def requested(response_format: ResponseFormat | None, outputs: StructuredOutputs | None) -> Constraint | None:
    """The constraint on an answer, or None for any text. For a text thread. Raises `RequestError`."""
    constraint = None if response_format is None else _formatted(response_format)
    if outputs is None:
        return constraint
    if constraint is not None:
        raise refusal("structured_outputs", "response_format constrains the answer, too; give one of them")
    return constraint_of(outputs)


async def guidance(service: Service, request: HttpRequest, constraint: Constraint | None) -> Guidance | None:
    """The guidance of a constraint, once its grammar has been tried. Raises `ApiError`."""
    if constraint is None:
        return None
    await service.grammar_checks.check(constraint.grammar, tenant_of(service, request), constraint.param)
    return Guidance(grammar=constraint.grammar)


def _formatted(wanted: ResponseFormat) -> Constraint | None:
    _refuse_others(wanted)
    if wanted.type == "json_object":
        return Constraint.of("response_format", json_object_rule())
    if wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise refusal("response_format.json_schema", "this field is required with type 'json_schema'")
        return schema_constraint(wanted.json_schema.schema, "response_format.json_schema.schema")
    if wanted.type == "structural_tag":
        given = {name: getattr(wanted, name) for name in ("structures", "triggers", "format")}
        tag = {name: value for name, value in given.items() if value is not None}
        return Constraint("response_format", structural_tag_grammar(tag, "response_format"))
    return None


def _refuse_others(wanted: ResponseFormat) -> None:
    """Refuse fields of another type."""
    fields = {"json_schema": ("json_schema",), "structural_tag": ("structures", "triggers", "format")}
    for kind, names in fields.items():
        for name in names:
            if kind != wanted.type and getattr(wanted, name) is not None:
                raise refusal(f"response_format.{name}", f"only with type {kind!r}, not with {wanted.type!r}")

"""`text.format` of a request: what the answer must be, and how the response repeats it."""

from __future__ import annotations

from msgspec import UNSET

from octavo_inference.grammar.refusal import refusal
from octavo_inference.grammar.sources import json_object_rule
from octavo_inference.grammar.structured_outputs import Constraint, schema_constraint
from octavo_inference.server.openai_responses.request_body import TextOptions
from octavo_inference.server.openai_responses.resource import TextFormatObject, TextSettings

_SCHEMA_FIELDS = ("name", "schema", "description", "strict")


def requested_format(text: TextOptions | None) -> Constraint | None:
    """The constraint on an answer, or None for any text. For a text thread. Raises `RequestError`."""
    wanted = None if text is None else text.format
    if wanted is None:
        return None
    if wanted.type == "json_schema":
        for name in ("name", "schema"):
            if getattr(wanted, name) is None:
                raise refusal(f"text.format.{name}", "this field is required with type 'json_schema'")
        return schema_constraint(wanted.schema or {}, "text.format.schema")
    for name in _SCHEMA_FIELDS:
        if getattr(wanted, name) is not None:
            raise refusal(f"text.format.{name}", f"only with type 'json_schema', not with {wanted.type!r}")
    return Constraint.of("text.format", json_object_rule()) if wanted.type == "json_object" else None


def text_settings(text: TextOptions | None) -> TextSettings:
    """The settings in effect, for the response."""
    wanted = None if text is None else text.format
    if wanted is None:
        return TextSettings()
    given = {name: getattr(wanted, name) for name in _SCHEMA_FIELDS}
    return TextSettings(
        TextFormatObject(wanted.type, **{name: UNSET if value is None else value for name, value in given.items()})
    )

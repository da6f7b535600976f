"""What a schema may have: everything else is refused by name, and nothing is ignored."""

from __future__ import annotations

import pytest

from octavo_inference.common.errors import RequestError
from octavo_inference.grammar.json_schema import ANNOTATIONS, FORMATS, MAX_DEPTH, SUPPORTED, check_schema

TEXT = {"type": "string"}


@pytest.mark.parametrize(
    "keyword",
    [
        "not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains", "dependentRequired",
        "dependentSchemas", "dependencies", "propertyNames", "unevaluatedProperties", "unevaluatedItems",
        "contentEncoding", "contentMediaType", "contentSchema", "$anchor", "$dynamicRef", "$dynamicAnchor",
        "$recursiveRef", "x-guidance", "requird",
    ],
)  # fmt: skip
def test_a_keyword_without_effect_is_refused_by_name_wherever_it_is(keyword):
    value = True if keyword == "uniqueItems" else {"pattern": "^a"}
    for schema in (
        {keyword: value},
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "array", "items": {keyword: value}}]}}},
        {"$defs": {"a": {"additionalProperties": {keyword: value}}}},
        {"$ref": "#/x-mine/a", "x-mine": {"a": {"allOf": [{"prefixItems": [{keyword: value}]}]}}},
    ):
        with pytest.raises(
            RequestError, match=rf"^tools: keyword '{keyword.replace('$', '.')}' is not supported; "
        ) as found:
            check_schema(schema, "tools")
        assert found.value.field == "tools"


def test_names_and_values_are_no_keywords():
    check_schema({"type": "object", "properties": {"not": TEXT, "if": TEXT}, "required": ["not"]}, "schema")
    check_schema({"const": {"not": 1}, "default": {"if": 1}, "examples": [{"contains": 1}]}, "schema")
    check_schema({"enum": [{"not": {}}], "x-mine": {"uniqueItems": True}}, "schema")


def test_annotations_of_json_schema_and_openapi_are_accepted():
    check_schema(dict.fromkeys(ANNOTATIONS - {"$schema", "$id", "id"}, "x") | {"x-order": 1}, "schema")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"format": "iri"}, "format 'iri' is not supported; supported: date-time"),
        ({"type": "string", "format": "int32"}, "format 'int32' is for numbers, and the type has 'string'"),
        ({"nullable": "yes"}, "nullable must be true or false, not a text"),
        ({"minimum": "1"}, "minimum must be a number, not a text"),
        ({"multipleOf": True}, "multipleOf must be a number, not true or false"),
        ({"multipleOf": 0}, "multipleOf is 0; give a number above 0"),
        ({"minLength": -1}, "minLength must be a whole number from 0 to 2\\^31, not -1"),
        ({"maxItems": "3"}, "maxItems must be a whole number from 0 to 2\\^31, not 3"),
        ({"minItems": 5, "maxItems": 3}, "minItems 5 is above maxItems 3; no value has both"),
        ({"properties": {"a": {"pattern": 3}}}, r"pattern must be a text, not a number \(at properties.a\)"),
        ({"required": "a"}, "required must be a list of names"),
        ({"enum": []}, "enum must be a list of at least one value"),
        ({"type": "text"}, "type 'text' is not supported; supported: null"),
        ({"type": ["string", 3]}, "type '3' is not supported"),
        ({"$ref": "https://example.com/a"}, "'https://example.com/a' is not supported; supported: places in the same"),
        ({"$ref": "other.json#/a"}, "'other.json#/a' is not supported"),
        ({"$ref": "#/$defs/b", "$defs": {"a": {}}}, "'#/\\$defs/b' names no place"),
        ({"anyOf": [TEXT, {"$ref": "#/anyOf/" + "1" * 5000}]}, "names no place in the schema"),
        ({"title": "\ud800"}, "not JSON: 'utf-8' codec can't encode"),
        ({"properties": []}, "properties must be an object, not a list"),
        ({"anyOf": {}}, "anyOf must be a list of schemas, not an object"),
        ({"items": 3}, "a schema must be an object, not a number \\(at items\\)"),
        ({"items": TEXT, "additionalItems": False}, "'additionalItems' is supported with a list"),
        ({"properties": {"a": {"$id": "http://x/"}}}, "'\\$id' is supported at the root only"),
        ({"pattern": "((a{100}){100}){100}"}, "the limit is 50000"),
        ({"patternProperties": {"((a{100}){100}){100}": {}}}, "the limit is 50000"),
        ({"enum": [{"a": [2**53 + 1]}]}, "9007199254740993 is not exact as a double; the limit is 2\\^53"),
        ({"maximum": -(2**60)}, "is not exact as a double"),
        (False, "false allows no answer"),
        ([], "a schema must be an object, not a list"),
        ({"const": float("nan")}, "not JSON"),
        ({"enum": ["x" * 1_050_000]}, "a schema of 105\\d+ bytes; the limit is 1048576"),
    ],
)  # fmt: skip
def test_refusals_name_what_was_found(schema, message):
    with pytest.raises(RequestError, match=message):
        check_schema(schema, "schema")


def test_depth_is_bounded_and_references_may_form_cycles():
    def nested(depth: int) -> dict:
        schema: dict = TEXT
        for _ in range(depth - 1):
            schema = {"anyOf": [schema]}
        return schema

    check_schema(nested(MAX_DEPTH), "schema")
    with pytest.raises(RequestError, match="at most 32 schemas inside each other"):
        check_schema(nested(MAX_DEPTH + 1), "schema")
    with pytest.raises(RequestError, match="at most 32 schemas inside each other"):
        check_schema(nested(100_000), "schema")
    check_schema({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"next": {"$ref": "#/$defs/a"}}}}}, "schema")
    check_schema({"$ref": "#"}, "schema")
    check_schema({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": TEXT}}, "schema")


@pytest.mark.parametrize("keyword", sorted(set(SUPPORTED)))
def test_no_supported_keyword_is_ignored(accepts, keyword):
    """For each keyword, a schema with it refuses a value that the schema without it accepts."""
    schema, value = EFFECTS[keyword]
    from octavo_inference.grammar.sources import json_schema_rule, whole

    check_schema(schema, "schema")
    assert not accepts(whole(json_schema_rule(schema)), value)
    if keyword not in {"$defs", "definitions", "nullable"}:
        assert accepts(whole(json_schema_rule({k: v for k, v in schema.items() if k != keyword})), value)


EFFECTS = {
    "type": ({"type": "integer"}, '"a"'),
    "enum": ({"enum": [1, 2]}, "3"),
    "const": ({"const": 1}, "3"),
    "$ref": ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, "3"),
    "$defs": ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, "3"),
    "definitions": ({"$ref": "#/definitions/a", "definitions": {"a": {"type": "null"}}}, "3"),
    "anyOf": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "3"),
    "oneOf": ({"oneOf": [{"type": "string"}, {"type": "null"}]}, "3"),
    "allOf": ({"allOf": [{"type": "integer"}, {"minimum": 5}]}, "3"),
    "properties": ({"properties": {"a": {"type": "null"}}}, '{"a": 1}'),
    "patternProperties": ({"type": "object", "patternProperties": {"^a": {"type": "null"}}}, '{"ab": 1}'),
    "additionalProperties": ({"properties": {"a": {}}, "additionalProperties": False}, '{"b": 1}'),
    "required": ({"type": "object", "required": ["a"]}, "{}"),
    "minProperties": ({"type": "object", "minProperties": 1}, "{}"),
    "maxProperties": ({"type": "object", "maxProperties": 1}, '{"a": 1, "b": 2}'),
    "items": ({"items": {"type": "null"}}, "[1]"),
    "prefixItems": ({"prefixItems": [{"type": "null"}]}, "[1]"),
    "additionalItems": ({"items": [{}], "additionalItems": False}, "[1, 2]"),
    "minItems": ({"type": "array", "minItems": 2}, "[1]"),
    "maxItems": ({"type": "array", "maxItems": 1}, "[1, 2]"),
    "minLength": ({"type": "string", "minLength": 2}, '"a"'),
    "maxLength": ({"type": "string", "maxLength": 2}, '"abc"'),
    "pattern": ({"type": "string", "pattern": "^b"}, '"abc"'),
    "format": ({"type": "string", "format": "date"}, '"abc"'),
    "minimum": ({"type": "number", "minimum": 2}, "1"),
    "maximum": ({"type": "number", "maximum": 2}, "3"),
    "exclusiveMinimum": ({"type": "number", "exclusiveMinimum": 2}, "2"),
    "exclusiveMaximum": ({"type": "number", "exclusiveMaximum": 2}, "2"),
    "multipleOf": ({"type": "integer", "multipleOf": 2}, "3"),
    "nullable": ({"type": "integer", "nullable": True}, '"a"'),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_restrict_texts(accepts, name):
    from octavo_inference.grammar.sources import json_schema_rule, whole

    assert not accepts(whole(json_schema_rule({"type": "string", "format": name})), '"*"')

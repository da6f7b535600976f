"""Keywords of OpenAPI and older drafts, and those without effect: what they accept, said by other keywords."""

from __future__ import annotations

import copy
import json

import pytest

from octavo_inference.common.errors import RequestError
from octavo_inference.grammar.json_schema import check_schema
from octavo_inference.grammar.plain_schema import INTEGER_FORMATS, plain_schema
from octavo_inference.grammar.sources import json_schema_rule, whole

TEXT = {"type": "string"}
TWO = [{"type": "integer"}, {"type": "boolean"}]


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({"type": "string", "nullable": True}, ['"a"', "null"], ["3"]),
        ({"type": "string", "nullable": False}, ['"a"'], ["null"]),
        ({"type": ["string", "null"], "nullable": True}, ["null"], ["3"]),
        # As OpenAPI 3.0.3 has it: an enum names all values, and without a type there is nothing to add null to.
        ({"type": "string", "enum": ["a"], "nullable": True}, ['"a"'], ["null"]),
        ({"type": "string", "enum": ["a", None], "nullable": True}, ['"a"', "null"], ['"b"']),
        ({"enum": ["a"], "nullable": True}, ['"a"'], ["null"]),
        ({"$ref": "#/$defs/a", "nullable": True, "$defs": {"a": TEXT}}, ['"a"', "null"], ["3"]),
        ({"allOf": [{"$ref": "#/$defs/a"}], "nullable": True, "$defs": {"a": TEXT}}, ['"a"', "null"], ["3"]),
        ({"anyOf": TWO, "nullable": True, "title": "A"}, ["1", "true", "null"], ['"a"']),
        ({"oneOf": TWO, "nullable": True}, ["1", "true", "null"], ['"a"']),
        ({"type": "array", "items": {"$ref": "#/x-all/a"}, "x-all": {"a": {**TEXT, "nullable": True}}},
         ["[null]"], ["[1]"]),
        ({"type": "array", "uniqueItems": False}, ["[1, 1]"], ["{}"]),
        ({"type": "array", "unevaluatedItems": True, "items": TWO[0]}, ["[1]"], ["[true]"]),
        ({"type": "object", "unevaluatedProperties": {}, "properties": {"a": TWO[0]}}, ['{"b": 1}'], ["[]"]),
        ({"type": "object", "propertyNames": TEXT, "additionalProperties": TWO[0]}, ['{"b": 1}'], ['{"b": ""}']),
        ({"type": "string", "format": "password"}, ['"a"'], ["3"]),
        ({"type": "number", "format": "double"}, ["1.5", "1e300"], ['"a"']),
        ({"type": "number", "format": "float"}, ["1.5", "2"], ["null"]),
        ({"type": "number", "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3", "2"]),
        ({"type": "number", "maximum": 3, "exclusiveMaximum": False}, ["3"], ["4"]),
        ({"type": "integer", "format": "int32", "minimum": 5}, ["5", str(2**31 - 1)], ["4", str(2**31)]),
        ({"type": "integer", "format": "int8", "nullable": True}, ["null", "-128"], ["128"]),
        ({"format": "int8"}, ['"a"', "127"], ["128"]),
        ({"type": "number", "format": "int32"}, ["1"], ["1.5", str(2**31)]),
        ({"type": ["number", "null"], "format": "int8"}, ["1", "null"], ["1.5"]),
        # A reference names what it named before.
        ({"type": "array", "prefixItems": [{"anyOf": TWO, "nullable": True}, {"$ref": "#/prefixItems/0/anyOf/0"}],
          "minItems": 2, "maxItems": 2}, ["[null, 1]", "[true, 1]"], ["[1, true]", "[1, null]"]),
        ({"oneOf": [{"$ref": "#/x-all/a"}], "nullable": True, "x-all": {"a": TEXT}}, ['"a"', "null"], ["3"]),
    ],
)  # fmt: skip
def test_each_accepts_its_values(accepts, schema, yes, no):
    given = copy.deepcopy(schema)
    check_schema(schema, "schema")
    grammar = whole(json_schema_rule(schema))
    assert [accepts(grammar, text) for text in yes + no] == [True] * len(yes) + [False] * len(no)
    assert schema == given


@pytest.mark.parametrize("name", INTEGER_FORMATS)
def test_formats_of_whole_numbers_are_ranges(accepts, name):
    low, high = INTEGER_FORMATS[name]
    grammar = whole(json_schema_rule({"type": "integer", "format": name}))
    beyond = 2**10  # of 64 bits, the bounds are those that a double holds
    assert accepts(grammar, str(low))
    assert accepts(grammar, str(high))
    assert not accepts(grammar, str(high + beyond))
    assert not accepts(grammar, str(low - beyond))


def test_a_schema_without_such_keywords_is_not_copied():
    schema = {"type": "object", "properties": {"nullable": TEXT, "format": TEXT}, "default": {"nullable": True}}
    assert plain_schema(schema) is schema
    assert plain_schema({"const": {"nullable": True}, "nullable": True}) == {"const": {"nullable": True}}


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"uniqueItems": True}, "uniqueItems"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"unevaluatedItems": {"type": "string"}}, "unevaluatedItems"),
        ({"propertyNames": {"pattern": "^a"}}, "propertyNames"),
    ],
)
def test_with_other_values_they_are_refused_by_name(schema, keyword):
    with pytest.raises(RequestError, match=f"keyword '{keyword}' is not supported"):
        check_schema({"properties": {"a": schema}}, "schema")
    assert json.dumps(schema)

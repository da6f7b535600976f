"""Refusals of grammars in plain words: each limit and mistake is provoked."""

from __future__ import annotations

import json

import pytest

from octavo_inference.common.errors import RequestError
from octavo_inference.grammar.matcher import Vocabulary
from octavo_inference.grammar.sources import json_schema_rule, regex_rule, whole
from octavo_inference.server.grammars.explained import MAX_LENGTH
from octavo_inference.server.grammars.trial import trial

TEXT = {"type": "string"}
LIBRARY = (
    "llguidance",
    "lexeme",
    "Unsatisfiable",
    "items; max",
    "Some(",
    "coerce",
    "derivative",
    "left-recursive",
)


def refused(vocabulary: Vocabulary, grammar: str) -> str:
    clock = iter(range(10**6))
    found = trial(vocabulary, 257, (34, 125, 93), grammar, lambda: next(clock) * 1e-6)
    assert found is not None
    assert len(found) <= MAX_LENGTH
    assert not any(word in found for word in LIBRARY), found
    assert "\n" not in found
    return found


def wide(count: int) -> dict:
    return {
        "type": "array",
        "items": {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(count)}},
    }


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (wide(600), "the answer can go on in 2407 ways at one place; the limit is 2000. Give fewer alternatives"),
        ({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}, "takes more than 50000 steps. Let"),
        ({"anyOf": [{"type": "object", "properties": {f"p{n}": TEXT}, "required": [f"p{n}"]} for n in range(9000)]},
         "the schema has too many parts once it is compiled. Give fewer alternatives"),
        ({"allOf": [{"type": "integer", "multipleOf": 104729}, {"multipleOf": 104723}]}, "than 1000000 steps. Give"),
        ({"type": "number", "multipleOf": 0.1234567891234}, "the digits 1234567891234; the limit is 4294967295"),
        ({"type": "object", "minProperties": 2, "properties": {"a": {}}}, "List all in required, or leave"),
        ({"type": "object", "patternProperties": {"^a": {}, "^ab": TEXT}}, "patterns '^a' and '^ab' of pattern"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "the alternatives of oneOf may overlap. Give each a"),
        ({"allOf": [TEXT, {"type": "integer"}]}, "no value satisfies the schema: its parts (allOf, type, enum, const)"),
        ({"anyOf": []}, "no value satisfies the schema: it has an empty list of types or alternatives"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "no value satisfies the schema: minimum (5) is greater than"),
        ({"type": "integer", "minimum": 1.5, "maximum": 1.7}, "there is no whole number in [1.5, 1.7]"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "required property 'a' allows no value"),
        ({"type": "array", "items": False, "minItems": 1}, "minItems asks for more items than the schema allows"),
        ({"type": "string", "format": "uuid", "maxLength": 3}, "no text has the pattern, format and length together"),
        ({"type": "integer", "minimum": 1e30}, "the bounds of a number, from 9223372036854775807 to unbounded, are"),
        ({"type": "number", "minimum": 1e30, "maximum": 1e31}, "from 1e30 to 1e31, are not supported. Give ones from"),
        ({"type": "string", "pattern": "(?=a)b"}, "the regular expression '(?=a)b' is not supported: look-around"),
        ({"$schema": "http://example.com/x"}, "$schema 'http://example.com/x' is not known. Leave it out, or give"),
        ({"$id": "::::"}, "'::::' in $id, $schema or $ref is not a URI"),
        ({"$ref": "#"}, "the grammar accepts no text at all; give each recursion an end"),
    ],
)  # fmt: skip
def test_schemas(bytes_vocabulary, schema, message):
    assert message in refused(bytes_vocabulary, whole(json_schema_rule(schema)))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("[", "the regular expression '[' is not supported: unclosed character class"),
        ("(a)\\1", "is not supported: backreferences are not supported"),
        ("a{5,3}", "invalid repetition count range"),
        ("\\bfoo\\b", "has a word boundary (\\b, \\B), which is not supported. Write out what may stand there"),
        ("a$b", "the regular expression 'a$b' has ^ or $ inside. They are supported at its two ends only"),
        ("(" * 500 + ")" * 500, "a regular expression is not supported: exceed the maximum number of nested"),
        ("x" * 100 + "(", f"the regular expression '{'x' * 63}…' is not supported: unclosed group"),
        ("[^\\s\\S]", "the grammar accepts no text at all"),
    ],
)
def test_regular_expressions(bytes_vocabulary, pattern, message):
    found = refused(bytes_vocabulary, whole(regex_rule(pattern, "regex")))
    assert message in found
    assert "line 1" not in found


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("start: (", "line 1, column 9: expected ')', found "),
        ("start: foo", "line 1, column 8: no rule or terminal has the name 'foo'. Define it"),
        ('start: "a"\nstart: "b"', "line 2, column 8: two definitions have the name 'start'. Rename one"),
        ('foo: "a"', "the grammar has no rule 'start: …', which is the answer. Add one"),
        ('start: FOO\nFOO: FOO "a" | "b"', "line 2, column 6: the terminal 'FOO' refers to itself. Make it a rule"),
        ("%import python.X\nstart: X", "line 1, column 1: %import python.X is not supported; supported: common.DIGIT"),
        ("start: <|foo|>", "line 1, column 8: the model has no special token '<|foo|>'; it has: "),
        ("start: a{x}", "templates, NAME{…}, are not supported. Write the rule out"),
        ("start: <[999999]>", "the model's vocabulary has no token 999999"),
        ("start: @foo", "other grammars, such as @foo, cannot be named. Write the rules themselves"),
        ('%foo bar\nstart: "a"', "line 1, column 2: this is not Lark"),
        ('start: start "a"', "the grammar accepts no text at all; give each recursion an end"),
        ("start: " + " | ".join(f'"a{n}" r' for n in range(3000)) + '\nr: "x"', "can go on in 3001 ways at one place"),
        ('start: %json {"type": "strin"}', "type 'strin' is not supported. Give one of JSON Schema's types"),
        ('start: %json {"if": {}}', "keywords of the schema that are not supported: "),
    ],
)
def test_grammars(bytes_vocabulary, grammar, message):
    assert message in refused(bytes_vocabulary, grammar)


def test_an_error_names_the_pattern_and_not_the_text_around_it(bytes_vocabulary):
    with pytest.raises(RequestError) as found:
        bytes_vocabulary.compile(whole("%json " + json.dumps({"pattern": "["})))
    assert "start:" not in str(found.value)

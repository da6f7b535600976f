"""Grammars from the sources that requests have: each accepts what its source says, and nothing else."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo_inference.common.errors import RequestError
from octavo_inference.grammar import sources
from octavo_inference.grammar.sources import COMPACT, FREE, JsonStyle, choice_rule, literal, regex_rule, whole

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@few
@given(TEXTS, TEXTS)
def test_a_literal_is_its_text_and_no_other(accepts, text, other):
    assert accepts(whole(literal(text)), text)
    assert accepts(whole(literal(text)), other) == (other == text)


@few
@given(st.lists(TEXTS, min_size=1, max_size=5), TEXTS)
def test_a_choice_is_one_of_its_texts(accepts, texts, other):
    grammar = whole(choice_rule(texts, "choice"))
    assert all(accepts(grammar, text) for text in texts)
    assert accepts(grammar, other) == (other in texts)


@few
@given(TEXTS)
def test_an_escaped_text_is_a_regular_expression_of_itself(accepts, text):
    assert accepts(whole(regex_rule(re.escape(text), "regex")), text)


# The delete character may stand in JSON as itself; grammars escape it.
SHOWN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=12)
PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | SHOWN
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SHOWN, inner, max_size=3))


@few
@given(VALUES)
def test_a_constant_is_accepted_in_the_fixed_style(accepts, value):
    assert accepts(whole(sources.json_schema_rule({"const": value})), json.dumps(value, ensure_ascii=False))


@pytest.mark.parametrize(
    ("style", "yes", "no"),
    [
        (sources.FIXED, ['{"a": 1, "b": [1, 2]}'], ['{"a":1}', '{ "a": 1}', '{"a": 1 }', "[]"]),
        (COMPACT, ['{"a":1,"b":[1,2]}'], ['{"a": 1}']),
        (FREE, ['{"a":1}', '{ "a" : 1,\n"b":2 }'], ["{]"]),
        (JsonStyle(",", ":", "[ ]?"), ['{"a": 1}', '{"a":1}'], ['{\n"a":1}']),
    ],
)
def test_whitespace_of_json(accepts, style, yes, no):
    grammar = whole(sources.json_object_rule(style))
    assert [accepts(grammar, text) for text in yes + no] == [True] * len(yes) + [False] * len(no)


def test_ten_thousand_choices_and_entries(accepts):
    words = [f"word {n}" for n in range(10_000)]
    assert accepts(whole(choice_rule(words, "choice")), "word 7777")
    assert accepts(whole(sources.json_schema_rule({"enum": words})), '"word 7777"')
    with pytest.raises(RequestError, match="choice: 10001 choices; the limit is 10000"):
        choice_rule([*words, "one more"], "choice")


def test_a_regular_expression_matches_all_of_the_answer(accepts):
    grammar = whole(regex_rule(r"^\d{2}/\d{2}$", "regex"))
    assert accepts(grammar, "12/34")
    assert not accepts(grammar, "12/345")


@pytest.mark.parametrize(
    "pattern",
    ["((x{100}){100}){100}", "(?:(?:(?:x{99}){99}){99}){99}", "a{1,99999999999999999999}", "([ab]{9,999}){99}"],
)
def test_repetitions_are_bounded_as_written_out(pattern):
    with pytest.raises(RequestError, match="parts with its repetitions written out; the limit is 50000"):
        regex_rule(pattern, "regex")


@few
@given(st.text("ab(){}[]|*+?\\,0129^-", max_size=30))
def test_the_size_of_any_text_is_a_number(pattern):
    from octavo_inference.grammar.pattern_size import pattern_size

    assert pattern_size(pattern) >= 0


def test_what_is_no_grammar_is_refused():
    for text in ("", "  ", '{"grammars": []}'):
        with pytest.raises(RequestError, match="grammar: not a grammar"):
            sources.lark(text, "grammar")
    with pytest.raises(RequestError, match="regex: it has 70000 bytes; the limit is 65536"):
        regex_rule("a" * 70_000, "regex")
    with pytest.raises(RequestError, match="half of a surrogate pair"):
        choice_rule(["\ud800"], "choice")

"""EBNF as llama.cpp has it, converted to Lark."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo_inference.common.errors import RequestError
from octavo_inference.grammar.ebnf import ebnf_to_lark

JSON = r"""
# JSON without numbers
root ::= value
value ::= object | array | string |
          ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        ('root ::= "a" | "b"', ["a", "b"], ["", "ab"]),
        ('root ::= [a-z ]* "end"', ["end", "the end", "enend"], ["en"]),
        ('root ::= ("yes" | "no") "."?', ["yes", "no."], ["yes.no"]),
        ('root ::= list\nlist ::= "(" list* ")"', ["()", "(()())"], ["(", ")("]),
        ('root ::= sum\nsum ::= sum "+" term | term\nterm ::= [0-9]+', ["1", "1+22+3"], ["+1", "1+"]),
        ('root ::= "\\u00e9\\x41\\U0001F600\\n\\"\\\\"', ['éA😀\n"\\'], ["é"]),
        ("root ::= [^\\]a\\-]{2}", ["bc", "]b"][:1], ["]b", "-b", "ba"]),
        ("root ::= [a-] [-b] [\\u0061-\\u0063]", ["--c", "aba"], ["--d"]),
        ('root ::= a{2,3} b\na ::= "x"\nb ::= "y"{2,} "z"{1}', ["xxyyz", "xxxyyyz"], ["xyyz", "xxyz"]),
        ("root ::= . .", ["a\n", "é😀"], ["a"]),
        ('root ::= rule-one_2\nrule-one_2 ::= "a"\n  | "b" # two\n\n\n# end', ["a", "b"], ["c"]),
        ("root ::= ", [""], ["a"]),
        (JSON, ['{"a": ["b", null], "c\\n": true}', "[]"], ['{"a" 1}', "[}"]),
    ],
)
def test_a_grammar_accepts_its_language(accepts, grammar, yes, no):
    lark = ebnf_to_lark(grammar, "grammar")
    assert [accepts(lark, text) for text in yes + no] == [True] * len(yes) + [False] * len(no)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("start: /a/", "line 1: expected a rule 'NAME ::= …'"),
        ('a ::= "b"', "no rule 'root ::= …'"),
        ("root ::= a", "rule 'root' refers to 'a', which is not a rule"),
        ('root ::= "a"\nroot ::= "b"', "line 2: rule 'root' is defined twice"),
        ('root ::= ("a"', "expected '\\)'"),
        ('root ::= "a" )', "expected the end of the line"),
        ('root ::= "a"*+', "two repetitions"),
        ('root ::= "a"{3,2}', "a repetition from 3 to 2"),
        ('root ::= "\\q"', "an unknown escape"),
        ('root ::= "\\ud800"', "is not a character"),
        ("root ::= [z-a]", "a range of characters"),
        ("root ::= []", "an empty set"),
        ("root ::= " + "(" * 100 + '"a"' + ")" * 100, "more than 64 parentheses"),
        ('root ::= a{999}\na ::= b{999}\nb ::= "c"', "more than 50000 characters"),
        ('root ::= "a" root{999999}', "more than 50000 characters"),
        (
            "root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(40)) + '\nr40 ::= "a"',
            "more than 50000",
        ),
    ],
)
def test_mistakes_are_named_with_their_line(grammar, message):
    with pytest.raises(RequestError, match=message) as found:
        ebnf_to_lark(grammar, "grammar")
    assert found.value.field == "grammar"


def test_long_chains_of_rules_and_many_lines():
    chain = "root ::= r0\n" + "".join(f"r{n} ::= r{n + 1}\n" for n in range(1900)) + 'r1900 ::= "a"'
    assert "T1900" in ebnf_to_lark(chain, "grammar")
    assert ebnf_to_lark("root ::= [a]" + "\n# x" * 20_000, "grammar")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text('rot ::="a\\[]()|*+?{1,}\n#-.', max_size=60))
def test_any_text_is_converted_or_refused(text):
    with contextlib.suppress(RequestError):
        ebnf_to_lark("root ::= " + text, "grammar")

"""Formats of structural tags: which answers each accepts, and what is refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.unit.grammar.conftest import byte_tokenizer
from tokenizers import AddedToken

from octavo_inference.common.errors import RequestError
from octavo_inference.grammar.matcher import Vocabulary
from octavo_inference.grammar.structural_tag import structural_tag_grammar

TOKENS = {"<call>": 257, "<|done|>": 258}
TEXT = {"type": "any_text"}
DIGITS = {"type": "regex", "pattern": "[0-9]+"}
INTEGER = {"type": "json_schema", "json_schema": {"type": "integer"}, "style": "json", "any_order": True}
CALL, DONE = ({"type": "token", "token": name} for name in TOKENS)


def tag(begin: Any = "<f>", content: Any = DIGITS, end: Any = "</f>") -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def of(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


def text(value: str) -> dict[str, Any]:
    return of("const_string", value=value)


def sequence(*elements: Any) -> dict[str, Any]:
    return of("sequence", elements=[*elements])


TRIGGERED = of("triggered_tags", triggers=["<f"], tags=[tag(), tag("<f2>")])
DISPATCH = of("dispatch", rules=[["<f>", sequence(DIGITS, text("</f>"))], ["<g>", INTEGER]])
BY_TOKEN = of(
    "token_triggered_tags", trigger_tokens=["<call>"], tags=[tag(CALL, DIGITS, DONE), tag(CALL, text("a"), ".")]
)


@pytest.fixture(scope="module")
def accepts() -> Callable[[dict[str, Any], str], bool]:
    """Whether the grammar of a format accepts a text, in which the names of special tokens are these tokens."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in TOKENS])
    vocabulary = Vocabulary(tokenizer, 259, [256])

    def check(node: dict[str, Any], answer: str) -> bool:
        matcher = vocabulary.compile(structural_tag_grammar({"type": "structural_tag", "format": node}, "field"))
        try:
            for piece in re.split("(" + "|".join(map(re.escape, TOKENS)) + ")", answer):
                for token in [TOKENS[piece]] if piece in TOKENS else piece.encode():
                    matcher.consume(token)
        except RequestError:
            return False
        if matcher.is_complete:
            return True
        mask = np.zeros(9, np.int32)
        matcher.fill(mask)
        return bool(mask[8] & 1)

    return check


@pytest.mark.parametrize(
    ("node", "yes", "no"),
    [
        (of("grammar", grammar='root ::= "a" root | "}"'), ["aa}", "}"], ["a"]),
        (tag(content=of("grammar", grammar='start: "a" | B\nB: "b"')), ["<f>a</f>", "<f>b</f>"], ["a"]),
        (INTEGER, ["12"], ["a"]),
        (of("optional", content=DIGITS), ["", "1"], ["a"]),
        (tag(content=of("optional", content=TEXT)), ["<f></f>", "<f>a</f>"], ["<f>"]),
        (of("plus", content=tag()), ["<f>1</f>", "<f>1</f><f>2</f>"], [""]),
        (of("star", content=tag(content=TEXT)), ["", "<f>a</f><f></f>"], ["<f>"]),
        (of("repeat", content=text("a"), min=1, max=2), ["a", "aa"], ["", "aaa"]),
        (tag(content=of("repeat", content=text("a"), min=2, max=-1)), ["<f>aaa</f>"], ["<f>a</f>"]),
        (of("any_text", excludes=["x", "no"]), ["", "na n"], ["ax", "nno"]),
        (of("any_text", max_chars=3), ["", "äb\n"], ["abcd"]),
        (tag(content=of("any_text", excludes=["</f>", "x"], max_chars=4)), ["<f>a</b</f>"],
         ["<f>x</f>", "<f>aaaaa</f>"]),
        (tag(end=["</f>", "."]), ["<f>1</f>", "<f>1."], ["<f>1"]),
        (tag(content=TEXT, end=["</f>", "."]), ["<f>a<</f>", "<f>."], ["<f>a", "<f>a.b</f>"]),
        (tag(content=TEXT, end=""), ["<f>a</f>"], ["a"]),
        (tag(content=of("regex", pattern="[a-z</>]*")), ["<f>a</f>", "<f>a<</f>"], ["<f>1</f>"]),
        (TRIGGERED, ["", "a", "a <f>1</f> b<f2>2</f>"], ["<f>a</f>", "<f3>"]),
        (TRIGGERED | {"excludes": ["no"]}, ["a <f>1</f> n"], ["no", "a no <f>1</f>", "<f>1</f>no"]),
        (TRIGGERED | {"at_least_one": True}, ["<f>1</f>", "<f>1</f> a"], ["a", "a<f>1</f>"]),
        (TRIGGERED | {"stop_after_first": True}, ["a", "a<f>1</f>"], ["<f>1</f>a"]),
        (tag("<o>", TRIGGERED, "</o>"), ["<o></o>", "<o>a<f>1</f>b</o>"], ["<o>a", "<o><f>a</f></o>", "<o></o>a"]),
        (tag("<o>", TRIGGERED | {"stop_after_first": True}, "</o>"), ["<o>a</o>", "<o>a<f>1</f></o>"],
         ["<o>1<f>1</f>b</o>"]),
        (tag("<o>", tag(content=TEXT, end=""), "</o>"), ["<o><f>a</o>"], ["<o><f>a"]),
        (tag("<o>", tag(), "</o>"), ["<o><f>1</f></o>"], ["<o><f>1</f>"]),
        (DISPATCH, ["", "a<f>1</f>b<g>2 c"], ["<f>a", "a<g>b"]),
        (DISPATCH | {"loop": False}, ["a<f>1</f>"], ["<f>1</f>b"]),
        (tag("<o>", DISPATCH | {"excludes": ["</o>"]}, "</o>"), ["<o>a<g>1</o>", "<o></o>"], ["<o>a</o>b"]),
        (sequence(TEXT, text("."), DIGITS), ["a.1", ".2"], ["a", "a.b"]),
        (sequence(TEXT, tag(), text("!")), ["ab<f>1</f>!"], ["<f>1</f>", "a<f>b</f>!"]),
        (sequence(TEXT, tag(content=TEXT), TRIGGERED), ["a<f>b</f>c<f2>1</f>"], ["a<f>b"]),
        (sequence(of("or", elements=[TEXT, DIGITS]), text(".")), ["a.", "1."], ["a"]),
        (sequence(tag(content=TEXT), of("or", elements=[text("a"), TEXT])), ["<f>x</f>a", "<f>x</f>b c"], ["a"]),
        (of("tags_with_separator", tags=[tag(content=TEXT)], separator=","), ["", "<f>a</f>,<f></f>"], ["<f>a</f>,"]),
        (tag("<o>", of("tags_with_separator", tags=[tag()], separator=","), "</o>"), ["<o></o>", "<o><f>1</f></o>"],
         ["<o>"]),
        (CALL, ["<call>"], ["", "<|done|>"]),
        (of("token", token=258), ["<|done|>"], ["<call>"]),
        (tag(CALL, of("any_tokens"), DONE), ["<call>a <b<|done|>"], ["<call>a", "<call><call><|done|>"]),
        (tag(CALL, of("any_tokens", exclude_tokens=["<call>"]), "</f>"), ["<call>a</f>"], ["<call>a"]),
        (sequence(of("any_tokens"), CALL, DIGITS), ["a<call>1"], ["a"]),
        (sequence(TEXT, tag(CALL, DIGITS, DONE)), ["a<call>1<|done|>"], ["a", "<call>a"]),
        (BY_TOKEN, ["", "a", "a<call>1<|done|>b<call>a.c"], ["<call>b", "a<|done|>"]),
        (BY_TOKEN | {"at_least_one": True}, ["<call>a.b"], ["a", "b<call>a."]),
        (BY_TOKEN | {"stop_after_first": True}, ["b<call>a."], ["<call>a.b"]),
        (tag("<o>", BY_TOKEN, "</o>"), ["<o>a<call>a.b</o>", "<o></o>"], ["<o>a", "<o></o>a"]),
    ],
)  # fmt: skip
def test_each_format_accepts_its_answers(accepts, node, yes, no):
    assert [accepts(node, answer) for answer in yes + no] == [True] * len(yes) + [False] * len(no)


@pytest.mark.parametrize(
    ("node", "field", "message"),
    [
        (of("exclude_token"), "", "type 'exclude_token' is not supported; supported: const_string, "),
        (of("token_dispatch"), "", "type 'token_dispatch' is not supported"),
        (of("any_text", max_tokens=3), "", "field 'max_tokens' is not supported; supported: excludes, max_chars, type"),
        (of("any_text", excludes="a"), ".excludes", "it must be a list of texts"),
        (of("any_text", max_chars=50_001), ".max_chars", "it must be a whole number from 0 to 50000"),
        (INTEGER | {"style": "qwen_xml"}, ".style", "'qwen_xml' is not supported; supported: 'json'"),
        (of("repeat", content=DIGITS, min=3, max=2), ".max", "it must be a whole number from 3 to 1000"),
        (of("star", content=TEXT), ".content", "text without an end cannot be followed by more; put it into a tag"),
        (sequence(TEXT, DIGITS), ".elements[0]", "text without an end must be last, or before a const_string"),
        (sequence(TEXT, text(".") | {"x": 1}), ".elements[1]", "field 'x' is not supported"),
        (tag(end=["a", ""]), ".end", "it must be a list of texts, of which none is empty"),
        (tag({"type": "text"}), ".begin.type", "it must be 'token'"),
        (of("token", token="call"), ".token", "it must be the id of a token, or the name of a special token in angle"),
        (of("any_tokens", exclude_tokens=[3]), ".exclude_tokens", "it must be a list of texts"),
        (BY_TOKEN | {"trigger_tokens": [258]}, ".tags[0].begin", "it must be a token of trigger_tokens"),
        (DISPATCH | {"rules": [["<f>"]]}, ".rules[0]", "it must be a list of a text and a format"),
        (DISPATCH | {"rules": [["<f>", TEXT]]}, ".rules[0][1]", "text without an end cannot be followed by more"),
        (of("grammar", grammar="root ::= ("), ".grammar", "line 1: "),
    ],
)  # fmt: skip
def test_refusals_name_the_place(node, field, message):
    with pytest.raises(RequestError, match=re.escape(message)) as found:
        structural_tag_grammar({"format": node}, "field")
    assert found.value.field == f"field.format{field}"


@pytest.mark.parametrize("kind", [["tag"], {"type": "tag"}, None, 3])
def test_a_type_that_is_no_text_is_refused(kind):
    with pytest.raises(RequestError, match="is not supported; supported: const_string"):
        structural_tag_grammar({"format": of("star", content={"type": kind})}, "field")


@pytest.mark.parametrize(
    "node",
    [
        tag(content=of("or", elements=[text("a")] * 3000), end=["end"] * 3000),
        of("dispatch", rules=[["a", text("b")]] * 3000, excludes=["end"] * 3000),
        of("or", elements=[tag(content=TEXT, end=["end"] * 3000)] * 3000),
    ],
)
def test_what_multiplies_is_bounded(node):
    with pytest.raises(RequestError, match="field: more than 8388608 characters as a grammar"):
        structural_tag_grammar({"format": node}, "field")


def test_deep_nesting_behind_free_text_is_refused_in_words():
    node: dict[str, Any] = TEXT
    for _ in range(2000):
        node = tag(content=node, end="")
    with pytest.raises(RequestError, match="more than 16 formats inside each other"):
        structural_tag_grammar({"format": of("star", content=node)}, "field")


def test_nesting_is_bounded():
    node: dict[str, Any] = DIGITS
    for _ in range(16):
        node = of("optional", content=node)
    with pytest.raises(RequestError, match="more than 16 formats inside each other"):
        structural_tag_grammar({"format": node}, "field")

"""Tokens become text as they come: the same text however they are cut, and nothing of a stop string."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.core.request import Output, TokenLogprobs
from octavo_inference.tokenizer.detokenizer import Detokenizer, StopFinder, TokenDecoder, token_bytes

ODD = "na\u00efve \N{CAT FACE}\u4f60\u597d \N{FAMILY}\u200d\N{MAN} cafe\u0301 12"
alphabet = st.text(st.sampled_from("ab<|"), max_size=60)


def output(tokens, **fields) -> Output:
    return Output(id="r", index=0, tokens=tokens, **fields)


def one_mark(text: str) -> str:
    return re.sub("\ufffd+", "\ufffd", text)


@given(alphabet, st.lists(st.text(st.sampled_from("ab<|"), min_size=1, max_size=5), max_size=4), st.data())
@settings(max_examples=scaled(150), deadline=None)
def test_stop_strings_are_found_wherever_the_text_is_cut(text, stop, data):
    finder, shown, found, position = StopFinder(stop), "", None, 0
    while position < len(text) and found is None:
        size = data.draw(st.integers(1, 7))
        clear, found = finder.push(text[position : position + size])
        shown += clear
        position += size
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stop if s in text]
    if ends:
        end = min(ends)[0]
        start = min(start for e, start, _ in ends if e == end)
        assert (shown, found) == (text[:start], text[start:end])
    else:
        assert (shown + finder.flush(), found) == (text, None)


def test_what_may_become_a_stop_string_is_held_back():
    finder = StopFinder(["</s>", "ababac"])
    assert finder.push("hello <") == ("hello ", None)
    assert finder.push("/s") == ("", None)
    assert finder.push("t> abab") == ("</st> ", None)
    assert finder.push("ab") == ("ab", None)
    assert finder.push("ac!") == ("", "ababac")


def test_stop_search_is_linear():
    text, stop = "a" * 20_000, ["a" * 255 + "b"] * 4

    def seconds(n: int) -> float:
        begin = time.thread_time()
        finder = StopFinder(stop)
        for i in range(0, n, 4):
            finder.push(text[i : i + 4])
        return time.thread_time() - begin

    # Quadratic would be 16 times as long.
    assert min(seconds(20_000) for _ in range(5)) < 10 * min(seconds(5_000) for _ in range(5))


@given(st.text(max_size=40))
@settings(max_examples=scaled(100), deadline=None)
def test_pieces_join_to_the_decoded_text(tokenizer, text):
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    decoder = TokenDecoder(tokenizer)
    pieces = [decoder.push(token) for token in tokens]
    # How many U+FFFD stand for a run of lost bytes is a matter of where it is cut.
    assert one_mark("".join(pieces) + decoder.flush()) == one_mark(tokenizer.decode(tokens))
    if "\ufffd" not in tokenizer.decode(tokens):
        assert not any("\ufffd" in piece for piece in pieces)


def test_no_character_is_cut(tokenizer):
    sequence = Detokenizer(tokenizer, [1, 2])
    tokens = tokenizer.encode(ODD, add_special_tokens=False).ids
    pieces = [sequence.push(output([token])).text for token in tokens]
    assert "".join(pieces) == ODD
    assert "" in pieces, "the test's text has characters of several tokens"


def test_bytes_that_are_no_text_do_not_pile_up(tokenizer):
    lone = next(t for t in range(tokenizer.get_vocab_size()) if token_bytes(tokenizer, t) == b"\x80")
    decoder = TokenDecoder(tokenizer)
    pieces = [decoder.push(lone) for _ in range(100)]
    assert ("".join(pieces) + decoder.flush()).count("\ufffd") == 100
    assert sum(map(bool, pieces)) > 5


def test_tokens_after_a_stop_string_do_not_count(tokenizer):
    tokens = tokenizer.encode("one two three four", add_special_tokens=False).ids
    logprobs = [TokenLogprobs(-1.0, 1, [], [])] * len(tokens)
    delta = Detokenizer(tokenizer, [], stop=["two"]).push(output(tokens, logprobs=logprobs))
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("one ", "stop", "two")
    assert (len(delta.tokens), len(delta.logprobs)) == (2, 2)


@given(
    st.text(st.sampled_from("ab <|é猫"), min_size=1, max_size=30),
    st.lists(st.text(st.sampled_from("ab <|"), min_size=1, max_size=4), max_size=3),
    st.sampled_from(["stop", "length"]),
    st.lists(st.integers(1, 8), min_size=30, max_size=30),
)
@settings(max_examples=scaled(80), deadline=None)
def test_an_answer_is_the_same_in_outputs_of_any_number_of_tokens(tokenizer, text, stop, reason, counts):
    tokens = tokenizer.encode(text, add_special_tokens=False).ids

    def answer(sizes):
        """Text, tokens and end of an answer that arrives in outputs of these sizes."""
        sequence, shown, used, at = Detokenizer(tokenizer, [], stop=stop), "", [], 0
        for size in sizes:
            end = min(at + size, len(tokens))
            delta = sequence.push(output(tokens[at:end], finish_reason=reason if end == len(tokens) else None))
            shown, used, at = shown + delta.text, used + delta.tokens, end
            if delta.finish_reason is not None:
                return shown, used, delta.finish_reason, delta.stop_reason
        raise AssertionError("no end")

    assert answer([*counts, len(tokens)]) == answer([1] * len(tokens))


def test_stop_strings_wait_for_min_tokens(tokenizer):
    tokens = tokenizer.encode("a b a b a b", add_special_tokens=False).ids
    sequence = Detokenizer(tokenizer, [], stop=["b"], min_tokens=4)
    text = ""
    for token in tokens:
        delta = sequence.push(output([token]))
        text += delta.text
        if delta.finish_reason:
            break
    assert text == "a b a "


@pytest.mark.parametrize(("reason", "shown"), [("stop", "one two"), ("length", "one two three")])
def test_the_token_that_stops_is_not_shown(tokenizer, reason, shown):
    tokens = tokenizer.encode("one two three", add_special_tokens=False).ids
    delta = Detokenizer(tokenizer, []).push(output(tokens, finish_reason=reason))
    assert (delta.text, delta.tokens) == (shown, tokens)


def test_what_was_held_back_comes_out_at_the_end(tokenizer):
    tokens = tokenizer.encode("see <", add_special_tokens=False).ids
    sequence = Detokenizer(tokenizer, [], stop=["</s>"])
    assert sequence.push(output(tokens)).text == "see "
    assert sequence.push(output([], finish_reason="length")).text == "<"


def test_bytes_of_tokens(tokenizer):
    assert b"".join(token_bytes(tokenizer, t) for t in tokenizer.encode(ODD).ids).decode() == ODD
    assert token_bytes(tokenizer, 1) == b"<|im_start|>"


def test_shown_special_tokens_have_a_text_though_others_are_skipped(tokenizer):
    shown, hidden = tokenizer.token_to_id("<repo_name>"), tokenizer.token_to_id("<|im_start|>")
    cat = tokenizer.encode("\N{CAT FACE} Hi", add_special_tokens=False).ids
    tokens = [hidden, shown, *cat, hidden, shown]
    decoder = TokenDecoder(tokenizer, [hidden, *cat], shown=frozenset({shown}))
    text = "".join([*map(decoder.push, tokens), decoder.flush()])
    assert text == "<repo_name>\N{CAT FACE} Hi<repo_name>"
    plain = TokenDecoder(tokenizer, [hidden, *cat])
    assert "".join([*map(plain.push, tokens), plain.flush()]) == "\N{CAT FACE} Hi"

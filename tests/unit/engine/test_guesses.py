"""What is guessed, how likely it is accepted, and how much of it a step verifies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_inference.core.speculation.acceptance import Acceptance, Trials
from octavo_inference.core.speculation.lengths import Candidate, lengths
from octavo_inference.core.speculation.lookup import continuation, continuation_in
from octavo_inference.core.speculation.recent_outputs import RecentOutputs
from octavo_inference.core.speculation.step_times import StepTimes


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def slow_match(text: list[int], suffix: list[int]) -> tuple[int, int]:
    """Where the longest suffix last ends in a text, and its length; by trying all of them."""
    for length in range(min(32, len(suffix)), 0, -1):
        for end in range(len(text), length - 1, -1):
            if text[end - length : end] == suffix[len(suffix) - length :]:
                return end, length
    return 0, 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 8))
def test_the_guess_follows_the_longest_match(tokens: list[int], most: int) -> None:
    end, matched = slow_match(tokens[:-1], tokens)
    guess = continuation(ids(*tokens), most)
    assert guess.matched == matched
    follows = tokens[end:] if matched else []
    expected = [follows[place % len(follows)] for place in range(most)] if follows else []
    assert guess.tokens.tolist() == expected


@given(st.lists(st.integers(-1, 3), max_size=40), st.lists(st.integers(0, 3), min_size=1, max_size=10))
def test_in_another_text_it_ends_with_the_answer_there(text: list[int], tokens: list[int]) -> None:
    end, matched = slow_match(text, tokens)
    follows = text[end : end + 5] if matched else []
    follows = follows[: follows.index(-1)] if -1 in follows else follows
    guess = continuation_in(ids(*text), ids(*tokens), 5)
    assert guess.tokens.tolist() == follows
    assert guess.matched == (matched if follows else 0)


def test_a_text_that_repeats_goes_on_repeating() -> None:
    assert continuation(ids(7, 1, 2, 1, 2), 5).tokens.tolist() == [1, 2, 1, 2, 1]
    assert len(continuation(ids(7), 5).tokens) == len(continuation(ids(1, 2), 5).tokens) == 0


def test_recent_answers_are_bounded_and_apart() -> None:
    recent = RecentOutputs(5, salts=2)
    recent.add("a", ids(1, 2, 3))
    recent.add("a", ids(4))
    assert recent.of("a").tolist() == [2, 3, -1, 4, -1]
    assert recent.of("b").tolist() == []
    for tenant in ("b", "c"):
        recent.add(tenant, ids(9))
    assert recent.of("a").tolist() == [], "the salt without an answer for the longest time is forgotten"


def test_rates_start_hopeful_and_follow_what_happens() -> None:
    shared, good, bad = Acceptance(), Trials(), Trials()
    first = shared.rate(good, 3)
    for _ in range(30):
        shared.observe(good, 3, 4, 4)
        shared.observe(bad, 3, 4, 0)
    assert shared.rate(bad, 3) < 0.3 < first < shared.rate(good, 3)
    assert shared.rate(Trials(), 20) == first, "longer matches have a rate of their own"


def test_times_are_between_those_measured() -> None:
    times = StepTimes()
    assert times.alone(1) is None
    times.add(1, 0, 1.0)
    assert times.alone(1) == times.curve(1).seconds(8) == 1.0, "what was never tried costs nothing more"
    assert times.alone(2) is None, "other rows, other times"
    for seconds in (50.0, 2.4, 2.5):
        times.add(1, 8, seconds)
    assert times.curve(1).seconds(8) == 2.4, "the first step of a size may compile something"
    assert times.curve(1).seconds(4) == pytest.approx(1.7)
    for _ in range(50):
        times.add(1, 8, 2.0)
    assert times.curve(1).seconds(8) == pytest.approx(2.0, rel=0.01)
    times.add(1, 8, 100.0)
    assert times.curve(1).seconds(8) < 2.5, "one slow step of a busy machine"
    assert times.alone(1) == 1.0
    for _ in range(20):
        times.add(1, 8, 2.0)
    assert times.alone(1) is None, "to be measured again"
    for _ in range(600):
        times.add(1, 0, 1.0)
    assert times.curve(1).seconds(8) == 1.0, "forgotten, to be tried again"


def test_what_is_not_tried_is_tried_again_later() -> None:
    shared, own = Acceptance(), Trials()
    for _ in range(50):
        shared.observe(own, 3, 4, 0)
    low = shared.rate(own, 3)
    for _ in range(400):
        shared.rest(own, 3)
    assert shared.rate(own, 3) > 2 * low


def linear(base: float, token: float):
    return lambda drafted: base + token * drafted


@pytest.mark.parametrize(
    ("rates", "rows", "seconds", "expected"),
    [
        ([0.9], 1, linear(1, 0.01), [8]),  # a step costs the same for any tokens
        ([0.9], 1, linear(1, 1), [0]),  # each token costs as much as the first
        ([0.9, 0.2], 2, linear(1.2, 0.1), [8, 0]),  # the sure one gets all
        ([0.5], 64, linear(7.4, 0.1), [0]),  # computing: many rows
        ([], 3, linear(1, 0.1), []),
    ],
)
def test_a_step_verifies_what_makes_it_faster(rates, rows, seconds, expected) -> None:
    assert lengths([Candidate(8, rate) for rate in rates], rows, 16, seconds) == expected


@given(
    st.lists(st.tuples(st.integers(0, 8), st.floats(0, 1)), max_size=6),
    st.integers(1, 64),
    st.integers(0, 20),
    st.floats(0.001, 2),
    st.floats(0.001, 1),
)
def test_lengths_stay_within_their_bounds(guesses, rows, room, base, token) -> None:
    found = lengths([Candidate(*each) for each in guesses], rows, room, linear(base, token))
    assert sum(found) <= room
    assert all(count <= most for count, (most, _) in zip(found, guesses, strict=True))

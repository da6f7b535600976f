"""What is guessed, how likely it is accepted, and how much of it a step verifies."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_inference.core.gather import Batch
from octavo_inference.core.model_input import StepResult
from octavo_inference.core.speculation.acceptance import Acceptance, Chances, Trials
from octavo_inference.core.speculation.calibration import token_curve
from octavo_inference.core.speculation.expected_times import ExpectedTimes, TokenCurve
from octavo_inference.core.speculation.lengths import DraftCandidate, lengths
from octavo_inference.core.speculation.lookup import continuation, continuation_in
from octavo_inference.core.speculation.recent_outputs import RecentOutputs

from .echo import EchoBackend, Ticks


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


def test_chances_start_hopeful_and_follow_what_happens() -> None:
    shared, good, bad = Acceptance(), Trials(), Trials()
    hopeful = shared.chances(good, 3)
    for _ in range(30):
        shared.observe(good, 3, 4, 4)
        shared.observe(bad, 3, 4, 0)
    assert shared.chances(bad, 3).first < 0.3 < hopeful.first < shared.chances(good, 3).first
    assert shared.chances(Trials(), 20) == hopeful, "longer matches have chances of their own"


def test_the_first_token_and_further_ones_are_told_apart() -> None:
    shared, own = Acceptance(), Trials()
    for accepted in 50 * (8, 0, 0):
        shared.observe(own, 3, 8, accepted)
    chances = shared.chances(own, 3)
    assert chances.first == pytest.approx(1 / 3, abs=0.1)
    assert chances.further > 0.9


def test_what_is_not_tried_is_tried_again_later() -> None:
    shared, own = Acceptance(), Trials()
    for _ in range(50):
        shared.observe(own, 3, 4, 0)
    low = shared.chances(own, 3).first
    for _ in range(400):
        shared.rest(own, 3)
    assert shared.chances(own, 3).first > 2 * low


CURVE = TokenCurve((1, 8, 16, 17, 32), (1.0, 1.2, 1.6, 2.2, 2.8), per_row=0.1)


def test_a_curve_has_the_times_between_those_measured() -> None:
    assert CURVE.seconds(1, 8) == pytest.approx(1.3)
    assert CURVE.seconds(8, 8) == pytest.approx(2.0)
    assert CURVE.seconds(1, 12) == pytest.approx(1.5)
    assert CURVE.seconds(1, 17) - CURVE.seconds(1, 16) == pytest.approx(0.6), "another tile"
    assert CURVE.seconds(1, 62) == pytest.approx(4.1), "beyond, as in the last piece"


def test_steps_correct_the_height_of_the_curve() -> None:
    times = ExpectedTimes(CURVE)
    for _ in range(40):
        times.add(4, 0, 0, 2 * CURVE.seconds(4, 4))
    assert times.alone(1) == pytest.approx(2 * CURVE.seconds(1, 1), rel=0.01), "of other rows too"
    for _ in range(40):
        times.add(4, 12, 3, 3 * CURVE.seconds(4, 16))
    assert times.seconds(4, 12, 3) == pytest.approx(3 * CURVE.seconds(4, 16), rel=0.01)
    assert times.alone(4) == pytest.approx(2 * CURVE.seconds(4, 4), rel=0.01)
    for _ in range(40):
        times.add(4, 0, 0, 3 * CURVE.seconds(4, 4))
    assert times.seconds(4, 12, 3) == pytest.approx(3 * CURVE.seconds(4, 16), rel=0.1), "the contexts had grown"
    times.add(4, 0, 0, 1000.0)
    assert times.alone(4) < 4 * CURVE.seconds(4, 4), "one slow step of a busy machine"


def test_a_draft_model_costs_a_step_for_each_guess() -> None:
    draft = TokenCurve((1, 2), (0.1, 0.1))
    guessed, found = ExpectedTimes(CURVE, draft), ExpectedTimes(CURVE)
    assert guessed.seconds(2, 8, 4) == pytest.approx(found.seconds(2, 8, 4) * (1 + 0.4 / CURVE.seconds(2, 10)))
    assert guessed.alone(2) == found.alone(2)


def linear(base: float, token: float):
    return lambda drafted, longest: base + token * drafted


@pytest.mark.parametrize(
    ("chances", "rows", "seconds", "expected"),
    [
        ([0.9], 1, linear(1, 0.01), [8]),  # a step costs the same for any tokens
        ([0.9], 1, linear(1, 1), [0]),  # each token costs as much as the first
        ([0.9, 0.01], 2, linear(1.2, 0.02), [8, 0]),  # the sure one gets all
        ([0.5], 64, linear(7.4, 0.1), [0]),  # computing: many rows
        ([0.95, *15 * [0.01]], 16, linear(1, 0.05), [0, *15 * [0]]),  # one would gain, and fifteen would wait for it
        ([], 3, linear(1, 0.1), []),
        ([0.8], 1, lambda drafted, longest: 1 + 0.02 * drafted + 0.4 * longest, [2]),  # a guess has a price of its own
    ],
)
def test_a_step_verifies_what_makes_it_faster(chances, rows, seconds, expected) -> None:
    candidates = [DraftCandidate(8, Chances(each, each)) for each in chances]
    assert lengths(candidates, rows, 16, seconds) == expected


@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=3),
    st.integers(0, 2),
    st.integers(0, 8),
    st.floats(0.001, 2),
    st.floats(0.001, 1),
)
def test_no_other_lengths_are_expected_to_be_faster(guesses, others, room, base, token) -> None:
    """By trying all of them; a choice without guesses may be up to 5 % slower."""
    candidates = [DraftCandidate(most, Chances(*each)) for most, *each in guesses]
    rows, seconds = len(candidates) + others, linear(base, token)

    def speed(counts: tuple[int, ...]) -> float:
        gains = [
            sum(c.chances.first * c.chances.further**k for k in range(n))
            for c, n in zip(candidates, counts, strict=True)
        ]
        return sum(map(math.log1p, gains)) - rows * math.log(seconds(sum(counts), max(counts)))

    found = tuple(lengths(candidates, rows, room, seconds))
    assert sum(found) <= room
    every = itertools.product(*(range(1 + each.most) for each in candidates))
    best = max(speed(counts) for counts in every if sum(counts) <= room)
    assert speed(found) >= best - (0 if any(found) else rows * math.log(1.05)) - 1e-9


class SlowBackend(EchoBackend):
    """Takes a second for each of its tokens, and ten for a step."""

    def __init__(self, clock: Ticks) -> None:
        super().__init__(64)
        self.clock = clock

    def step(self, batch: Batch) -> StepResult:
        self.batches.append(batch)
        self.clock.now += 10 + len(batch.tokens) + 3 * len(batch.seq_len)
        count = len(batch.sample.row)
        return StepResult(
            np.zeros(count, np.int32), np.zeros(count, np.float32), np.zeros(count, np.int32), [None] * count
        )


def test_calibration_finds_the_times_of_steps() -> None:
    clock = Ticks(0.0)
    measured = partial(token_curve, SlowBackend(clock), rows=16, tokens=40, most=3, clock=clock)
    found = measured(max_model_len=64, seconds=1e9)
    assert found.counts[-1] == 40
    for rows, tokens in ((1, 1), (4, 16), (16, 16), (8, 25)):
        assert found.seconds(rows, tokens) == pytest.approx(10 + tokens + 3 * rows, abs=0.01)
    assert measured(max_model_len=64, seconds=0.0).counts == (1, 8, 32, 40), "the coarse part alone"


@pytest.mark.parametrize(("longest", "context"), [(4, 0), (16, 12), (131, 127), (500, 128)])
def test_calibration_computes_no_token_beyond_the_longest_sequence(longest: int, context: int) -> None:
    clock = Ticks(0.0)
    backend = SlowBackend(clock)
    token_curve(backend, rows=4, tokens=40, most=3, max_model_len=longest, clock=clock)
    assert max(int(batch.positions.max()) for batch in backend.batches) < longest
    assert {int(batch.positions.min()) for batch in backend.batches} == {context}


def test_one_row_of_one_token_is_measured_too() -> None:
    clock = Ticks(0.0)
    found = token_curve(SlowBackend(clock), rows=1, tokens=1, most=0, max_model_len=64, clock=clock)
    assert found.seconds(1, 1) == pytest.approx(14, abs=0.01)


def test_noise_makes_no_curve_fall() -> None:
    class Noisy(SlowBackend):
        def step(self, batch: Batch) -> StepResult:
            self.clock.now += 30 * (len(batch.tokens) == 32)
            return super().step(batch)

    clock = Ticks(0.0)
    found = token_curve(Noisy(clock), rows=16, tokens=40, most=3, max_model_len=64, clock=clock)
    assert list(found.times) == sorted(found.times)
    assert found.seconds(1, 10_000) >= found.seconds(1, 40) > 0

"""The state of guidance: thinking up to a marker, a budget, and a grammar behind it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.common.errors import RequestError
from octavo_inference.core.guidance import Guide
from octavo_inference.core.request import Guidance

from .echo import EOS, VOCAB
from .fake_grammar import ENDS, FakeMatcher, grammar


def guide(text: str = "", after: tuple[int, ...] = (), budget: int | None = None) -> Guide:
    guidance = Guidance(grammar=text, after=after, thinking_budget=budget)
    return Guide(guidance, FakeMatcher(text) if text else None, ENDS)


def allowed(state: Guide) -> list[int]:
    mask = np.zeros(-(-VOCAB // 32), np.int32)
    state.fill(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), count=VOCAB, bitorder="little")).tolist()


def test_without_a_marker_the_grammar_applies_from_the_first_token() -> None:
    text = grammar(5, 2)
    state = guide(text)
    for _ in range(2):
        assert not state.is_complete
        state.advance(allowed(state)[0])
    assert state.is_complete
    assert allowed(state) == [EOS]


def test_thinking_allows_everything_but_the_end_of_the_answer() -> None:
    state = guide(grammar(5, 2), after=(7, 8))
    for token in (7, 7, 3, 7):
        assert allowed(state) == [i for i in range(VOCAB) if i != EOS]
        state.advance(token)
    state.advance(8)
    assert allowed(state) == FakeMatcher(grammar(5, 2)).allowed


def test_without_a_grammar_an_answer_may_end_in_its_thinking() -> None:
    state = guide(after=(7,), budget=3)
    assert EOS in allowed(state)
    state.advance(7)
    assert allowed(state) == list(range(VOCAB))
    assert not state.is_complete


@pytest.mark.parametrize(
    ("thought", "forced"),
    [([], [7, 8, 9]), ([1, 2], []), ([1, 2, 3], [7, 8, 9]), ([1, 2, 7], [8, 9]), ([1, 7, 8], [9]), ([7, 8, 9], [])],
)
def test_the_marker_follows_by_force_once_the_budget_is_used_up(thought: list[int], forced: list[int]) -> None:
    state = guide(after=(7, 8, 9), budget=3 if thought else 0)
    for token in thought:
        state.advance(token)
    assert state.forced() == forced
    for token in forced:
        assert allowed(state) == [token]
        state.advance(token)
    assert state.forced() == []
    assert state.budget_reached == bool(forced)


def test_an_error_of_the_grammar_names_the_token() -> None:
    state = guide(grammar(5, 3))
    wrong = next(i for i in range(VOCAB) if i not in allowed(state))
    with pytest.raises(RequestError, match=str(wrong)):
        state.advance(wrong)


@settings(max_examples=scaled(200), deadline=None)
@given(
    after=st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple),
    tokens=st.lists(st.integers(0, 2), max_size=30),
    budget=st.none() | st.integers(0, 12),
)
def test_the_grammar_begins_behind_the_first_marker(
    after: tuple[int, ...], tokens: list[int], budget: int | None
) -> None:
    state, text, answer = guide(grammar(3, 4), after, budget), grammar(3, 4), []
    for chosen in tokens:
        forced = state.forced()
        token = forced[0] if forced else chosen
        assert allowed(state) == ([token] if forced else [i for i in range(VOCAB) if i != EOS])
        twin = state.copy()
        state.advance(token)
        answer.append(token)
        assert twin.forced() == forced
        if tuple(answer[-len(after) :]) == after:
            assert allowed(state) == FakeMatcher(text).allowed
            assert budget is None or len(answer) <= budget + len(after)
            return
    assert budget is None or len(answer) < budget + len(after)

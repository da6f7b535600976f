"""The sampling rule, step by step, as its docstring promises it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_inference.core.gather import LogitAdjust, SampleRows
from octavo_inference.core.logit_rules import LogitRules, logit_rules, unpacked
from octavo_inference.core.request import SamplingParams
from octavo_inference.core.sampling import (
    adjust_logits,
    choose,
    log_probabilities,
    mix,
    sample,
    sequence_seed,
    uniform,
)

FOUR = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))


def kept(
    logits: np.ndarray, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0
) -> set[int]:
    """All tokens that any random number can choose."""
    return {
        choose(logits, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, u=u)
        for u in np.linspace(0, 1, 1000, endpoint=False)
    }


def test_the_hash_is_splitmix64() -> None:
    # First outputs of the reference implementation for seed 0 and 1234567.
    assert mix(0) == 0xE220A8397B1DCDAF
    assert mix(1234567) == 6457827717110365317


def test_numbers_depend_on_seed_and_position_and_are_uniform() -> None:
    numbers = np.array([uniform(seed, position) for seed in range(40) for position in range(100)])
    assert len(set(numbers.tolist())) == len(numbers)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, 10, (0, 1))
    assert np.abs(counts - 400).max() < 5 * math.sqrt(400)


def test_the_first_sibling_keeps_the_requests_seed_and_the_others_get_their_own() -> None:
    assert sequence_seed(42, 0) == 42
    assert len({sequence_seed(42, i) for i in range(100)}) == 100
    assert sequence_seed(-1, 0) == 2**64 - 1


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = np.array([1.0, 3.0, 3.0], np.float32)
    assert choose(logits, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, u=0.99) == 1


@pytest.mark.parametrize(
    ("u", "token"), [(0.0, 0), (0.39, 0), (0.41, 1), (0.69, 1), (0.71, 2), (0.9001, 3), (0.9999, 3)]
)
def test_a_draw_follows_the_distribution_in_order_of_ids(u: float, token: int) -> None:
    assert choose(FOUR, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, u=u) == token


def test_temperature_sharpens() -> None:
    assert choose(FOUR, temperature=0.5, top_p=1.0, top_k=0, min_p=0.0, u=0.5) == 0  # 16 of 30


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 4}, {0, 1, 2, 3}),
        ({"top_p": 0.65}, {0, 1}),
        ({"top_p": 0.75}, {0, 1, 2}),
        ({"top_p": 1e-6}, {0}),
        ({"min_p": 0.45}, {0, 1, 2}),
        ({"min_p": 1.0}, {0}),
        # After top-k the shares are 4/7 and 3/7: 0.55 is reached by the first alone.
        ({"top_k": 2, "top_p": 0.55}, {0}),
        ({"min_p": 0.45, "top_k": 3, "top_p": 0.9}, {0, 1, 2}),
    ],
)
def test_truncation(limits: dict[str, float], expected: set[int]) -> None:
    assert kept(FOUR, **limits) == expected  # type: ignore[arg-type]


def test_top_k_keeps_ties() -> None:
    assert kept(np.array([2.0, 1.0, 1.0, 0.0], np.float32), top_k=2) == {0, 1, 2}


def test_banned_tokens_are_never_drawn() -> None:
    adjusted = adjust_logits(FOUR, adjust(banned=[0, 2]))
    assert kept(adjusted) == {1, 3}
    assert choose(adjusted, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, u=0.0) == 1


def adjust(
    prompt: tuple[int, ...] = (), output: tuple[int, ...] = (), banned: list[int] | None = None, **penalties: float
) -> LogitAdjust:
    values = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0} | penalties
    return LogitAdjust(
        prompt=np.array(prompt, np.int32),
        output=np.array(output, np.int32),
        banned=np.array(banned or [], np.int32),
        **values,
    )


def ruled(*output: int, **given: Any) -> list[float]:
    """Logits 0 to 5 after a request's rules, with this output so far."""
    nothing = np.empty(0, np.int32)
    rules = logit_rules(SamplingParams(**given), 6)
    change = LogitAdjust(np.array([4, 4], np.int32), np.array(output, np.int32), 0.0, 0.0, 1.0, nothing, rules)
    result: list[float] = adjust_logits(np.arange(6, dtype=np.float32), change).tolist()
    return result


INF = math.inf


def test_a_bias_is_added() -> None:
    assert ruled(logit_bias={1: 2.5, 5: -100.0}) == [0, 3.5, 2, 3, 4, -95]


def test_a_bias_comes_before_penalties() -> None:
    rules = logit_rules(SamplingParams(logit_bias={0: -3.0}), 2)
    seen, nothing = np.array([0], np.int32), np.empty(0, np.int32)
    change = LogitAdjust(seen, nothing, 0.0, 0.0, 2.0, nothing, rules)
    assert adjust_logits(np.array([1.0, 1.0], np.float32), change).tolist() == [-4.0, 1.0]


def test_only_allowed_ids_stay() -> None:
    assert ruled(allowed_token_ids=[0, 4]) == [0, -INF, -INF, -INF, 4, -INF]


def test_a_bad_word_of_one_token_is_banned_everywhere() -> None:
    assert ruled(bad_words=[[3]]) == [0, 1, 2, -INF, 4, 5]


@pytest.mark.parametrize(
    ("output", "banned"),
    [
        ((), set()),
        ((1,), {2}),
        ((0, 1), {2, 3}),
        ((1, 0), set()),
        ((5, 0, 1), {2, 3, 4}),
        # The prompt ends with 4, 4 and does not count.
        ((0,), set()),
    ],
)
def test_the_last_token_of_a_bad_word_is_banned_where_the_output_ends_with_the_others(
    output: tuple[int, ...], banned: set[int]
) -> None:
    words = [[1, 2], [0, 1, 3], [5, 0, 1, 4], [4, 0], [4, 0, 1]]
    assert {i for i, logit in enumerate(ruled(*output, bad_words=words)) if logit == -INF} == banned


def test_a_ban_does_not_hide_that_logits_are_no_numbers() -> None:
    nothing = np.empty(0, np.int32)
    change = LogitAdjust(nothing, nothing, 0.0, 0.0, 1.0, nothing, logit_rules(SamplingParams(bad_words=[[0], [1]]), 3))
    found = adjust_logits(np.array([np.nan, np.inf, 1.0], np.float32), change)
    assert np.isnan(found[0])
    assert found[1] == INF


def test_log_probabilities_do_not_depend_on_the_rules_of_the_request() -> None:
    nothing = np.empty(0, np.int32)
    change = LogitAdjust(
        nothing, nothing, 0.0, 0.0, 1.0, nothing, logit_rules(SamplingParams(logit_bias={3: 100.0}), 4)
    )
    rows = SampleRows.greedy(np.array([0], np.int32), np.array([0], np.int32))
    rows.logprobs[:], rows.adjust[0] = 1, change
    found = sample(FOUR[None], rows)
    assert found.tokens.tolist() == [3]
    assert found.rank.tolist() == [4]
    assert found.logprob[0] == pytest.approx(math.log(0.1), abs=1e-6)
    assert found.top[0][0].tolist() == [0]  # type: ignore[index]


def test_named_ids_are_reported_in_their_order() -> None:
    _, _, (ids, values) = log_probabilities(FOUR, 0, 3, np.array([3, 0, 2], np.int32))
    assert ids.tolist() == [3, 0, 2]
    np.testing.assert_allclose(values, np.log([0.1, 0.4, 0.2]), atol=1e-6)


def test_rules_survive_the_row_table() -> None:
    given = SamplingParams(
        logit_bias={3: 1.5, 40: -2.0}, bad_words=[[1], [2, 3]], allowed_token_ids=[0, 31, 32, 69], logprob_token_ids=[9]
    )
    rules = logit_rules(given, 70)
    padded = np.concatenate([rules.packed(), np.full(10, -1, np.int32)])
    found = unpacked(padded, rules.mask)
    for name in LogitRules.__slots__:
        np.testing.assert_array_equal(getattr(found, name), getattr(rules, name))


def test_penalties() -> None:
    logits = np.array([2.0, -2.0, 1.0, 4.0], np.float32)
    got = adjust_logits(logits, adjust((0, 1, 0), (3, 3, 1), repetition_penalty=2.0))
    np.testing.assert_allclose(got, [1.0, -4.0, 1.0, 2.0])
    got = adjust_logits(logits, adjust((0,), (3, 3, 1), frequency_penalty=0.5, presence_penalty=0.25))
    np.testing.assert_allclose(got, [2.0, -2.75, 1.0, 2.75])
    assert logits.tolist() == [2.0, -2.0, 1.0, 4.0], "the model's logits stay"


@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=3, max_size=30),
    temperature=st.floats(0.05, 5),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 30),
    min_p=st.floats(0, 1),
    u=st.floats(0, 1, exclude_max=True),
)
def test_always_chooses_something_at_least_as_likely_as_the_limits_ask(
    logits: list[float], temperature: float, top_p: float, top_k: int, min_p: float, u: float
) -> None:
    row = np.array(logits, np.float32)
    token = choose(row, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, u=u)
    weight = math.exp((float(row[token]) - float(row.max())) / temperature)
    assert weight >= min_p * 0.999
    if top_k:
        weights = np.exp((row - row.max()) / np.float32(temperature))
        assert int((weights > weights[token]).sum()) < top_k


def test_log_probabilities_rank_and_alternatives() -> None:
    logprob, rank, (ids, values) = log_probabilities(FOUR + 7, 2, 2)
    assert logprob == pytest.approx(math.log(0.2), abs=1e-6)
    assert rank == 3
    assert ids.tolist() == [0, 1]
    np.testing.assert_allclose(values, np.log([0.4, 0.3]), atol=1e-6)
    tied = np.array([1.0, 2.0, 2.0, 2.0], np.float32)
    assert log_probabilities(tied, 3, 2)[2][0].tolist() == [1, 2]

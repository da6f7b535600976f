"""The native sampler chooses what the numpy rule chooses."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.packing import address
from octavo_inference.backends.cpu.native.sampling import native_sampling
from octavo_inference.core import sampling as rule
from octavo_inference.core.gather import LogitAdjust, SampleRows
from octavo_inference.core.logit_rules import logit_rules
from octavo_inference.core.model_input import NO_CHOICE, NOT_NUMBERS, Float32, Int32, StepResult
from octavo_inference.core.request import SamplingParams

VOCAB = 1003  # fills no vector


def rows(count: int, **changes: object) -> SampleRows:
    neutral = SampleRows(
        row=np.arange(count, dtype=np.int32),
        position=np.arange(count, dtype=np.int32),
        seed=np.full(count, 7, np.uint64),
        temperature=np.ones(count, np.float32),
        top_p=np.ones(count, np.float32),
        top_k=np.zeros(count, np.int32),
        min_p=np.zeros(count, np.float32),
        logprobs=np.full(count, -1, np.int32),
        adjust=[None] * count,
    )
    return replace(neutral, **changes)  # type: ignore[arg-type]


def sample(kernels: Kernels, logits: Float32, given: SampleRows) -> StepResult:
    stride = -(-logits.shape[1] // 64) * 64
    padded = np.zeros((len(logits), stride), np.float32)
    padded[:, : logits.shape[1]] = logits
    native = native_sampling(given, logits.shape[1])
    kernels.library.octavo_sample(ctypes.byref(native.structure), address(padded), stride, logits.shape[1])
    return native.result()


def peaked(rng: np.random.Generator, count: int) -> Float32:
    return (rng.standard_normal((count, VOCAB)) * 3).astype(np.float32)


def full(count: int, value: float, dtype: type[np.generic] = np.float32) -> object:
    return np.full(count, value, dtype)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_no_numbers_has_no_choice(kernels: Kernels, rng: np.random.Generator, temperature: float) -> None:
    logits = peaked(rng, 6)
    logits[1, 1000] = np.nan
    logits[2] = np.nan
    logits[3, 5] = np.inf
    logits[4] = -np.inf
    logits[5, 5] = -np.inf
    given = rows(6, temperature=full(6, temperature), logprobs=full(6, 2, np.int32))
    got, expected = sample(kernels, logits, given), rule.sample(logits, given)
    assert (got.tokens < 0).tolist() == [False, True, True, True, True, False]
    assert got.tokens.tolist() == expected.tokens.tolist()


@cache
def drawn(changes: tuple[tuple[str, float], ...]) -> tuple[Float32, SampleRows, Int32]:
    """Logits, how to sample from them, and what the rule chooses: once for all variants of the kernels."""
    logits = peaked(np.random.default_rng(0), 400)
    given = rows(400, **{k: full(400, v, np.int32 if k == "top_k" else np.float32) for k, v in changes})
    return logits, given, rule.sample(logits, given).tokens


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.0},
        {},
        {"temperature": 0.3},
        {"temperature": 2.0},
        {"top_k": 1},
        {"top_k": 40},
        {"top_k": 2000},
        {"top_p": 0.9},
        {"top_p": 0.05},
        {"min_p": 0.1},
        {"temperature": 0.7, "top_k": 50, "top_p": 0.8, "min_p": 0.01},
    ],
    ids=str,
)
def test_same_choice_as_the_rule(kernels: Kernels, changes: dict[str, float]) -> None:
    logits, given, expected = drawn(tuple(changes.items()))
    chosen = sample(kernels, logits, given).tokens
    # Weights differ in the last bit between exp implementations, so a draw on a boundary may fall to the neighbour.
    assert np.count_nonzero(chosen != expected) <= (0 if changes.get("temperature") == 0.0 else 1)


def test_ties_keep_the_order_of_ids(kernels: Kernels) -> None:
    logits = np.zeros((200, VOCAB), np.float32)
    for changes in ({"temperature": 0.0}, {"top_k": 5}, {"top_p": 0.1}):
        given = rows(200, **{k: full(200, v, np.int32 if k == "top_k" else np.float32) for k, v in changes.items()})
        np.testing.assert_array_equal(sample(kernels, logits, given).tokens, rule.sample(logits, given).tokens)


def test_log_probabilities_ranks_and_alternatives(kernels: Kernels, rng: np.random.Generator) -> None:
    logits = peaked(rng, 6)
    logits[:, 17] = logits[:, 900] = 11.0
    given = rows(6, logprobs=np.array([-1, 0, 1, 5, 20, VOCAB], np.int32))
    result, expected = sample(kernels, logits, given), rule.sample(logits, given)
    for i in range(1, 6):
        assert result.rank[i] == expected.rank[i]
        assert result.logprob[i] == pytest.approx(expected.logprob[i], abs=1e-5)
        mine, other = result.top[i], expected.top[i]
        assert mine is not None
        assert other is not None
        np.testing.assert_array_equal(mine[0], other[0])
        np.testing.assert_allclose(mine[1], other[1], atol=1e-5)
    assert result.top[0] is None


def test_penalties_and_banned_ids(kernels: Kernels, rng: np.random.Generator) -> None:
    logits = peaked(rng, 60)
    adjust: list[LogitAdjust | None] = [
        LogitAdjust(
            prompt=rng.integers(0, VOCAB, 50).astype(np.int32),
            output=rng.integers(0, 40, 60).astype(np.int32),
            presence_penalty=0.5 * (i % 3),
            frequency_penalty=0.7 * (i % 2),
            repetition_penalty=1.0 + 0.3 * (i % 4),
            banned=np.argsort(logits[i])[-3:].astype(np.int32),
        )
        for i in range(60)
    ]
    adjust[7] = None
    given = rows(60, temperature=full(60, 0.0), logprobs=full(60, 3, np.int32), adjust=adjust)
    result, expected = sample(kernels, logits, given), rule.sample(logits, given)
    np.testing.assert_array_equal(result.tokens, expected.tokens)
    np.testing.assert_allclose(result.logprob, expected.logprob, atol=1e-5)


def test_rules_of_requests(kernels: Kernels, rng: np.random.Generator) -> None:
    """Every kind of rule, alone and with others, beside rows without any; and log-probabilities before all of them."""
    count = 120
    logits = peaked(rng, count)
    nothing = np.empty(0, np.int32)
    adjust: list[LogitAdjust | None] = []
    for i in range(count):
        likely = np.argsort(-logits[i]).tolist()
        given = SamplingParams(
            logit_bias={likely[0]: -7.5, likely[30]: 9.0, VOCAB - 1: 1.0} if i % 2 else {},
            allowed_token_ids=range(i % 7, VOCAB, 7) if i % 3 else (),
            bad_words=[[likely[0]], [5, likely[1]], [4, 5, likely[2]], [9, 5, likely[3]], [1, 2, 3, 4, 5, likely[4]]]
            if i % 5
            else (),
        )
        output = np.array([2, 3, 4, 5], np.int32)
        banned = np.array(likely[5:7], np.int32)
        adjust.append(LogitAdjust(nothing, output, 0.3, 0.0, 1.1, banned, logit_rules(given, VOCAB)) if i % 4 else None)
    named = [np.array([7, VOCAB - 1, 0], np.int32) if i % 6 == 1 else None for i in range(count)]
    wanted = np.array([3 if i % 6 == 1 else i % 3 - 1 for i in range(count)], np.int32)
    rows_ = rows(count, temperature=full(count, 0.0), logprobs=wanted, adjust=adjust, report_ids=named)
    result, expected = sample(kernels, logits, rows_), rule.sample(logits, rows_)
    np.testing.assert_array_equal(result.tokens, expected.tokens)
    for i in np.flatnonzero(wanted >= 0):
        assert result.rank[i] == expected.rank[i]
        np.testing.assert_allclose(result.logprob[i], expected.logprob[i], atol=1e-5)
        np.testing.assert_array_equal(result.top[i][0], expected.top[i][0])  # type: ignore[index]
        np.testing.assert_allclose(result.top[i][1], expected.top[i][1], atol=1e-5)  # type: ignore[index]


def test_a_row_whose_every_id_is_banned_says_so(kernels: Kernels, rng: np.random.Generator) -> None:
    logits = peaked(rng, 3)
    logits[1, 3] = np.nan  # damaged, whatever is allowed
    only = logit_rules(SamplingParams(allowed_token_ids=[5], bad_words=[[5]]), VOCAB)
    nothing = np.empty(0, np.int32)
    adjust = LogitAdjust(nothing, nothing, 0.0, 0.0, 1.0, nothing, only)
    given = rows(3, adjust=[adjust, adjust, None])
    assert sample(kernels, logits, given).tokens.tolist()[:2] == [NO_CHOICE, NOT_NUMBERS]
    assert rule.sample(logits, given).tokens.tolist()[:2] == [NO_CHOICE, NOT_NUMBERS]


def test_frequencies_follow_the_distribution(kernels: Kernels) -> None:
    weights = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.full((20_000, 16), -1e30, np.float32)
    logits[:, :4] = np.log(weights)
    tokens = sample(kernels, logits, rows(20_000)).tokens
    np.testing.assert_allclose(np.bincount(tokens, minlength=4) / 20_000, weights, atol=0.012)

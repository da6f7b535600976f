"""Greedy steps keep only the best logit of each row: the token is the one that the rule chooses from the logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.sampling import native_sampling
from octavo_inference.core import sampling as rule
from octavo_inference.core.gather import Batch, LogitAdjust
from octavo_inference.core.logit_rules import LogitRules, bitmask
from octavo_inference.core.model_input import NO_CHOICE, NOT_NUMBERS, Int32
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Tensor, bf16_bits

from .test_forward import MIXED, TINY, Float32, Story, batch_of, create, quantised_weights, random_weights

ROWS = 24


def chosen(kernels: Kernels, config: ModelConfig, head: Float32 | None, dtype: str, threads: int) -> list[list[int]]:
    """Tokens of a step for each number of rows. They equal those of the rule."""
    rng = np.random.default_rng(5)
    weights = quantised_weights(config, rng, MIXED) if dtype == "auto" else random_weights(config, rng)
    if head is not None:
        weights = replace(weights, lm_head=Tensor("bf16", head.shape, bf16_bits(head)))
    backend = create(config, weights, kernels, dtype=dtype, max_running=ROWS, num_blocks=ROWS, threads=threads)
    given = [Story(rng.integers(0, config.vocab, 9).tolist(), [i], 0, 9) for i in range(ROWS)]
    found = []
    for rows in (1, 2, 3, 4, 5, 9, ROWS):
        batch = batch_of(given[:rows])
        logits = backend.logits(batch)
        backend._logits[:] = 7  # a step that reads them chooses id 0
        tokens = backend.step(batch).tokens.tolist()
        assert tokens == rule.sample(logits, batch.sample).tokens.tolist()
        assert (backend._logits == 7).all()
        found.append(tokens)
    return found


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "auto"])
def test_same_token_as_the_rule(kernels: Kernels, dtype: str, threads: int) -> None:
    for changes in ({}, {"logit_scale": 0.3, "logit_softcap": 2.0, "vocab": 320}):
        config = replace(TINY, intermediate=128, **changes)  # type: ignore[arg-type]
        tokens = chosen(kernels, config, None, dtype, threads)
        assert len(set(tokens[-1])) > ROWS // 4


@pytest.mark.parametrize("softcap", [None, 1e-3])
def test_ties_keep_the_lowest_id(kernels: Kernels, rng: np.random.Generator, softcap: float | None) -> None:
    """Equal rows in every panel; with a small cap, most of the large logits become equal too."""
    distinct = rng.standard_normal((7, TINY.hidden)).astype(np.float32)
    head = distinct[rng.integers(0, 7, TINY.vocab)]
    first = {int(np.flatnonzero((head == row).all(1))[0]) for row in distinct}
    for tokens in chosen(kernels, replace(TINY, logit_softcap=softcap), head, "bfloat16", 3):
        assert set(tokens) <= first


@pytest.mark.parametrize("at", [0, 150, TINY.vocab - 1])
def test_rows_that_are_no_numbers(kernels: Kernels, at: int) -> None:
    head = np.zeros((TINY.vocab, TINY.hidden), np.float32)
    head[at, 3] = np.inf  # +inf in rows whose hidden state is positive there, else -inf
    tokens = chosen(kernels, TINY, head, "float32", 2)[-1]
    assert {NOT_NUMBERS, int(at == 0)} == set(tokens)
    head[:, 3] = np.inf
    assert {NOT_NUMBERS, NO_CHOICE} == set(chosen(kernels, TINY, head, "float32", 2)[-1])
    head[at, 4] = np.nan
    assert {NOT_NUMBERS} == set(chosen(kernels, TINY, head, "float32", 2)[-1])


def test_a_row_that_needs_its_logits_leaves_none_out(kernels: Kernels, rng: np.random.Generator) -> None:
    """One row with log-probabilities: all logits are stored, and the tokens are the same."""
    backend = create(TINY, random_weights(TINY, rng), kernels)
    given = [Story(rng.integers(0, TINY.vocab, 9).tolist(), [i], 0, 9) for i in range(3)]
    batch = batch_of(given)
    wanted = replace(batch.sample, logprobs=np.array([-1, 2, -1], np.int32))
    result = backend.step(replace(batch, sample=wanted))
    assert result.tokens.tolist() == backend.step(batch).tokens.tolist()
    assert result.top[1] is not None
    assert result.top[1][0][0] == result.tokens[1]


def masked(batch: Batch, masks: list[Int32 | None]) -> Batch:
    """The batch with a mask for some of its rows, and no other change."""
    none = np.empty(0, np.int32)
    adjust = [mask if mask is None else LogitAdjust(none, none, 0, 0, 1, none, LogitRules(mask=mask)) for mask in masks]
    return replace(batch, sample=replace(batch.sample, adjust=adjust))


def random_mask(rng: np.random.Generator, vocab: int) -> Int32 | None:
    """No mask, or one that allows no id, one, a few, most or all of them."""
    share = rng.choice([-1, 0, 1 / vocab, 0.05, 0.5, 0.98, 1])
    if share < 0:
        return None
    return bitmask(tuple(np.flatnonzero(rng.random(vocab) < share).tolist()), vocab)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("vocab", [320, 331, 1003])
def test_masked_rows_keep_the_best_allowed_id(kernels: Kernels, vocab: int, threads: int) -> None:
    """Random masks, ties, and ids whose logit is infinite or NaN: the token of the rule, from no stored logits."""
    rng = np.random.default_rng(vocab)
    seen: set[int] = set()
    for special in (0.0, -np.inf, np.inf, np.nan):
        config = replace(TINY, vocab=vocab)
        weights = random_weights(config, rng)
        # Few distinct rows, so that most maxima are ties.
        head = rng.standard_normal((9, config.hidden)).astype(np.float32)[rng.integers(0, 9, vocab)]
        head[rng.integers(0, vocab), 3] = special  # infinite with the sign of the hidden state's element
        weights = replace(weights, lm_head=Tensor("bf16", head.shape, bf16_bits(head)))
        backend = create(config, weights, kernels, max_running=ROWS, num_blocks=ROWS, threads=threads)
        for _ in range(4):
            given = [Story(rng.integers(0, vocab, 9).tolist(), [i], 0, 9) for i in range(ROWS)]
            batch = masked(batch_of(given), [random_mask(rng, vocab) for _ in given])
            wanted = rule.sample(backend.logits(batch), batch.sample).tokens.tolist()
            backend._logits[:] = 7
            assert backend.step(batch).tokens.tolist() == wanted
            backend._run(batch, abi.SamplingArgs(count=0), choose=False)
            assert backend._choose(batch, native_sampling(batch.sample, vocab)).tokens.tolist() == wanted
            assert (backend._logits == 7).all()
            seen.update(wanted)
    assert {NO_CHOICE, NOT_NUMBERS} < seen

"""Kernels and engine with speculation: every answer, its log-probabilities too, is that of one token at a time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.support.tiers import scaled

from octavo_inference.backends.cpu.backend import CpuBackend
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.request import Output, Request, SamplingParams
from octavo_inference.core.speculation.draft_model import DraftModel
from octavo_inference.core.speculation.proposers import NgramProposer, Proposer
from octavo_inference.core.speculation.speculator import Speculator
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Tensor, Weights

from ..engine.test_speculation import Remembered  # noqa: TID252 -- tests are no package
from .test_forward import TINY, Story, batch_of, create, random_weights

BLOCK, LONGEST, ANSWER, ROWS = 16, 96, 40, 8
WINDOWS: dict[str, tuple[int | None, ...]] = {"plain": (None, None), "windows": (None, 20, 40, 20)}
# Everything that changes how a token is chosen.
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 3, "n": 2},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.2, "min_p": 0.05, "n": 3, "logprobs": 1},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.4},
    {"temperature": 0.7, "repetition_penalty": 1.2, "top_p": 0.95},
    {"temperature": 0.0, "min_tokens": 12, "stop_token_ids": tuple(range(0, 301, 3))},
    {"temperature": 0.8, "min_tokens": 9, "stop_token_ids": tuple(range(0, 301, 2)), "logprobs": 0},
    {"temperature": 0.0, "logit_bias": ((7, 4.0), (9, -3.0)), "allowed_token_ids": tuple(range(5, 40))},
    {"temperature": 0.0, "allowed_token_ids": (5, 6, 7, 8), "bad_words": ((5, 6), (7,), (6, 8, 5))},
    {"temperature": 0.6, "logprob_token_ids": (3, 4), "logprobs": 0},
)
Answers = dict[tuple[str, int], list[Output]]


@cache
def model(pattern: str, seed: int = 4) -> tuple[ModelConfig, Weights]:
    windows = WINDOWS[pattern]
    config = replace(TINY, layers=len(windows), windows=windows if any(windows) else ())
    return config, random_weights(config, np.random.default_rng(seed))


def backend(kernels: Kernels, pattern: str, seed: int = 4) -> CpuBackend:
    config, weights = model(pattern, seed)
    return CpuBackend.create(
        config, weights, kernels=kernels, num_blocks=200, block_size=BLOCK, max_batched_tokens=64,
        max_model_len=LONGEST, max_running=ROWS, max_samples=3 * ROWS, dtype="float32", threads=2,
    )  # fmt: skip


def serve(
    kernels: Kernels, pattern: str, proposer: Proposer | None, samplings: tuple[dict[str, Any], ...] = SAMPLINGS
) -> tuple[Answers, Engine]:
    config, _ = model(pattern)
    limits = EngineLimits(LONGEST, ROWS, 64, 99, max_samples=3 * ROWS)
    speculator = None if proposer is None else Speculator(proposer, 5)
    engine = Engine(backend(kernels, pattern), config, limits, clock=lambda: 0.0, speculator=speculator)
    shared = np.random.default_rng(5).integers(1, config.vocab, LONGEST)
    for number, sampling in enumerate(samplings):
        prompt = [*shared[: 3 * number].tolist(), number, 2, 3, number, 2]
        given = {"max_tokens": ANSWER, "seed": number, "ignore_eos": number % 2 == 0, **sampling}
        engine.submit(Request(id=str(number), tokens=prompt, sampling=SamplingParams(**given)))
    found: Answers = {}
    while engine.has_work:
        for output in engine.step():
            found.setdefault((output.id, output.index), []).append(output)
        engine.check()
    return found, engine


def tokens(answers: Answers) -> dict[tuple[str, int], list[int]]:
    return {key: [token for output in outputs for token in output.tokens] for key, outputs in answers.items()}


def logprobs(answers: Answers) -> dict[tuple[str, int], list[Any]]:
    return {key: [each for output in outputs for each in output.logprobs or ()] for key, outputs in answers.items()}


def ends(answers: Answers) -> dict[tuple[str, int], Any]:
    return {key: (outputs[-1].finish_reason, outputs[-1].stop_reason) for key, outputs in answers.items()}


@pytest.mark.parametrize("pattern", WINDOWS)
def test_answers_are_those_of_one_token_at_a_time(kernels: Kernels, pattern: str) -> None:
    expected, _ = serve(kernels, pattern, None)
    randomness = random.Random(3)
    draft = backend(kernels, "plain", seed=4 if pattern == "plain" else 5)
    config, _ = model(pattern)
    proposers: dict[str, Proposer] = {
        "right and wrong ones": Remembered(tokens(expected), randomness),
        "from the text": NgramProposer(2),
        "of a model": DraftModel(draft, group=0, tokens=64, vocab=config.vocab),
    }
    for name, proposer in proposers.items():
        found, engine = serve(kernels, pattern, proposer)
        assert tokens(found) == tokens(expected), name
        assert logprobs(found) == logprobs(expected), name
        assert ends(found) == ends(expected), name
        totals = engine.speculation
        assert totals is not None
        assert totals.drafted > 0, name
        if name == "right and wrong ones":
            assert 0 < totals.accepted < totals.drafted


def test_a_draft_model_with_the_same_weights_is_always_right(kernels: Kernels) -> None:
    """At any temperature: it samples with the same random numbers. Without the penalties and rules it does not know."""
    config, _ = model("plain")
    samplings = tuple(each for each in SAMPLINGS if not each.keys() & {"repetition_penalty", "logit_bias", "bad_words"})
    samplings = tuple(each | {"min_tokens": 0, "stop_token_ids": ()} for each in samplings)
    draft = DraftModel(backend(kernels, "plain"), group=0, tokens=64, vocab=config.vocab)
    _, engine = serve(kernels, "plain", draft, samplings)
    totals = engine.speculation
    assert totals is not None
    assert totals.accepted == totals.drafted > 100


def logits_after(kernels: Kernels, text: list[int]) -> np.ndarray:
    config, weights = model("plain")
    alone = create(config, weights, kernels, dtype="float32")
    return alone.logits(batch_of([Story(text, [0], 0, len(text))]))[-1].astype(np.float64)


def probabilities(logits: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """Of each id, after min-p, top-k and top-p in this order."""
    weights = np.exp((logits - logits.max()) / sampling.temperature)
    weights[weights < sampling.min_p] = 0
    if sampling.top_k:
        weights[weights < np.sort(weights)[-sampling.top_k]] = 0
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    weights[order[before >= sampling.top_p * weights.sum()]] = 0
    return weights / weights.sum()


@pytest.mark.parametrize("sampling", [{}, {"top_k": 12, "top_p": 0.9}, {"min_p": 0.1, "temperature": 0.5}])
def test_tokens_behind_guesses_have_the_probabilities_of_the_model(kernels: Kernels, sampling: dict[str, Any]) -> None:
    """A draft model whose probabilities are flatter is right in part. A χ² test of the second token of answers.

    Expected are the model's probabilities after the first token that most answers have.
    """
    config, weights = model("plain")
    norm = weights.final_norm
    assert norm is not None
    flatter = replace(weights, final_norm=Tensor("f32", norm.shape, np.float32(0.7) * norm.data.view(np.float32)))
    small = create(config, flatter, kernels, num_blocks=200, block_size=BLOCK, max_running=ROWS, max_model_len=LONGEST)
    draft = DraftModel(small, group=0, tokens=64, vocab=config.vocab)
    native = backend(kernels, "plain")
    limits = EngineLimits(LONGEST, ROWS, 64, 100_000, max_samples=3 * ROWS)
    engine = Engine(native, config, limits, clock=lambda: 0.0, speculator=Speculator(draft, 2))
    prompt, draws = [3, 1, 2], scaled(1500)
    for seed in range(draws):
        params = SamplingParams(**{"temperature": 0.35, **sampling}, seed=seed, max_tokens=3, ignore_eos=True)
        engine.submit(Request(id=str(seed), tokens=prompt, sampling=params))
    counts: Counter[tuple[int, ...]] = Counter()
    answers: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step():
            answers.setdefault(output.id, []).extend(output.tokens)
            if output.finish_reason is not None:
                counts[tuple(answers.pop(output.id))] += 1
    totals = engine.speculation
    assert totals is not None
    assert 0 < totals.accepted < totals.drafted
    first = Counter(answer[0] for answer in counts.elements()).most_common(1)[0][0]
    seen = Counter(answer[1] for answer in counts.elements() if answer[0] == first)
    params = SamplingParams(**{"temperature": 0.35, **sampling})
    expected = probabilities(logits_after(kernels, [*prompt, first]), params) * seen.total()
    assert all(expected[token] > 0 for token in seen), "a token that the rules drop"
    # Ids that are expected less than five times count as one.
    often = expected >= 5
    observed = np.array([seen[token] for token in range(config.vocab)], np.float64)
    pairs = [*zip(observed[often], expected[often], strict=True), (observed[~often].sum(), expected[~often].sum())]
    statistic = sum((found - wanted) ** 2 / wanted for found, wanted in pairs if wanted > 0)
    degrees = sum(wanted > 0 for _, wanted in pairs) - 1
    assert degrees > 3
    # 99.99 % of all χ² with so many degrees of freedom are smaller (Wilson and Hilferty 1931).
    assert statistic < degrees * (1 - 2 / (9 * degrees) + 3.719 * (2 / (9 * degrees)) ** 0.5) ** 3

"""Log-probabilities of prompts on the reference backend: the same bits however the prompt was computed."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from octavo_inference.core.gather import Batch, SampleRows
from octavo_inference.core.request import TokenLogprobs
from octavo_inference.core.sampling import log_probabilities
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Weights

from .echo import Runner, make_runner, tiny_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="the reference backend needs torch"),
]

Tiny = tuple[ModelConfig, Weights]
Entries = list[TokenLogprobs | None]
RNG = np.random.default_rng(3)
PROMPTS = [RNG.integers(0, 60, length).tolist() for length in (1, 2, 9, 21, 30)]
PROMPTS.append([*PROMPTS[4][:24], 7, 8])


def reference(blocks: int = 64) -> Any:
    from octavo_inference.backends.reference.backend import ReferenceBackend

    return ReferenceBackend(*tiny_model(), num_blocks=blocks, block_size=4, max_model_len=64)


def scored(run: Runner, request_id: str) -> Entries:
    """Run to the end; the prompt's log-probabilities of a request, which only its first output has."""
    found = []
    while run.engine.has_work:
        found += [output for output in run.step() if output.prompt_logprobs is not None]
    [entries] = [output.prompt_logprobs for output in found if output.id == request_id]
    assert entries is not None
    return entries


def alone(prompt: list[int], count: int) -> Entries:
    run = make_runner(reference(), caching=False)
    run.submit("r", prompt, prompt_logprobs=count, max_tokens=1)
    return scored(run, "r")


@pytest.mark.parametrize("count", [0, 3])
def test_they_are_those_of_the_logits_of_the_whole_prompt(count: int) -> None:
    prompt = PROMPTS[4]
    at = np.arange(len(prompt), dtype=np.int32)
    blocks = np.arange(8, dtype=np.int32)[None]
    logits = reference().logits(
        Batch(
            tokens=np.array(prompt, np.int32),
            positions=at,
            slots=at,
            query_start=np.array([0, len(prompt)], np.int32),
            seq_len=np.array([len(prompt)], np.int32),
            block_table=blocks,
            sample=SampleRows.greedy(at, at + 1),
        )
    )
    first, *entries = alone(prompt, count)
    assert first is None
    assert len(entries) == len(prompt) - 1
    for row, token, entry in zip(logits, prompt[1:], entries, strict=False):
        logprob, rank, (ids, values) = log_probabilities(row, token, count)
        assert entry == TokenLogprobs(float(np.float32(logprob)), rank, ids.tolist(), values.tolist())


def test_a_prompt_of_one_token_has_no_log_probability() -> None:
    assert alone(PROMPTS[0], 2) == [None]


@pytest.mark.parametrize(
    ("blocks", "limits"),
    [
        (64, {"budget": 64}),
        (64, {"budget": 5, "max_running": 3}),
        (64, {"budget": 7, "max_running": 4, "bound": 3}),
        (64, {"budget": 40, "max_running": 4, "bound": 3, "chunked": False}),
        (17, {"budget": 24, "max_running": 6}),
        (17, {"budget": 24, "max_running": 6, "host_blocks": 40}),
    ],
    ids=["at once", "chunks", "few at a time", "few at a time though whole", "preemption", "preemption by swap"],
)
def test_company_chunks_and_preemption_change_no_bit(blocks: int, limits: dict[str, Any]) -> None:
    backend = reference(blocks)
    backend.max_prompt_scores = limits.pop("bound", None)
    run = make_runner(backend, **limits)
    for i, prompt in enumerate(PROMPTS):
        given = {"prompt_logprobs": i % 3} if i else {}
        run.submit(str(i), prompt, max_tokens=20, ignore_eos=True, n=1 + (i == 3), **given)
    found: dict[str, Entries] = {}
    while run.engine.has_work:
        for output in run.step():
            if output.prompt_logprobs is not None:
                assert output.index == 0
                assert output.id not in found
                found[output.id] = output.prompt_logprobs
    assert found == {str(i): alone(prompt, i % 3) for i, prompt in enumerate(PROMPTS) if i}
    assert (run.engine.scheduler.preemptions > 0) == (blocks < 64)


def test_a_cached_prefix_is_computed_again_and_others_use_what_it_computed() -> None:
    run = make_runner(reference())
    run.submit("before", PROMPTS[4])
    run.finish()
    run.submit("r", PROMPTS[5], prompt_logprobs=1)
    assert scored(run, "r") == alone(PROMPTS[5], 1)
    assert run.final["r", 0].cached_tokens == 0
    run.submit("after", PROMPTS[5])
    run.finish()
    assert run.final["after", 0].cached_tokens == 24


def test_no_step_computes_more_than_the_bound_of_scored_prompts() -> None:
    backend = reference()
    backend.max_prompt_scores = 4
    run = make_runner(backend, budget=64)
    taken = []
    launch = backend.launch
    backend.launch = lambda step: taken.append(sum(s.length for s in step.scores)) or launch(step)
    for i in range(3):
        run.submit(str(i), PROMPTS[3], prompt_logprobs=0, max_tokens=1)
    run.finish()
    assert max(taken) <= 4
    assert sum(taken) == 3 * (len(PROMPTS[3]) - 1)


def test_a_prompt_whose_logits_are_no_numbers_ends_with_an_error() -> None:
    backend = reference()
    backend._head = backend._head.clone()
    backend._head[5, 3] = float("nan")
    run = make_runner(backend, budget=4)
    run.submit("r", PROMPTS[3], prompt_logprobs=0)
    run.finish()
    assert run.final["r", 0].finish_reason == "error"
    assert "is not a number" in str(run.final["r", 0].error)

"""Rules and log-probabilities of requests through `LLM`, on every backend that this machine has."""

from __future__ import annotations

import random
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.native import needs_native, require_native

from octavo_inference import LLM, SamplingParams
from octavo_inference.completion import RequestOutput
from octavo_inference.core.grammar_compiler import GrammarCompiler
from octavo_inference.core.request import Guidance

from ...unit.engine.fake_grammar import FakeMatcher, grammar  # noqa: TID252 -- tests are no package
from .families import FAMILIES, VOCAB, build, save

pytestmark = pytest.mark.timeout(900)

BACKENDS = ["cpu", "reference", "transformers"]
RNG = np.random.default_rng(1)
PROMPTS = [RNG.integers(3, VOCAB, length).tolist() for length in (1, 2, 33, 70)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path, built = tmp_path_factory.mktemp("model"), build(FAMILIES["qwen3"])
    save(built, path)
    return path, built


def load(model: tuple[Path, Any], backend: Any, **given: Any) -> LLM:
    if backend == "cpu":
        require_native()
    sizes = {"max_model_len": 128, "kv_memory": "4Mi", "max_running_requests": 6, "max_batched_tokens": 128}
    return LLM(str(model[0]), backend=backend, dtype="float32", **(sizes | given))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("budget", [128, 16])
def test_prompt_log_probabilities_are_those_of_transformers(model: tuple[Path, Any], backend: str, budget: int) -> None:
    llm = load(model, backend, max_batched_tokens=budget)
    params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=3)
    for prompt, result in zip(PROMPTS, llm.generate(PROMPTS, params, use_tqdm=False), strict=True):
        with torch.inference_mode():
            expected = torch.log_softmax(model[1](torch.tensor([prompt])).logits[0].double(), -1).numpy()
        assert result.prompt_logprobs is not None
        assert result.prompt_logprobs[0] is None
        assert len(result.prompt_logprobs) == len(prompt)
        for row, token, entry in zip(expected, prompt[1:], result.prompt_logprobs[1:], strict=False):
            assert entry is not None
            assert entry.logprob == pytest.approx(row[token], abs=1e-4)
            assert entry.rank == 1 + int((row > row[token]).sum())
            np.testing.assert_allclose(entry.top_logprobs, row[entry.top_ids], atol=1e-4)
            assert entry.top_ids == np.argsort(-row, kind="stable")[:3].tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rules_give_the_tokens_of_the_reference(model: tuple[Path, Any], backend: str) -> None:
    found, expected = (
        load(model, name).generate(PROMPTS * 2, rules(), use_tqdm=False) for name in (backend, "reference")
    )
    for mine, other in zip(found, expected, strict=True):
        assert mine.outputs[0].token_ids == other.outputs[0].token_ids
        for a, b in zip(mine.outputs[0].logprobs or [], other.outputs[0].logprobs or [], strict=True):
            assert (a.rank, a.top_ids) == (b.rank, b.top_ids)
            np.testing.assert_allclose([a.logprob, *a.top_logprobs], [b.logprob, *b.top_logprobs], atol=1e-3)


@pytest.mark.parametrize("backend", ["cpu", "transformers"])
def test_guided_answers_are_those_of_the_reference(model: tuple[Path, Any], backend: str) -> None:
    """Grammars whose matchers are the tests' own, so that a model with a toy tokenizer will do."""
    guidance = Guidance(grammar=grammar(3, 9), after=(5, 6), thinking_budget=4)
    params = [
        SamplingParams(temperature=0.0, max_tokens=16, frequency_penalty=0.4, allowed_token_ids=range(60)),
        SamplingParams(temperature=1.0, seed=3, max_tokens=16, n=2),
        SamplingParams(temperature=1.0, seed=4, max_tokens=16, logprobs=1),
    ]
    found, wanted = [], []
    for name, tokens in ((backend, found), ("reference", wanted)):
        llm = load(model, name)
        llm.engine.guided.compiler = GrammarCompiler(lambda: FakeMatcher, time.monotonic)
        for one in params:
            results = llm.generate(PROMPTS, one, guidance=guidance, use_tqdm=False)
            tokens += [output.token_ids for result in results for output in result.outputs]
        assert llm.engine.counters.guidance.forced_tokens > 0
    assert found == wanted
    assert all(answer[4:6] == [5, 6] for answer in found)


def rules() -> list[SamplingParams]:
    common: dict[str, Any] = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True}
    return [
        SamplingParams(**common, logit_bias={7: 3.0, 9: -50.0}, logprobs=2),
        SamplingParams(**common, allowed_token_ids=range(0, VOCAB, 5), frequency_penalty=0.4, logprobs=2),
        SamplingParams(**common, bad_words=[[5], *[[a, b] for a in range(8) for b in range(8)]]),
        SamplingParams(**common, logprob_token_ids=[3, 1, VOCAB - 1]),
        SamplingParams(
            **common | {"temperature": 1.1}, seed=3, allowed_token_ids=range(40), bad_words=[[1, 2]], top_p=0.9
        ),
        SamplingParams(**common, presence_penalty=1.0, logit_bias={4: 9.0}, logprobs=0),
        SamplingParams(**common),
        SamplingParams(**common | {"temperature": 0.8}, seed=4, min_tokens=4, allowed_token_ids=[1, 2, 3, 4]),
    ]


def test_allowed_ids_hold_on_real_weights() -> None:
    require_native()
    llm = LLM("smollm2", backend="cpu", max_model_len=256, kv_memory="32Mi")
    digits = [llm.tokenizer.encode(text).ids[0] for text in "0123456789"]
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=12, allowed_token_ids=digits, n=3)
    [result] = llm.generate("The answer is ", params, use_tqdm=False)
    assert all(set(output.token_ids) <= set(digits) for output in result.outputs)
    assert all(output.text.isdigit() for output in result.outputs)


STORY = (
    "In a small town by the sea there lived a clockmaker who repaired every clock but his own. Each morning he walked "
    "along the harbour, counted the boats, and wrote their number into a little book with a red cover. "
)
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "was", "gone", "because", "of", "rain", "over")
COUNT = 20


def mixed() -> tuple[list[str], list[SamplingParams]]:
    """Prompts with and without a common prefix; rows with every kind of rule beside rows without any."""
    rng = random.Random(0)
    prompts = [
        rng.choice(["", STORY]) + " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 40))) for _ in range(COUNT)
    ]
    params = [
        SamplingParams(
            temperature=0.9 if i % 3 == 0 else 0.0,
            seed=i,
            max_tokens=rng.choice([8, 40, 120]),
            ignore_eos=True,
            logit_bias={rng.randrange(49_000): 4.0, 28: -3.0} if i % 4 == 1 else {},
            allowed_token_ids=rng.sample(range(49_000), 3000) if i % 4 == 2 else (),
            bad_words=[[a, b] for a in range(260, 270) for b in range(260, 270)] if i % 5 == 1 else [],
            prompt_logprobs=i % 3 if i % 2 else None,
            logprob_token_ids=[5, 9] if i % 7 == 3 else (),
            logprobs=1 if i % 7 == 4 else None,
            presence_penalty=0.5 * (i % 2),
        )
        for i in range(COUNT)
    ]
    return prompts, params


def told(results: list[RequestOutput]) -> list[Any]:
    return [(r.outputs[0].token_ids, r.outputs[0].logprobs, r.prompt_logprobs) for r in results]


@cache
def solo() -> list[Any]:
    """Each request in a batch of its own, its prompt computed at once."""
    llm = LLM("smollm2", backend="cpu", max_model_len=256, kv_memory="32Mi", prefix_caching=False)
    prompts, params = mixed()
    return [told(llm.generate([prompt], [one], use_tqdm=False))[0] for prompt, one in zip(prompts, params, strict=True)]


@needs_native
@pytest.mark.parametrize(
    "settings",
    [{}, {"preemption": "swap", "swap_memory": "32Mi"}, {"prefix_caching": False, "max_batched_tokens": 17}],
    ids=["recompute", "swap", "small chunks"],
)
def test_any_mix_is_solo_with_rules_and_prompt_log_probabilities(settings: dict[str, Any]) -> None:
    small = {"max_running_requests": 12, "max_batched_tokens": 48, "kv_memory": 14 * 32 * 23040}
    llm = LLM("smollm2", backend="cpu", max_model_len=256, **(small | settings))
    assert told(llm.generate(*mixed(), use_tqdm=False)) == solo()
    assert llm.engine.scheduler.preemptions > 0
    assert (llm.engine.scheduler.swaps > 0) == ("swap_memory" in settings)
    llm.engine.check()

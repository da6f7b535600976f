"""The reference backend: the same bits whatever the batch."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo_inference.core.gather import Batch, SampleRows
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Tensor, Weights

# Looked for and not imported: that takes seconds, in every worker that collects this module.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="the reference backend needs torch"),
]

Tiny = tuple[ModelConfig, Weights]
Make = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def backend(tiny: Tiny, blocks: int = 64) -> Any:
    from octavo_inference.backends.reference.backend import ReferenceBackend

    return ReferenceBackend(*tiny, num_blocks=blocks, block_size=4, max_model_len=128)


def chunk(tokens: list[int], first: int, last: int, blocks: list[int], size: int = 4) -> Batch:
    """Tokens [first, last) of one sequence, logits of each."""
    at = np.arange(first, last, dtype=np.int32)
    count = len(at)
    table = np.array([blocks], np.int32)
    sample = SampleRows.greedy(np.arange(count, dtype=np.int32), at + 1)
    return Batch(
        tokens=np.array(tokens[first:last], np.int32),
        positions=at,
        slots=(table[0, at // size] * size + at % size).astype(np.int32),
        query_start=np.array([0, count], np.int32),
        seq_len=np.array([last], np.int32),
        block_table=table,
        sample=sample,
    )


def with_everything(tiny: Tiny) -> Tiny:
    """The model with windows, norms and caps in all places that have one."""
    config, weights = tiny
    rng = np.random.default_rng(2)

    def norm(size: int) -> Tensor:
        return Tensor("f32", (size,), 1 + 0.3 * rng.standard_normal(size).astype(np.float32))

    layers = tuple(
        replace(
            layer,
            q_norm=norm(config.head_dim),
            k_norm=norm(config.head_dim),
            attention_output_norm=norm(config.hidden),
            mlp_output_norm=norm(config.hidden),
        )
        for layer in weights.layers
    )
    config = replace(
        config,
        windows=(5, None),
        local_rope_theta=100.0,
        attention_softcap=4.0,
        logit_softcap=6.0,
        activation="gelu_tanh",
        qk_norm="head",
        output_norms=True,
    )
    return config, replace(weights, layers=layers)


@pytest.mark.parametrize("change", [lambda tiny: tiny, with_everything], ids=["plain", "with everything"])
def test_a_prompt_in_chunks_gives_the_same_bits_as_at_once(tiny: Tiny, change: Callable[[Tiny], Tiny]) -> None:
    tiny = change(tiny)
    tokens = np.random.default_rng(1).integers(0, 60, 23).tolist()
    whole = backend(tiny).logits(chunk(tokens, 0, 23, [3, 1, 4, 0, 5, 9]))
    parts = backend(tiny)
    cuts = [0, 1, 5, 6, 17, 22, 23]
    pieces = [parts.logits(chunk(tokens, a, b, [7, 2, 8, 1, 6, 0])) for a, b in itertools.pairwise(cuts)]
    assert np.array_equal(whole, np.concatenate(pieces))


PROMPTS = [np.random.default_rng(i).integers(0, 60, size).tolist() for i, size in enumerate((3, 17, 30, 8, 21, 12))]


@pytest.fixture(scope="module")
def expected(tiny: Tiny, runner: Make) -> dict[tuple[str, int], list[int]]:
    """Each prompt alone, at once, nothing shared: half of them greedy, half sampled."""
    tokens: dict[tuple[str, int], list[int]] = {}
    for i, prompt in enumerate(PROMPTS):
        run = runner(backend(tiny), max_model_len=64, budget=64, caching=False)
        run.submit(str(i), prompt, temperature=i % 2, seed=i, max_tokens=14, ignore_eos=True)
        tokens |= run.finish()
    return tokens


@pytest.mark.parametrize(
    ("case", "setup"),
    [
        ("company", {}),
        ("chunks", {"budget": 5, "max_running": 5}),
        ("preemption", {"blocks": 17}),
    ],
)
def test_company_chunks_and_preemption_change_no_token(
    tiny: Tiny, runner: Make, expected: dict[tuple[str, int], list[int]], case: str, setup: dict[str, int]
) -> None:
    blocks = setup.get("blocks", 64)
    run = runner(
        backend(tiny, blocks),
        max_model_len=64,
        budget=setup.get("budget", 40),
        max_running=setup.get("max_running", 8),
        caching=False,
    )
    for i, prompt in enumerate(PROMPTS):
        run.submit(str(i), prompt, temperature=i % 2, seed=i, max_tokens=14, ignore_eos=True)
    assert run.finish() == expected
    if case == "preemption":
        assert run.engine.scheduler.preemptions > 0


def test_prefix_hits_change_no_token(tiny: Tiny, runner: Make, expected: dict[tuple[str, int], list[int]]) -> None:
    run = runner(backend(tiny), max_model_len=64, budget=40)
    for turn in range(2):
        for i, prompt in enumerate(PROMPTS):
            run.submit(f"{turn}-{i}", prompt, temperature=i % 2, seed=i, max_tokens=14, ignore_eos=True)
        run.finish()
    assert run.engine.scheduler.hit_tokens > 0
    for (name, _), tokens in expected.items():
        assert run.tokens[f"0-{name}", 0] == run.tokens[f"1-{name}", 0] == tokens


def test_logprobs_are_those_of_the_logits(tiny: Tiny, runner: Make) -> None:
    run = runner(backend(tiny), max_model_len=64)
    run.submit("r", PROMPTS[0], logprobs=3, max_tokens=1)
    [output] = run.step()
    logits = backend(tiny).logits(chunk(PROMPTS[0], 0, 3, [0]))[-1].astype(np.float64)
    reference = logits - np.log(np.exp(logits).sum())
    entry = output.logprobs[0]
    assert entry.rank == 1
    assert entry.top_ids == np.argsort(-reference)[:3].tolist()
    np.testing.assert_allclose(entry.top_logprobs, np.sort(reference)[::-1][:3], atol=1e-5)
    assert entry.logprob == pytest.approx(float(reference.max()), abs=1e-5)

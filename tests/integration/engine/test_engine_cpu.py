"""The engine on the CPU backend with real weights: what the scheduler does to a request changes none of its tokens."""

from __future__ import annotations

import pytest
from tests.support.native import needs_native

from octavo_inference import LLM, SamplingParams

pytestmark = needs_native

STORY = (
    "In a small town by the sea there lived a clockmaker who repaired every clock but his own. Each morning he walked "
    "along the harbour, counted the boats, and wrote their number into a little book with a red cover. "
)
PROMPTS = [STORY * 2 + end for end in ("One day", "His daughter", "The mayor", "At night", "The book", "A stranger")]
PARAMS = [
    SamplingParams(temperature=0.0 if i % 2 else 0.8, seed=i, max_tokens=40, ignore_eos=True)
    for i in range(len(PROMPTS))
]


def answers(llm: LLM) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """Each prompt in a batch of its own, computed at once."""
    llm = LLM("smollm2", backend="cpu", max_model_len=512, kv_memory="32Mi", prefix_caching=False)
    return [
        llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids
        for prompt, params in zip(PROMPTS, PARAMS, strict=True)
    ]


def test_company_and_chunks(alone: list[list[int]]) -> None:
    llm = LLM(
        "smollm2",
        backend="cpu",
        max_model_len=512,
        kv_memory="64Mi",
        prefix_caching=False,
        max_running_requests=6,
        max_batched_tokens=32,
    )
    assert answers(llm) == alone


def test_preemption(alone: list[list[int]]) -> None:
    # 16 blocks for six sequences of five blocks each.
    llm = LLM("smollm2", backend="cpu", max_model_len=512, kv_memory=16 * 32 * 23040, prefix_caching=False)
    assert answers(llm) == alone
    assert llm.engine.scheduler.preemptions > 0


def test_prefix_hits(alone: list[list[int]]) -> None:
    llm = LLM("smollm2", backend="cpu", max_model_len=512, kv_memory="64Mi")
    assert answers(llm) == alone
    assert answers(llm) == alone
    assert llm.engine.scheduler.hit_tokens > 5 * 64
    llm.engine.check()

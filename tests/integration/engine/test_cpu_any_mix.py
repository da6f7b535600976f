"""On the CPU backend any batch mix is solo too, with whole and with quantised weights.

Each kernel computes a row the same way whatever the number of rows beside it, and attention takes keys in chunks of
fixed places, so no `--batch-invariant` is needed: it is what the fast path does. A kernel that chose another order of
sums for another batch would show here first; then count its near-ties, or give it a flag.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any, Literal

import pytest
from tests.support.native import needs_native

from octavo_inference import LLM, SamplingParams

pytestmark = [
    pytest.mark.timeout(900),
    needs_native,
]

STORY = (
    "In a small town by the sea there lived a clockmaker who repaired every clock but his own. Each morning he walked "
    "along the harbour, counted the boats, and wrote their number into a little book with a red cover. "
)
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "was", "gone", "because", "of", "rain", "over")
COUNT = 20
SMALL = 14 * 32 * 23040  # 14 blocks: enough for many of these sequences when they begin, for three when they end


def load() -> tuple[list[str], list[SamplingParams]]:
    rng = random.Random(0)
    prompts = [
        rng.choice(["", STORY]) + " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 40))) for _ in range(COUNT)
    ]
    params = [
        SamplingParams(
            temperature=0.9 if i % 3 == 0 else 0.0, seed=i, max_tokens=rng.choice([8, 40, 120]), ignore_eos=True
        )
        for i in range(COUNT)
    ]
    return prompts, params


def tokens(llm: LLM, prompts: list[str], params: list[SamplingParams]) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in llm.generate(prompts, params, use_tqdm=False)]


@cache
def solo(dtype: Literal["auto", "bfloat16"]) -> list[list[int]]:
    """Each request in a batch of its own, its prompt computed at once. "auto" keeps the model's 4-bit weights."""
    llm = LLM("smollm2", backend="cpu", dtype=dtype, max_model_len=256, kv_memory="32Mi", prefix_caching=False)
    prompts, params = load()
    return [tokens(llm, [prompt], [one])[0] for prompt, one in zip(prompts, params, strict=True)]


RECOMPUTE: dict[str, Any] = {}
SWAP = {"preemption": "swap", "swap_memory": "32Mi"}
STATIC = {"prefix_caching": False, "batching": "static"}


@pytest.mark.parametrize(
    ("dtype", "settings"),
    [
        pytest.param("auto", RECOMPUTE, id="auto-recompute"),
        pytest.param("auto", SWAP, id="auto-swap"),
        pytest.param("auto", STATIC, id="auto-static"),
        pytest.param("bfloat16", RECOMPUTE, id="bfloat16-recompute"),
        pytest.param("bfloat16", SWAP, id="bfloat16-swap", marks=pytest.mark.full),
        pytest.param("bfloat16", STATIC, id="bfloat16-static", marks=pytest.mark.full),
    ],
)
def test_any_mix_is_solo(dtype: Literal["auto", "bfloat16"], settings: dict[str, Any]) -> None:
    llm = LLM(
        "smollm2",
        backend="cpu",
        dtype=dtype,
        max_model_len=256,
        kv_memory=SMALL,
        max_running_requests=12,
        max_batched_tokens=48,
        **settings,
    )
    assert tokens(llm, *load()) == solo(dtype)
    scheduler = llm.engine.scheduler
    if "batching" not in settings:
        assert scheduler.preemptions > 0
        assert scheduler.hit_tokens > 0
    assert (scheduler.swaps > 0) == ("swap_memory" in settings)
    llm.engine.check()

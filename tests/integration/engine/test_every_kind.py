"""The native engine on CPUs with one family for each kind of layer: what it shares and preempts changes no answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.native import needs_native

from octavo_inference import LLM, SamplingParams
from octavo_inference.models.layer_groups import pool_layout

from .families import DENSE, EXPERTS, FAMILIES, HYBRIDS, LATENT_EXPERTS, VOCAB, build, save

pytestmark = [needs_native, pytest.mark.timeout(600)]

KINDS = {
    "windows": FAMILIES["gemma3"],
    "ALiBi": DENSE["bloom"],
    "learned positions": DENSE["gpt2"],
    "norms of outputs": DENSE["olmo2"],
    "experts, sinks and windows": EXPERTS["gpt_oss"],
    "experts and chunks": EXPERTS["llama4"],
    "latents and experts": LATENT_EXPERTS["deepseek_v3-experts"],
    "Mamba-2 beside attention": HYBRIDS["falcon_h1"],
    "Mamba-2 and experts": HYBRIDS["granitehybrid"],
    "gated delta": HYBRIDS["qwen3_next"],
    "short convolutions": HYBRIDS["lfm2"],
    "states alone": HYBRIDS["mamba2"],
}
BLOCK, GENERATED, RUNNING, SNAPSHOTS = 16, 20, 6, 8


@dataclass(frozen=True)
class Model:
    """A tiny model as transformers built it, and its folder."""

    built: Any
    folder: Path
    has_states: bool

    def load(self, **changes: Any) -> LLM:
        """An engine with room for everything that shares nothing, or with `changes`."""
        given = {"max_model_len": 112, "kv_memory": "4Mi", "block_size": BLOCK, "prefix_caching": False} | changes
        if self.has_states and given["prefix_caching"]:
            given["state_snapshots"] = SNAPSHOTS
        return LLM(str(self.folder), backend="cpu", dtype="float32", **given)

    def generate(self, prompt: list[int]) -> list[int]:
        """What transformers answers."""
        options = {"max_new_tokens": GENERATED, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        with torch.inference_mode():
            tokens: list[int] = self.built.generate(torch.tensor([prompt]), **options)[0].tolist()
        return tokens[len(prompt) :]


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    family = KINDS[request.param]
    folder, built = tmp_path_factory.mktemp("model"), build(family)
    save(built, folder)
    return Model(built, folder, family in HYBRIDS.values())


def answers(llm: LLM, prompts: list[list[int]], n: int = 1) -> list[list[list[int]]]:
    sampling = SamplingParams(temperature=0.0 if n == 1 else 1.0, max_tokens=GENERATED, ignore_eos=True, n=n, seed=3)
    results = llm.generate(prompts, sampling, use_tqdm=False)
    return [[list(output.token_ids) for output in result.outputs] for result in results]


def test_chunks_prefix_hits_and_turns_answer_like_generate(model: Model) -> None:
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, VOCAB, length).tolist() for length in (60, 60, 7, 60)]
    prompts[1][:44] = prompts[3][:44] = prompts[0][:44]
    llm = model.load(prefix_caching=True, max_running_requests=3, max_batched_tokens=24)
    expected = [[model.generate(prompt)] for prompt in prompts]
    assert answers(llm, prompts) == expected
    before = llm.engine.stats().prefix_hit_tokens
    assert answers(llm, prompts) == expected
    assert llm.engine.stats().prefix_hit_tokens - before >= (2 if model.has_states else 3) * 48
    turn = prompts[0] + expected[0][0] + [5]
    before = llm.engine.stats().prefix_hit_tokens
    assert answers(llm, [turn]) == [[model.generate(turn)]]
    assert llm.engine.stats().prefix_hit_tokens - before >= (48 if model.has_states else 64)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preemption_and_siblings_change_no_answer(model: Model, preemption: str) -> None:
    rng = np.random.default_rng(2)
    prompts = [rng.integers(3, VOCAB, length).tolist() for length in (37, 30, 41)]
    wide = model.load()
    config = wide.engine.config
    if not config.attention_layers:
        pytest.skip("a model without attention takes no blocks, and preempts nothing")
    layout = pool_layout(config)
    group = layout.token_bytes(config, 4) // len(layout.groups) * BLOCK
    # The answers of a prompt hold it once. Without windows, 12 of the blocks that all of them need together.
    blocks = sum(12 if kind.is_full else 11 if kind.chunk else 6 for kind in layout.groups) + 1
    states = (RUNNING + SNAPSHOTS) * config.state_bytes
    narrow = model.load(
        kv_memory=states + blocks * group,
        max_model_len=80,
        max_running_requests=RUNNING,
        prefix_caching=True,
        preemption=preemption,
        **({"swap_memory": "1Mi"} if preemption == "swap" else {}),
    )
    assert answers(narrow, prompts, n=2) == answers(wide, prompts, n=2)
    stats = narrow.engine.stats()
    assert stats.preemptions > 0
    assert (stats.swaps > 0) == (preemption == "swap")

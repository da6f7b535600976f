"""Families with state layers: logits against transformers in float32, and the engine against generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo_inference import LLM, SamplingParams
from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.model_loader import load_model

from .families import BLOCK, HYBRIDS, VOCAB, backends, build, compare, save
from .gguf_hybrids import GGUF, write_hybrid

pytestmark = pytest.mark.timeout(600)


def reference(path: Path, max_model_len: int) -> ReferenceBackend:
    found = load_model(str(path))
    sizes = {"num_blocks": 24, "block_size": BLOCK, "max_model_len": max_model_len, "state_slots": 8}
    return ReferenceBackend(found.config, found.weights, **sizes)


@pytest.mark.parametrize("name", HYBRIDS)
def test_from_safetensors(name: str, tmp_path: Path) -> None:
    family = HYBRIDS[name]
    model = build(family)
    save(model, tmp_path)
    compare(family, model, reference(tmp_path, family.max_model_len))


@pytest.mark.parametrize("name", GGUF)
def test_from_gguf(name: str, tmp_path: Path) -> None:
    family = HYBRIDS[name]
    model = build(family)
    path = write_hybrid(tmp_path / "model.gguf", model, GGUF[name])
    for backend in backends(path, family.max_model_len, only_best=True):
        compare(family, model, backend)


def answers(llm: LLM, prompts: list[list[int]], n: int = 1) -> list[list[list[int]]]:
    sampling = SamplingParams(temperature=0.0 if n == 1 else 1.0, max_tokens=20, ignore_eos=True, n=n, seed=3)
    results = llm.generate(prompts, sampling, use_tqdm=False)
    return [[list(output.token_ids) for output in result.outputs] for result in results]


# One for each kind of layer, and the model without attention.
@pytest.mark.parametrize("name", ["granitehybrid", "falcon_h1", "lfm2", "qwen3_next", "mamba2"])
def test_the_engine_answers_like_generate(name: str, tmp_path: Path) -> None:
    model = build(HYBRIDS[name])
    save(model, tmp_path)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, VOCAB, length).tolist() for length in (60, 60, 7, 60)]
    prompts[1][:44] = prompts[3][:44] = prompts[0][:44]
    llm = LLM(
        str(tmp_path),
        backend="reference",
        max_model_len=128,
        kv_memory="2Mi",
        max_running_requests=3,
        max_batched_tokens=24,
        state_snapshots=6,
    )
    expected = []
    for prompt in prompts:
        options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        with torch.inference_mode():
            tokens = model.generate(torch.tensor([prompt]), **options)[0]
        expected.append([tokens[len(prompt) :].tolist()])
    for _ in range(2):
        assert answers(llm, prompts) == expected
    stats = llm.engine.stats()
    assert stats.prefix_hit_tokens >= 3 * 48
    # The next turn of a chat begins with prompt and answer.
    longer = [prompts[0] + expected[0][0] + [5]]
    assert answers(llm, longer)[0][0] == answers(fresh(tmp_path), longer)[0][0]


def fresh(path: Path, **changes: Any) -> LLM:
    """An engine that shares and preempts nothing."""
    settings = {"backend": "reference", "max_model_len": 128, "kv_memory": "2Mi", "prefix_caching": False} | changes
    return LLM(str(path), **settings)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preemption_and_siblings_change_no_answer(preemption: str, tmp_path: Path) -> None:
    save(build(HYBRIDS["granitehybrid"]), tmp_path)
    rng = np.random.default_rng(2)
    prompts = [rng.integers(3, VOCAB, length).tolist() for length in (37, 30, 41)]
    wide = fresh(tmp_path)
    state = wide.engine.config.state_bytes
    block = wide.engine.config.kv_bytes_per_token(4) * 16
    rows = 6
    narrow = fresh(
        tmp_path,
        kv_memory=(rows + 4) * state + 11 * block,
        max_running_requests=rows,
        state_snapshots=4,
        prefix_caching=True,
        preemption=preemption,
    )
    assert answers(narrow, prompts, n=2) == answers(wide, prompts, n=2)
    stats = narrow.engine.stats()
    assert stats.preemptions > 0
    assert (stats.swaps > 0) == (preemption == "swap")

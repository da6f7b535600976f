"""Models that transformers computes on a GPU, its kernels interpreted: the answers of transformers' own `generate`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo_inference import LLM, SamplingParams
from octavo_inference.backends.cuda import backend as cuda
from octavo_inference.backends.transformers import block_pools
from octavo_inference.common.errors import SettingsError, UnsupportedModelError
from octavo_inference.engine import factory

from ..integration.engine.test_hf import (  # noqa: TID252 -- tests are no package
    ARCHITECTURES,
    VOCAB,
    Answer,
    answers,
    check,
    write_model,
)

pytestmark = pytest.mark.timeout(900)

BLOCK, ANSWER = 8, 6
# Native families are among them. The native reader of gpt-oss takes the experts' size from either key.
MODELS = ARCHITECTURES | {
    "GptOss": ARCHITECTURES["GptOss"] | {"moe_intermediate_size": 48},
    "Gemma2": {"head_dim": 8, "sliding_window": 16, "query_pre_attn_scalar": 16},
    "Llama": {},
}


def prompts() -> list[list[int]]:
    """Lengths that end inside and at the end of blocks; the last one begins as the first does."""
    rng = np.random.default_rng(5)
    fresh = [rng.integers(3, VOCAB, length).tolist() for length in (21, 16, 1)]
    return [*fresh, [*fresh[0][:17], 5, 6]]


def load(folder: Path, **settings: Any) -> LLM:
    given: dict[str, Any] = {"backend": "cuda", "block_size": BLOCK, "max_model_len": 48, "kv_memory": "4Mi"}
    return LLM(str(folder), **given | settings)


@pytest.fixture
def nothing_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """No family that has more than the plain decoder is native on a GPU."""
    monkeypatch.setattr(cuda, "FEATURES", frozenset())


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is visible: the interpreter."""
    monkeypatch.setattr(factory, "gpu_visible", lambda: True)


def written(folder: Path, name: str) -> tuple[list[Answer], Any]:
    model = write_model(folder, name, **MODELS[name])
    return answers(model, prompts(), ANSWER), model


@pytest.mark.usefixtures("nothing_native")
@pytest.mark.parametrize(
    ("name", "in_torch"),
    [
        ("GptOss", False),  # sinks, and a window in one of two layers
        pytest.param("DeepseekV3", False, marks=pytest.mark.full),  # V is narrower than K
        pytest.param("Persimmon", False, marks=pytest.mark.full),
        ("Llama4Text", True),  # chunks are no window
    ],
)
def test_answers_are_those_of_transformers(
    tmp_path: Path, name: str, in_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathers = []
    gather = block_pools.gathered
    monkeypatch.setattr(block_pools, "gathered", lambda *given: gathers.append(1) or gather(*given))
    expected, _ = written(tmp_path, name)
    chunked = load(tmp_path, max_running_requests=4, max_batched_tokens=16)
    assert chunked.settings.backend == "transformers"
    check(expected, chunked, prompts())
    hits = chunked.engine.scheduler.hit_tokens
    check(expected, chunked, prompts())  # now from the prefix cache
    assert chunked.engine.scheduler.hit_tokens >= hits + 32
    assert bool(gathers) == in_torch


@pytest.mark.usefixtures("nothing_native")
def test_preemption_by_swap(tmp_path: Path) -> None:
    asked, length = prompts()[:2], 16
    expected = answers(write_model(tmp_path, "GptOss", **MODELS["GptOss"]), asked, length)
    block = BLOCK * load(tmp_path).engine.config.kv_bytes_per_token(4)
    tight = load(
        tmp_path, kv_memory=6 * block, max_model_len=40, prefix_caching=False, preemption="swap", swap_memory=40 * block
    )
    check(expected, tight, asked)
    assert tight.engine.scheduler.swaps > 0


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", ["Llama", pytest.param("Gemma2", marks=pytest.mark.full)])
def test_logprobs_are_those_of_native_kernels(tmp_path: Path, name: str) -> None:
    expected, _ = written(tmp_path, name)
    native, foreign = load(tmp_path), load(tmp_path, backend="transformers")
    assert native.settings.backend == "cuda"
    assert foreign.engine.backend.name == f"transformers ({name}ForCausalLM, float32, interpreter)"
    for llm in (native, foreign):
        check(expected, llm, prompts())


@pytest.mark.usefixtures("gpu")
def test_fp8_weights_of_linear_layers_are_those_of_native_kernels(tmp_path: Path) -> None:
    write_model(tmp_path, "Llama", **MODELS["Llama"])
    sampling = SamplingParams(temperature=0.0, max_tokens=1, logprobs=4)
    found = []
    for backend in ("cuda", "transformers"):
        [result] = load(tmp_path, backend=backend, quantization="fp8").generate(prompts()[:1], sampling, use_tqdm=False)
        found.append((result.outputs[0].logprobs or [])[0].top_logprobs)
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)


@pytest.mark.usefixtures("gpu")
def test_several_answers_share_their_prompt_and_go_their_own_ways(tmp_path: Path) -> None:
    written(tmp_path, "Llama")
    sampling = SamplingParams(n=2, temperature=1.0, seed=3, max_tokens=ANSWER, ignore_eos=True)
    found = []
    for backend in ("cuda", "transformers"):
        [result] = load(tmp_path, backend=backend).generate(prompts()[:1], sampling, use_tqdm=False)
        found.append([output.token_ids for output in result.outputs])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


@pytest.mark.usefixtures("nothing_native")
def test_the_log_names_what_native_kernels_lack(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_model(tmp_path, "GptOss", **MODELS["GptOss"])
    with caplog.at_level(logging.WARNING):
        load(tmp_path)
    assert (
        "is computed by transformers, slower than native kernels: gpt_oss: the CUDA backend does not compute "
        "a clamped activation of experts, a mixture of experts, attention sinks"
    ) in caplog.text


@pytest.mark.usefixtures("nothing_native")
def test_a_model_for_neither_is_refused_with_both_reasons(tmp_path: Path) -> None:
    write_model(tmp_path, "Bloom", n_head=4, n_layer=2)
    with pytest.raises(
        UnsupportedModelError, match=r"the CUDA backend does not compute .*ALiBi.*; transformers cannot take its place"
    ):
        load(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_dtype": "int8"}, "kv_dtype int8 needs native kernels, and transformers computes this model: leave it"),
        ({"cuda_graphs": True}, "cuda_graphs True needs native kernels"),
        ({"overlap": True}, "overlap True needs native kernels"),
        ({"threads": 2}, "threads 2 is for CPUs"),
        ({"tensor_parallel_size": 2}, "transformers computes this model, and on one GPU only"),
    ],
)
def test_settings_of_native_kernels_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    write_model(tmp_path, "Persimmon")
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, **settings)

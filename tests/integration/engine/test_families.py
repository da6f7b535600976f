"""Every family of the native decoder, from safetensors and from GGUF: logits against transformers in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.native import needs_native
from transformers import AutoModelForCausalLM

from octavo_inference import LLM, SamplingParams

from .families import DENSE, EXPERTS, FAMILIES, VOCAB, backends, build, compare, params, save
from .gguf_files import GGUF, Kind, round_weights, write_gguf

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", FAMILIES)
def test_from_safetensors(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = build(family)
    save(model, tmp_path)
    for backend in backends(tmp_path, family.max_model_len, only_best=name != "gemma2"):
        compare(family, model, backend)


@pytest.mark.parametrize("name", params(DENSE))
def test_more_dense_families_from_safetensors(name: str, tmp_path: Path) -> None:
    family = DENSE[name]
    model = build(family)
    save(model, tmp_path)
    for backend in backends(tmp_path, family.max_model_len, only_best=True):
        compare(family, model, backend)


@pytest.mark.parametrize("name", params(EXPERTS))
def test_mixtures_of_experts_from_safetensors(name: str, tmp_path: Path) -> None:
    family = EXPERTS[name]
    model = build(family)
    save(model, tmp_path)
    for backend in backends(tmp_path, family.max_model_len, only_best=True):
        compare(family, model, backend)


@pytest.mark.parametrize("name", GGUF)
def test_from_gguf(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = build(family)
    path = write_gguf(tmp_path / "model.gguf", model, GGUF[name])
    for backend in backends(path, family.max_model_len, only_best=True):
        compare(family, model, backend)


@needs_native
@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_1])
@pytest.mark.parametrize("name", ["llama-biases", "phi3", "gemma2"])
def test_from_quantised_gguf(name: str, kind: Kind, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = build(family)
    round_weights(model, kind)
    path = write_gguf(tmp_path / "model.gguf", model, GGUF[name], kind)
    reference, cpu = backends(path, family.max_model_len, only_best=True, dtype="auto")
    compare(family, model, reference)
    # Activations are rounded to bytes, and random weights forgive less than trained ones; a wrong row is off by 1.
    compare(family, model, cpu, tolerance=0.2)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2", "gemma3"])
def test_the_gguf_files_of_these_tests_are_read_alike_by_transformers(name: str, tmp_path: Path) -> None:
    # It knows fewer keys, so weights alone are compared: order of rows, fused tensors, norms.
    model = build(FAMILIES[name])
    write_gguf(tmp_path / "model.gguf", model, GGUF[name])
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf").state_dict()
    for key, tensor in model.state_dict().items():
        assert (theirs[key] - tensor).abs().max() < 1e-6, key


@needs_native
@pytest.mark.parametrize("name", ["qwen3", "phi3", "gemma2", "gemma3"])
def test_the_engine_answers_like_generate(name: str, tmp_path: Path) -> None:
    model = build(FAMILIES[name])
    save(model, tmp_path)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, VOCAB, length).tolist() for length in (40, 40, 7, 70, 33)]
    prompts[1][:36] = prompts[0][:36]
    llm = LLM(str(tmp_path), backend="cpu", dtype="float32", max_model_len=128, kv_memory="4Mi")
    sampling = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    for prompt, result in zip(prompts, llm.generate(prompts, sampling, use_tqdm=False), strict=True):
        options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        with torch.inference_mode():
            expected = model.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist()
        assert list(result.outputs[0].token_ids) == expected

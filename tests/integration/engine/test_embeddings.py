"""Embeddings of real weights against the hidden states of transformers in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file
from tests.support.native import require_native

from octavo_inference import LLM, SamplingParams
from octavo_inference.answers.plan import AnswerPlan
from octavo_inference.backends.cpu.native import library
from octavo_inference.common.vectors import vector_of
from octavo_inference.model_loader import find_model, load_text

torch = pytest.importorskip("torch", reason="compares with transformers")
transformers = pytest.importorskip("transformers", reason="compares with transformers")

# Loading in transformers alone takes half a minute, minutes on a busy machine.
pytestmark = pytest.mark.timeout(900)

PROMPTS = [
    "The capital of France is Paris.",
    "Water",
    "def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)",
    "In a small town by the sea there lived a clockmaker who repaired every clock but his own. " * 6,
]


@pytest.fixture(scope="module")
def oracle() -> Any:
    torch.set_num_threads(1)
    file = find_model("smollm2")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32
    )
    return model.eval()


@pytest.fixture(scope="module")
def folder(oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights as safetensors, for the transformers backend."""
    path = tmp_path_factory.mktemp("smollm2")
    config = oracle.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    config.pop("quantization_config")
    (path / "config.json").write_text(json.dumps(config, default=str))
    state = {name: tensor.contiguous() for name, tensor in oracle.state_dict().items() if name != "lm_head.weight"}
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    load_text("smollm2").tokenizer.save(str(path / "tokenizer.json"))
    return path


def pooled(oracle: Any, tokens: list[int], pooling: str) -> np.ndarray:
    """The pooled states after the final norm, of length 1."""
    with torch.inference_mode():
        states = oracle.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
    vector = states[-1] if pooling == "last" else states.mean(dim=0)
    return (vector / vector.norm()).numpy()


def assert_pooled(oracle: Any, llm: LLM, pooling: Any, tolerance: float) -> None:
    tokens = [llm.tokenizer.encode(prompt).ids for prompt in PROMPTS]
    found = llm.embed(PROMPTS, pooling=pooling, use_tqdm=False)
    for ids, output in zip(tokens, found, strict=True):
        difference = float(np.linalg.norm(output.embedding - pooled(oracle, ids, pooling)))
        assert difference <= tolerance, difference


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_cpu_backend_in_float32(oracle: Any, pooling: str) -> None:
    require_native()
    llm = LLM("smollm2", backend="cpu", dtype="float32", max_model_len=512, kv_memory="64Mi", max_batched_tokens=64)
    assert_pooled(oracle, llm, pooling, 1e-4)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_cpu_backend_in_bfloat16(oracle: Any, pooling: str) -> None:
    require_native()
    llm = LLM("smollm2", backend="cpu", dtype="bfloat16", max_model_len=512, kv_memory="64Mi")
    assert_pooled(oracle, llm, pooling, 0.08 if library.load().info.activation_bytes == 2 else 0.04)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_transformers_backend(oracle: Any, folder: Path, pooling: str) -> None:
    llm = LLM(
        str(folder), backend="transformers", dtype="float32", max_model_len=512, kv_memory="64Mi", max_batched_tokens=64
    )
    assert_pooled(oracle, llm, pooling, 1e-4)


@pytest.mark.full
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_reference_backend(oracle: Any, pooling: str) -> None:
    llm = LLM("smollm2", backend="reference", max_model_len=512, kv_memory="64Mi", max_batched_tokens=64)
    assert_pooled(oracle, llm, pooling, 1e-4)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_a_vector_has_the_same_bits_in_any_company(dtype: Any, pooling: Any) -> None:
    require_native()
    sizes: dict[str, Any] = {"backend": "cpu", "dtype": dtype, "max_model_len": 512, "prefix_caching": False}
    alone = LLM("smollm2", kv_memory="64Mi", max_batched_tokens=512, **sizes)
    expected = [alone.embed(prompt, pooling=pooling, use_tqdm=False)[0].embedding for prompt in PROMPTS]
    answers = alone.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    # Chunks of a few tokens, beside answers that are generated.
    mixed = LLM("smollm2", kv_memory="32Mi", max_batched_tokens=37, max_running_requests=5, **sizes)
    model, greedy = mixed._adapter(None), SamplingParams(temperature=0, max_tokens=8)
    generated = [mixed._job(prompt, greedy, AnswerPlan(), adapter=model) for prompt in PROMPTS]
    embedded = [mixed._job(prompt, SamplingParams(), AnswerPlan(), pooling, adapter=model) for prompt in PROMPTS]
    vectors: dict[str, bytes] = {}
    for pair in zip(generated, embedded, strict=True):
        for job in pair:
            mixed.engine.submit(job.request)
    jobs = {job.request.id: job for job in generated}
    while mixed.engine.has_work:
        for output in mixed.engine.step():
            if output.embedding is not None:
                vectors[output.id] = output.embedding
            else:
                jobs[output.id].add(output)
    found = [vector_of(vectors[job.request.id]).tobytes() for job in embedded]
    assert found == [vector.tobytes() for vector in expected]
    assert [job.result.outputs[0].token_ids for job in generated] == [r.outputs[0].token_ids for r in answers]

"""An LLMDeployment of each kind of model on a real node: it answers what `LLM` answers from the same files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e import fileimages
from tests.e2e.examples import changed, remove
from tests.e2e.waiting import patiently
from tests.integration.engine.encoders import CROSS, ENCODERS, save_words, words, written
from tests.integration.engine.families import EXPERTS, FAMILIES, HYBRIDS, LATENT_EXPERTS, build, save
from tests.support.native import needs_native

from demo.cluster import RESOURCE, Cluster
from demo.install import Installation
from octavo_inference import LLM, SamplingParams

pytestmark = needs_native

LENGTH, POOL = 95, "16Mi"
KINDS = {
    "windows": FAMILIES["gemma3"],
    "experts": EXPERTS["qwen3_moe"],
    "latents": LATENT_EXPERTS["deepseek_v3-experts"],
    "hybrid": HYBRIDS["granitehybrid"],
    "delta": HYBRIDS["qwen3_next"],
}
_EVERY_NIGHT = {"windows", "delta"}
PROMPTS = [list(range(3, 63)), [*range(3, 51), 7, 9], [5, 90, 11]]
TEXTS = [words(length, seed) for seed, length in enumerate((50, 3, 28))]
GENERATED = 12

Deploy = Callable[[str, Path], AbstractContextManager[httpx.Client]]


def llm(folder: Path) -> LLM:
    """The same model in this process."""
    return LLM(str(folder), backend="cpu", dtype="float32", max_model_len=LENGTH, kv_memory=POOL)


@pytest.fixture(scope="module")
def deploy(cluster: Cluster, installation: Installation, url: str, example: str) -> Deploy:
    """Serves a folder under a name, with a client of the gateway inside."""

    @contextmanager
    def deployed(name: str, folder: Path) -> Iterator[httpx.Client]:
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        image = fileimages.push(installation.registry, f"models/{name}", files)
        engine = {"dtype": "float32", "maxModelLen": LENGTH, "kv": {"memory": POOL}}
        cluster.apply(changed(example, name, model={"uri": f"oci://{image}"}, engine=engine, replicas=1))
        try:
            patiently("a replica", lambda: len(cluster.ready_pods(name)) == 1, timeout=240)
            with httpx.Client(base_url=url, timeout=120) as client:
                patiently("routed", lambda: client.get(f"/v1/models/{name}").status_code == 200, timeout=60)
                yield client
        finally:
            remove(cluster, name)

    return deployed


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.full] if kind in _EVERY_NIGHT else []) for kind in KINDS]
)
def test_a_model_of_each_kind_answers(cluster: Cluster, deploy: Deploy, kind: str, tmp_path: Path) -> None:
    save(build(KINDS[kind]), tmp_path)
    sampling = SamplingParams(temperature=0.0, max_tokens=GENERATED, ignore_eos=True)
    expected = [result.outputs[0].text for result in llm(tmp_path).generate(PROMPTS, sampling, use_tqdm=False)]
    name = f"family-{kind}"
    with deploy(name, tmp_path) as client:
        body = {"model": name, "temperature": 0, "max_tokens": GENERATED, "ignore_eos": True}
        for _ in range(2):  # the second time from what the prefix cache has
            answers = [post(client, "/v1/completions", prompt=prompt, **body) for prompt in PROMPTS]
            assert [answer["choices"][0]["text"] for answer in answers] == expected
        assert answers[0]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        found = cluster.get(RESOURCE, name)
        assert found is not None
        assert found["status"]["model"]["architecture"]


def test_an_encoder_embeds_and_generates_nothing(deploy: Deploy, tmp_path: Path) -> None:
    written(ENCODERS["bert"], tmp_path)
    save_words(tmp_path, typed=False)
    expected = [one.embedding.tolist() for one in llm(tmp_path).embed(TEXTS, use_tqdm=False)]
    with deploy("encoder", tmp_path) as client:
        answer = post(client, "/v1/embeddings", model="encoder", input=TEXTS)
        for entry, vector in zip(answer["data"], expected, strict=True):
            assert entry["embedding"] == pytest.approx(vector, abs=1e-6)
        refused = client.post("/v1/completions", json={"model": "encoder", "prompt": "w5"})
        assert refused.status_code == 400
        assert "/v1/embeddings" in refused.json()["error"]["message"]


def test_a_cross_encoder_ranks_documents(deploy: Deploy, tmp_path: Path) -> None:
    written(CROSS["bge-reranker"], tmp_path)
    save_words(tmp_path, typed=False)
    query = words(12, 9)
    expected = llm(tmp_path).score(query, TEXTS, use_tqdm=False)
    with deploy("cross-encoder", tmp_path) as client:
        ranked = post(client, "/v1/rerank", model="cross-encoder", query=query, documents=TEXTS)["results"]
        assert [each["index"] for each in ranked] == sorted(range(3), key=lambda index: -expected[index])
        assert [each["relevance_score"] for each in ranked] == pytest.approx(sorted(expected, reverse=True), abs=1e-6)

"""An LLMDeployment of each kind of model on a real node: it answers what `LLM` answers from the same files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.e2e import fileimages
from tests.e2e.examples import changed
from tests.e2e.waiting import patiently
from tests.integration.engine.families import EXPERTS, FAMILIES, HYBRIDS, LATENT_EXPERTS, build, save
from tests.support.native import needs_native

from demo.cluster import RESOURCE, Cluster
from demo.install import Installation
from octavo_inference import LLM, SamplingParams

pytestmark = needs_native

LABEL = "octavo.dev/llmdeployment"
KINDS = {
    "windows": FAMILIES["gemma3"],
    "experts": EXPERTS["qwen3_moe"],
    "latents": LATENT_EXPERTS["deepseek_v3-experts"],
    "hybrid": HYBRIDS["granitehybrid"],
    "delta": HYBRIDS["qwen3_next"],
}
PROMPTS = [list(range(3, 63)), [*range(3, 51), 7, 9], [5, 90, 11]]
GENERATED = 12
_EVERY_NIGHT = {"windows", "delta"}


@dataclass(frozen=True)
class Deployed:
    """A model by its name at the gateway, and its files."""

    name: str
    folder: Path


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=[pytest.mark.full] if kind in _EVERY_NIGHT else []) for kind in KINDS],
)
def deployed(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    installation: Installation,
    example: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Deployed]:
    kind, folder = request.param, tmp_path_factory.mktemp("model")
    save(build(KINDS[kind]), folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    name, image = f"family-{kind}", fileimages.push(installation.registry, f"models/{kind}", files)
    engine = {"dtype": "float32", "maxModelLen": 112, "kv": {"memory": "16Mi"}}
    cluster.apply(changed(example, name, model={"uri": f"oci://{image}"}, engine=engine, replicas=1))
    try:
        patiently("a replica", lambda: len(cluster.ready_pods(name)) == 1, timeout=240)
        yield Deployed(name, folder)
    finally:
        cluster.run("delete", RESOURCE, name, "-n", cluster.namespace, "--ignore-not-found", "--wait=false")
        patiently("pods gone", lambda: not cluster.items("pods", f"{LABEL}={name}"), timeout=120)


def test_a_model_of_each_kind_answers(cluster: Cluster, url: str, deployed: Deployed) -> None:
    llm = LLM(str(deployed.folder), backend="cpu", dtype="float32", max_model_len=112, kv_memory="16Mi")
    sampling = SamplingParams(temperature=0.0, max_tokens=GENERATED, ignore_eos=True)
    expected = [result.outputs[0].text for result in llm.generate(PROMPTS, sampling, use_tqdm=False)]
    with httpx.Client(base_url=url, timeout=120) as client:
        patiently("routed", lambda: client.get(f"/v1/models/{deployed.name}").status_code == 200, timeout=60)
        body = {"model": deployed.name, "temperature": 0, "max_tokens": GENERATED, "ignore_eos": True}
        for _ in range(2):  # the second time from what the prefix cache has
            answers = [client.post("/v1/completions", json={**body, "prompt": prompt}).json() for prompt in PROMPTS]
            assert [answer["choices"][0]["text"] for answer in answers] == expected
        assert answers[0]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    found = cluster.get(RESOURCE, deployed.name)
    assert found is not None
    assert found["status"]["model"]["architecture"]

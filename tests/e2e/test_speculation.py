"""An LLMDeployment with a draft model: the same answers, in fewer steps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import torch
import transformers
from tests.e2e import fileimages
from tests.e2e.examples import LABEL, changed, remove
from tests.e2e.waiting import patiently
from tests.integration.engine.families import VOCAB, save
from tests.support.native import needs_native

from demo.cluster import Cluster
from demo.install import Installation
from octavo_inference import LLM, SamplingParams

pytestmark = needs_native

NAME, LENGTH, POOL, LAYERS = "drafts", 256, "64Mi", 24
PROMPTS = [list(range(3, 40)), [5, 90, 11]]
GENERATED = 60
ACCEPTED = re.compile(r"^octavo:spec_decode_num_accepted_tokens_total(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)


def saved(folder: Path, layers: int) -> Path:
    """A model whose first layer alone changes its hidden states: it answers the same with any number of layers."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=384, intermediate_size=1024, num_hidden_layers=1, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=LENGTH, eos_token_id=0, bos_token_id=1,
    )  # fmt: skip
    small = transformers.LlamaForCausalLM(config)
    config.num_hidden_layers = layers
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
        model.load_state_dict({name: 8 * each for name, each in small.state_dict().items()}, strict=False)
    save(model, folder)
    return folder


def pushed(registry: str, folder: Path) -> str:
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return f"oci://{fileimages.push(registry, f'models/{folder.name}', files)}"


def test_a_draft_model_from_an_image_guesses_and_changes_no_answer(
    cluster: Cluster, installation: Installation, url: str, example: str, tmp_path: Path
) -> None:
    large, small = saved(tmp_path / "large", LAYERS), saved(tmp_path / "small", 1)
    llm = LLM(str(large), backend="cpu", dtype="float32", max_model_len=LENGTH, kv_memory=POOL)
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=GENERATED, ignore_eos=True)
    expected = [result.outputs[0].text for result in llm.generate(PROMPTS, params, use_tqdm=False)]
    speculation = {"method": "draft", "maxTokens": 4, "model": {"uri": pushed(installation.registry, small)}}
    engine = {"dtype": "float32", "maxModelLen": LENGTH, "kv": {"memory": POOL}, "speculation": speculation}
    uri = pushed(installation.registry, large)
    cluster.apply(changed(example, NAME, model={"uri": uri}, engine=engine, replicas=1))
    try:
        patiently("a replica", lambda: len(cluster.ready_pods(NAME)) == 1, timeout=240)
        with httpx.Client(base_url=url, timeout=120) as client:
            patiently("routed", lambda: client.get(f"/v1/models/{NAME}").status_code == 200, timeout=60)
            for prompt, text in zip(PROMPTS, expected, strict=True):
                body: dict[str, Any] = {"model": NAME, "prompt": prompt, "max_tokens": GENERATED, "ignore_eos": True}
                response = client.post("/v1/completions", json=body | {"temperature": 0.7, "seed": 3})
                assert response.status_code == 200, response.text
                assert response.json()["choices"][0]["text"] == text
        (pod,) = cluster.items("pods", f"{LABEL}={NAME}")
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod['metadata']['name']}:9000/proxy/metrics"
        found = ACCEPTED.search(cluster.run("get", "--raw", path))
        assert found is not None
        assert float(found[1]) > GENERATED, "most tokens come from the draft model, which says the same"
    finally:
        remove(cluster, NAME)

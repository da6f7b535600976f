"""Adapters of an LLMDeployment: loaded, exchanged and unloaded under traffic by the same pods; later pods have them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import pytest
from tests.e2e import fileimages
from tests.e2e.examples import LABEL, changed, remove
from tests.e2e.hub_pod import hub_pod
from tests.e2e.waiting import patiently
from tests.support.adapters import save_adapter, save_added

from demo.cluster import RESOURCE, Cluster
from octavo_inference.tokenizer.assets import load_assets

NAME = "adapted"
LAYERS, HIDDEN, RANK, VOCAB = 30, 576, 8, 49_152


def saved(folder: Path, seed: int) -> None:
    """Changes of the queries and outputs of the example's model."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(LAYERS):
        for module in ("q_proj", "o_proj"):
            name = f"model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = rng.standard_normal((RANK, HIDDEN)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = (rng.standard_normal((HIDDEN, RANK)) * 0.03).astype(np.float32)
    save_adapter(folder, tensors, r=RANK, lora_alpha=RANK)


@pytest.fixture
def hub(cluster: Cluster, system: str, registry: str, tmp_path: Path) -> Iterator[str]:
    """Address of a hub with the adapters org/a0 to org/a3, org/added with tokens of its own, and org/broken."""
    for number in range(4):
        saved(tmp_path / f"a{number}", number)
    save_added(tmp_path / "added", load_assets("smollm2").tokenizer.to_str(), VOCAB, HIDDEN)
    save_adapter(tmp_path / "broken", {"x": np.ones(1, np.float32)}, use_dora=True)
    files = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with hub_pod(cluster, system, "adapters", f"oci://{fileimages.push(registry, 'adapters', files)}") as address:
        yield address


def wanted(**repositories: str) -> list[dict[str, str]]:
    return [{"name": name, "uri": f"hf://org/{repository}"} for name, repository in repositories.items()]


@dataclass
class Traffic:
    """Requests for models that follow each other until `stop`; `failures` are the answers that were none."""

    url: str
    names: list[str]
    failures: list[str] = field(default_factory=list)
    answers: int = 0
    _done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._ask, args=(name,)) for name in self.names]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, name: str) -> None:
        with httpx.Client(base_url=self.url, timeout=120) as client:
            while not self._done.is_set():
                response = client.post("/v1/completions", json={"model": name, "prompt": "One day", "max_tokens": 8})
                self.answers += 1
                if response.status_code != 200:
                    self.failures.append(f"{name}: {response.status_code} {response.text}")


def text(client: httpx.Client, name: str) -> str:
    body: dict[str, Any] = {"model": name, "prompt": "The lighthouse stood", "max_tokens": 16, "temperature": 0}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, f"{name}: {response.text}"
    return response.json()["choices"][0]["text"]


def ends_with_an_added_token(client: httpx.Client, name: str) -> bool:
    """An answer of the adapter that adds tokens, one of which is in the prompt, and one ends answers."""
    body: dict[str, Any] = {"model": name, "prompt": "Once upon a time<note>", "max_tokens": 24, "temperature": 0}
    answer = client.post("/v1/completions", json=body).json()
    return answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["prompt_tokens"] == 5


def states(cluster: Cluster) -> dict[str, tuple[str, int]]:
    """State and replicas of each adapter, from the resource's status."""
    found = ((cluster.get(RESOURCE, NAME) or {}).get("status") or {}).get("adapters") or []
    return {each["name"]: (each["state"], each["readyReplicas"]) for each in found}


def lives(cluster: Cluster) -> set[tuple[str, int]]:
    """The pods of servers, and how often their containers were started again."""
    pods = cluster.items("pods", f"{LABEL}={NAME},app.kubernetes.io/component=server")
    return {
        (pod["metadata"]["uid"], sum(each["restartCount"] for each in pod["status"].get("containerStatuses", [])))
        for pod in pods
    }


def test_adapters_come_and_go_under_traffic(cluster: Cluster, url: str, example: str, hub: str) -> None:
    resource = changed(example, NAME, replicas=1, model={"adapters": wanted(one="a0", two="a1", three="a2")})
    engine = resource["spec"].setdefault("engine", {})
    engine |= {"adapters": {"maxLoaded": 2, "maxAddedTokens": 2}, "env": [{"name": "HF_ENDPOINT", "value": hub}]}
    cluster.apply(resource)
    try:
        patiently("a replica", lambda: len(cluster.ready_pods(NAME)) == 1, timeout=240)
        three = dict.fromkeys(("one", "two", "three"), ("Ready", 1))
        patiently("the adapters", lambda: states(cluster) == three, timeout=120)
        with httpx.Client(base_url=url, timeout=120) as client:
            patiently("routed", lambda: client.get("/v1/models/three").status_code == 200, timeout=60)
            assert client.get("/v1/models/three").json()["parent"] == NAME
            before = {name: text(client, name) for name in (NAME, "one", "two", "three")}
            assert len(set(before.values())) == 4
            began = lives(cluster)
            with Traffic(url, [NAME, "one", "two"]) as traffic:
                resource["spec"]["model"]["adapters"] = wanted(
                    one="a0", two="a3", four="a1", five="added", broken="broken"
                )
                cluster.apply(resource)
                ready = dict.fromkeys(("one", "two", "four", "five"), ("Ready", 1))
                expected = ready | {"broken": ("Failed", 0)}
                patiently("the new list", lambda: states(cluster) == expected, timeout=180)
                patiently("routed", lambda: client.get("/v1/models/four").status_code == 200, timeout=60)
                patiently("the other weights", lambda: text(client, "two") != before["two"], timeout=120)
                assert text(client, "four") == before["two"]
                assert text(client, "one") == before["one"]
                assert ends_with_an_added_token(client, "five")
                assert not ends_with_an_added_token(client, "one")
                patiently("three is gone", lambda: client.get("/v1/models/three").status_code == 404, timeout=60)
                refused = client.post("/v1/completions", json={"model": "three", "prompt": "x", "max_tokens": 1})
                assert refused.status_code == 404
                assert lives(cluster) == began, "a change of the list replaced or restarted a pod"

                resource["spec"]["replicas"] = 2
                cluster.apply(resource)
                patiently("a second replica", lambda: len(cluster.ready_pods(NAME)) == 2, timeout=240)
                for pod in cluster.ready_pods(NAME):
                    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod['metadata']['name']}:9000/proxy"
                    report = json.loads(cluster.run("get", "--raw", f"{path}/v1/octavo/load"))
                    held = {each["name"]: each["state"] for each in report["adapters"]}
                    assert set(held) >= set(ready)
                    assert {held[name] for name in ready} <= {"loaded", "cached"}
            assert not traffic.failures, traffic.failures[:3]
            assert traffic.answers > 50
            status = {each["name"]: each for each in (cluster.get(RESOURCE, NAME) or {})["status"]["adapters"]}
            assert "DoRA" in status["broken"]["message"]
            assert status["one"]["rank"] == RANK

            resource["spec"]["model"]["adapters"] = []
            cluster.apply(resource)
            patiently("none is left", lambda: client.get("/v1/models/one").status_code == 404, timeout=120)
            patiently("no status", lambda: not states(cluster), timeout=60)
            assert text(client, NAME) == before[NAME]
    finally:
        remove(cluster, NAME)

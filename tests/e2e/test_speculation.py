"""An LLMDeployment with a draft model: the same answers, in fewer steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from tests.e2e.examples import LABEL, changed, remove
from tests.e2e.waiting import patiently

from demo.cluster import Cluster

NAMES = ("drafts", "no-drafts")
QUESTIONS = ("Tell me a story about a lighthouse.", "What is a prime number?", "List five fruits.")
ACCEPTED = re.compile(r"^octavo:spec_decode_num_accepted_tokens_total(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)


@pytest.fixture
def deployed(cluster: Cluster, example: str) -> Iterator[None]:
    """The example with itself as its draft model, and without one."""
    uri = yaml.safe_load(example)["spec"]["model"]["uri"]
    speculation: dict[str, Any] = {"method": "draft", "maxTokens": 4, "model": {"uri": uri}}
    # Each block holds the K and V of both models.
    engines: tuple[dict[str, Any], ...] = ({"speculation": speculation, "kv": {"memory": "128Mi"}}, {})
    for name, engine in zip(NAMES, engines, strict=True):
        cluster.apply(changed(example, name, engine=engine, replicas=1))
    try:
        for name in NAMES:
            patiently("a replica", lambda name=name: len(cluster.ready_pods(name)) == 1, timeout=240)
        yield
    finally:
        for name in NAMES:
            remove(cluster, name)


def answers(client: httpx.Client, name: str) -> list[str]:
    patiently("routed", lambda: client.get(f"/v1/models/{name}").status_code == 200, timeout=60)
    texts = []
    for seed, question in enumerate(QUESTIONS):
        message = {"role": "user", "content": question}
        body = {"model": name, "messages": [message], "max_tokens": 60, "temperature": 0.8 * (seed > 0), "seed": seed}
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        texts.append(response.json()["choices"][0]["message"]["content"])
    return texts


@pytest.mark.usefixtures("deployed")
def test_a_draft_model_from_an_image_guesses_and_changes_no_answer(cluster: Cluster, url: str) -> None:
    with httpx.Client(base_url=url, timeout=120) as client:
        guessed, plain = (answers(client, name) for name in NAMES)
    assert guessed == plain
    (pod,) = cluster.items("pods", f"{LABEL}={NAMES[0]}")
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod['metadata']['name']}:9000/proxy/metrics"
    found = ACCEPTED.search(cluster.run("get", "--raw", path))
    assert found is not None
    assert float(found[1]) > 50, "the model guesses what it says itself"

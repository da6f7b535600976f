"""Mode External with the HorizontalPodAutoscaler that every cluster has, on Octavo's own figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.metrics_api import external_metrics
from tests.e2e.waiting import patiently

from demo.cluster import RESOURCE, Cluster, condition
from demo.install import Installation
from demo.traffic import Load

NAMESPACE = "external"
NAME = "scaled"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cluster(installation: Installation) -> Iterator[Cluster]:
    """A namespace of its own."""
    cluster = replace(installation.cluster, namespace=NAMESPACE)
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.run("apply", "-f", "-", stdin=json.dumps(space))
    yield cluster
    cluster.run("delete", "namespace", NAMESPACE, "--wait=false")


def recipe() -> dict[str, Any]:
    """The HorizontalPodAutoscaler of docs/guides/autoscaling.md: the documented object is the tested one."""
    text = (ROOT / "docs" / "guides" / "autoscaling.md").read_text()
    block = text.partition("```yaml\n# hpa.yaml\n")[2].partition("```")[0]
    body: dict[str, Any] = yaml.safe_load(block)
    return body


def story(number: int, tokens: int) -> dict[str, object]:
    text = f"Tell me story number {number}."
    messages = [{"role": "user", "content": text}]
    return {"model": NAME, "messages": messages, "max_tokens": tokens, "min_tokens": tokens, "seed": number}


def replicas(cluster: Cluster) -> int:
    return int((cluster.get(RESOURCE, NAME) or {})["spec"]["replicas"])


def test_an_hpa_scales_up_under_load_and_down_after_it(
    cluster: Cluster, installation: Installation, system: str, url: str, tmp_path: Path
) -> None:
    body: dict[str, Any] = yaml.safe_load(installation.example)
    body["metadata"]["name"] = NAME
    body["spec"]["autoscaling"] = {"mode": "External"}
    cluster.apply(body)
    with external_metrics(cluster, system, installation.host, tmp_path / "pki"):
        patiently("ready", lambda: len(cluster.ready_pods(NAME)) == 1, timeout=240)
        cluster.apply(recipe())
        patiently("metrics found", lambda: active(cluster), timeout=120)
        hpa = cluster.get("horizontalpodautoscaler", NAME) or {}
        assert (hpa["spec"]["minReplicas"], hpa["spec"]["maxReplicas"]) == (1, 2)
        assert replicas(cluster) == 1
        path = f"/apis/octavo.dev/v1alpha1/namespaces/{NAMESPACE}/llmdeployments/{NAME}/scale"
        scale = cluster.run("get", "--raw", path)
        selector = json.loads(scale)["status"]["selector"]
        assert selector == (cluster.get(RESOURCE, NAME) or {})["status"]["selector"]
        assert len(cluster.items("pods", selector)) == 1

        many = Load(url, [story(n, 300) for n in range(6)], requests_each=50, timeout=300)
        few = Load(url, [story(9, 300)], requests_each=100, timeout=300)
        try:
            patiently("spec.replicas raised by the HPA", lambda: replicas(cluster) == 2, timeout=180)
            patiently("two replicas serve", lambda: len(cluster.ready_pods(NAME)) == 2, timeout=180)
            many.stop()
            streams = many.join(300)
            patiently("spec.replicas lowered by the HPA", lambda: replicas(cluster) == 1, timeout=240)
            patiently("one replica left", lambda: len(cluster.items("pods", selector)) == 1, timeout=240)
        finally:
            many.stop()
            few.stop()
        streams += few.join(300)
    dropped = [stream for stream in streams if not stream.complete]
    assert len(streams) > 6
    assert not dropped, dropped[:3]
    found = cluster.get(RESOURCE, NAME)
    shown = condition(found, "ScalingActive") or {}
    assert (shown["status"], shown["reason"]) == ("True", "ExternalController")
    fields = json.loads(cluster.run("get", RESOURCE, NAME, "-n", NAMESPACE, "-o", "json", "--show-managed-fields"))
    writers = {
        entry["manager"]
        for entry in fields["metadata"]["managedFields"]
        if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
    }
    assert not {writer for writer in writers if "octavo" in writer}, writers


def active(cluster: Cluster) -> bool:
    """Whether the HPA has found the scale and the metrics."""
    hpa = cluster.get("horizontalpodautoscaler", NAME) or {}
    holds = {c["type"]: c["status"] for c in hpa.get("status", {}).get("conditions", [])}
    return holds.get("AbleToScale") == holds.get("ScalingActive") == "True"

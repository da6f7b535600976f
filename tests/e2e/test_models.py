"""Where models come from: a hub, through a cache that is filled once; and what is refused before a pod is made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.examples import changed, remove
from tests.e2e.hub_pod import hub_pod
from tests.e2e.waiting import patiently

from demo.cluster import RESOURCE, Cluster, condition
from demo.traffic import chat

COMMIT = "c0ffee" + "0" * 34
CLASS = "octavo-by-hand"


def ready(cluster: Cluster, name: str) -> dict[str, Any] | None:
    resource = cluster.get(RESOURCE, name) or {}
    found = condition(resource, "Ready")
    return resource if found and found["status"] == "True" else None


@pytest.fixture
def hub(cluster: Cluster, system: str, example: str) -> Iterator[str]:
    """Address of a hub in the cluster; it serves the example's model, out of its image."""
    with hub_pod(cluster, system, "hub", yaml.safe_load(example)["spec"]["model"]["uri"]) as address:
        yield address


@pytest.fixture
def volume(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """A folder of this node as a volume: the cluster has nobody who would provision one."""
    os.chown(tmp_path, 65532, 65532)
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": CLASS,
        "hostPath": {"path": str(tmp_path), "type": "Directory"},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    cluster.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": CLASS}, "spec": spec})
    yield tmp_path
    cluster.run("delete", "persistentvolume", CLASS, "--ignore-not-found", "--wait=false")


def test_a_hub_model_is_downloaded_once_into_a_claim(
    cluster: Cluster, url: str, example: str, hub: str, volume: Path
) -> None:
    name = "cached"
    spec = {
        "model": {"uri": "hf://org/model", "revision": "main"},
        "cache": {"type": "PersistentVolumeClaim", "size": "1Gi", "storageClassName": CLASS, "retain": False},
        "replicas": 2,
    }
    resource = changed(example, name, **spec)
    resource["spec"]["engine"]["env"] = [{"name": "HF_ENDPOINT", "value": hub}]
    cluster.apply(resource)
    try:
        patiently("two replicas", lambda: len(cluster.ready_pods(name)) == 2, timeout=240)
        found = patiently("ready", lambda: ready(cluster, name), timeout=60)
        assert found["status"]["model"]["resolvedRevision"] == COMMIT
        assert found["status"]["model"]["architecture"] == "llama"
        cached = condition(found, "CacheReady")
        assert cached is not None
        assert (cached["status"], cached["reason"]) == ("True", "Complete")
        pods = cluster.ready_pods(name)
        assert not [pod for pod in pods if pod["spec"].get("initContainers")]
        policy = cluster.get("networkpolicy", name)
        assert policy is not None
        assert "egress" not in policy["spec"]
        weights = next((volume / "org--model" / COMMIT).glob("*.gguf"))
        assert weights.stat().st_size > 50_000_000
        # Two parts of the head were looked at, then it came once as a whole: two replicas asked for nothing.
        log = cluster.run("logs", "hub", "-n", cluster.namespace)
        whole = [line for line in log.splitlines() if ".gguf" in line and '" 200' in line]
        assert len(whole) == 1, log
        assert chat(url, {"model": name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}).complete
    finally:
        remove(cluster, name)


def test_a_model_too_large_is_refused_before_any_pod(cluster: Cluster, example: str) -> None:
    name = "too-large"
    cluster.apply(changed(example, name, resources={"memory": "300Mi"}))
    try:

        def refused() -> str:
            found = condition(cluster.get(RESOURCE, name), "Ready") or {"reason": ""}
            return found["message"] if found["reason"] == "ModelTooLarge" else ""

        message = patiently("a refusal", refused, timeout=90)
        assert "spec.resources.memory: 300Mi is too little: the weights take" in message
        assert cluster.get("deployment", name) is None
    finally:
        remove(cluster, name)


def test_a_missing_hub_model_is_named(cluster: Cluster, example: str, hub: str) -> None:
    name = "missing"
    resource = changed(example, name, model={"uri": "hf://org/other"})
    resource["spec"]["engine"]["env"] = [{"name": "HF_ENDPOINT", "value": hub}]
    cluster.apply(resource)
    try:

        def named() -> str:
            found = condition(cluster.get(RESOURCE, name), "ModelResolved") or {"reason": ""}
            return found["message"] if found["reason"] == "ModelNotFound" else ""

        assert "org/other@main: the hub has no such model" in patiently("a reason", named, timeout=90)
        assert cluster.get("deployment", name) is None
    finally:
        remove(cluster, name)

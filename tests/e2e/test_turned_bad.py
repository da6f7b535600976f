"""Specs and worlds that turn bad while a model serves: it serves on, the status says so, a cure needs nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from tests.e2e.waiting import patiently

from demo.cluster import RESOURCE, Cluster, condition
from demo.install import Installation
from demo.traffic import Stream, chat

NAMESPACE = "turned-bad"
QUOTA = "turned-bad-quota"
TIMEOUT = 240
MAP = {"name": "MOOD", "valueFrom": {"secretKeyRef": {"name": "mood", "key": "k"}}}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mood"}, "stringData": {"k": "v"}}
# Name: namespace, spec. Served under its own name each.
SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "edited": (NAMESPACE, {}),
    "unsecured": (NAMESPACE, {"engine": {"env": [MAP]}}),
    "squeezed": (QUOTA, {}),
}


def patch(cluster: Cluster, name: str, spec: dict[str, Any]) -> None:
    space = SERVED[name][0]
    cluster.run("patch", RESOURCE, name, "-n", space, "--type=merge", "-p", json.dumps({"spec": spec}))


def quota(cluster: Cluster, pods: int) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few"},
        "spec": {"hard": {"pods": str(pods)}},
    }
    replace(cluster, namespace=QUOTA).apply(body)


@pytest.fixture(scope="module")
def serving(installation: Installation) -> Iterator[Cluster]:
    """Three deployments that serve."""
    cluster = replace(installation.cluster, namespace=NAMESPACE)
    for space in (NAMESPACE, QUOTA):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}
        cluster.run("apply", "-f", "-", stdin=json.dumps(body))
    cluster.apply(SECRET)
    quota(cluster, 5)
    try:
        for name, (space, spec) in SERVED.items():
            body = yaml.safe_load(installation.example)
            body["metadata"]["name"] = name
            body["spec"].pop("autoscaling")
            body["spec"]["resources"]["cpu"] = "10m"
            for block, value in spec.items():
                body["spec"][block] = {**body["spec"].get(block, {}), **value}
            replace(cluster, namespace=space).apply(body)
        for name in SERVED:
            patiently(f"{name} ready", lambda name=name: healthy(cluster, name, 1), timeout=TIMEOUT)
        yield cluster
    finally:
        cluster.run("delete", "namespace", NAMESPACE, QUOTA, "--ignore-not-found", "--wait=false")


def resource(cluster: Cluster, name: str) -> dict[str, Any]:
    return cluster.get(RESOURCE, name, SERVED[name][0]) or {}


def healthy(cluster: Cluster, name: str, replicas: int) -> bool:
    """Whether all replicas of the present spec serve, and nothing is said against them."""
    body = resource(cluster, name)
    status = body.get("status", {})
    ready = condition(body, "Ready") or {}
    current = status.get("observedGeneration") == body.get("metadata", {}).get("generation")
    return bool(current and ready.get("reason") == "AllReplicasReady" and status["readyReplicas"] == replicas)


def said(cluster: Cluster, name: str, reason: str, *texts: str) -> bool:
    """Whether Degraded gives the reason, with these texts, while the old replica is Available."""
    body = resource(cluster, name)
    degraded = condition(body, "Degraded") or {}
    available = (condition(body, "Available") or {}).get("status") == "True"
    return available and degraded.get("reason") == reason and all(text in degraded["message"] for text in texts)


def pods(cluster: Cluster, name: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in replace(cluster, namespace=SERVED[name][0]).ready_pods(name)}


def test_what_serves_serves_on_says_so_and_recovers(serving: Cluster, url: str, installation: Installation) -> None:
    uri = yaml.safe_load(installation.example)["spec"]["model"]["uri"]
    nonsense = "oci://localhost:5000/models/gone:v9"
    first = {name: pods(serving, name) for name in SERVED}
    question = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    visitors = [Visitor(url, {"model": name, **question}) for name in SERVED]
    try:
        # The world turns bad, then something asks for a new pod.
        patch(serving, "edited", {"model": {"uri": nonsense}})
        serving.run("delete", "secret", "mood", "-n", NAMESPACE)
        patch(serving, "unsecured", {"replicas": 2})
        quota(serving, 1)
        patch(serving, "squeezed", {"replicas": 2})
        patiently("edited says so", lambda: said(serving, "edited", "ModelPullFailed", nonsense), timeout=TIMEOUT)
        patiently("unsecured says so", lambda: said(serving, "unsecured", "SecretMissing", "'mood'"), timeout=TIMEOUT)
        patiently("squeezed says so", lambda: said(serving, "squeezed", "QuotaExceeded", "few"), timeout=TIMEOUT)
        assert (condition(resource(serving, "edited"), "ModelResolved") or {})["status"] == "False"
        # Our own settings are deleted below a running pod: they come back under the same name.
        settings = config_maps(serving, "unsecured")
        serving.run("delete", "configmap", *settings, "-n", NAMESPACE)
        patiently("settings are back", lambda: config_maps(serving, "unsecured") == settings, timeout=TIMEOUT)
        assert {name: pods(serving, name) for name in SERVED} == first, "what served was touched"

        patch(serving, "edited", {"model": {"uri": uri}})
        serving.apply(SECRET)
        quota(serving, 5)
        patiently("edited recovered", lambda: healthy(serving, "edited", 1), timeout=TIMEOUT)
        patiently("unsecured recovered", lambda: healthy(serving, "unsecured", 2), timeout=TIMEOUT)
        patiently("squeezed recovered", lambda: healthy(serving, "squeezed", 2), timeout=TIMEOUT)
    finally:
        streams = [stream for visitor in visitors for stream in visitor.leave()]
    for name in SERVED:
        assert "failures" not in resource(serving, name)["status"]
        assert first[name] <= pods(serving, name), "a cure restarted what served"
    dropped = [stream for stream in streams if not stream.complete]
    assert len(streams) > len(SERVED)
    assert not dropped, dropped[:3]


class Visitor:
    """Asks again and again, with pauses: whether it is answered is the question, not how much."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        self._streams: list[Stream] = []
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._ask, args=(url, body), daemon=True)
        self._thread.start()

    def _ask(self, url: str, body: dict[str, Any]) -> None:
        while not self._left.wait(1):
            self._streams.append(chat(url, body, timeout=120))

    def leave(self) -> list[Stream]:
        """All answers; waits for the last one."""
        self._left.set()
        self._thread.join(150)
        assert not self._thread.is_alive(), "a question was not answered within 150 s"
        return self._streams


def config_maps(cluster: Cluster, name: str) -> list[str]:
    found = cluster.items("configmaps", f"octavo.dev/llmdeployment={name}")
    return [body["metadata"]["name"] for body in found]

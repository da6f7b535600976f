"""Changes under load: rollouts, canaries, rollbacks and node drains, and no request is lost."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import yaml
from tests.e2e.waiting import patiently

from demo.cluster import RESOURCE, Cluster, condition
from demo.traffic import Load

# Each of these lets several pods start one after the other, and must hold on a machine that is busy with others.
NAME = "rolled"
POD = f"octavo.dev/llmdeployment={NAME}"


@pytest.fixture
def models(cluster: Cluster) -> Iterator[Cluster]:
    """A namespace of its own for each test: one that is being deleted takes nothing in."""
    namespace = f"rollouts-{secrets.token_hex(3)}"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    inside = replace(cluster, namespace=namespace)
    yield inside
    inside.run("delete", RESOURCE, NAME, "--ignore-not-found", "-n", namespace)
    patiently("pods gone", lambda: not inside.items("pods", POD), timeout=180)
    inside.run("delete", "namespace", namespace, "--wait=false")


def resource(example: str, **changes: Any) -> dict[str, Any]:
    """The example under a name of this file; one replica that goes quickly."""
    body: dict[str, Any] = yaml.safe_load(example)
    body["metadata"]["name"] = NAME
    body["spec"].pop("autoscaling", None)
    body["spec"]["drain"] = {"timeoutSeconds": 60, "propagationSeconds": 5}
    for field, value in changes.items():
        body["spec"][field] = {**body["spec"].get(field, {}), **value} if isinstance(value, dict) else value
    return body


def patch(models: Cluster, spec: dict[str, Any]) -> None:
    models.run("patch", RESOURCE, NAME, "-n", models.namespace, "--type=merge", "-p", json.dumps({"spec": spec}))


def says(models: Cluster, kind: str) -> tuple[str, str]:
    """Reason and message of a condition that is about the newest spec."""
    body = models.get(RESOURCE, NAME) or {}
    found = condition(body, kind)
    if found is None or body["status"]["observedGeneration"] != body["metadata"]["generation"]:
        return "", ""
    return found["reason"], found["message"]


def rolled(models: Cluster) -> bool:
    """Whether all that runs is ready and of the newest spec."""
    status = (models.get(RESOURCE, NAME) or {}).get("status", {})
    pods = models.items("pods", POD)
    return (
        says(models, "Progressing")[0] == "RolloutComplete"
        and status.get("currentRevision") == status.get("updateRevision")
        and len(pods) == status["replicas"]
    )


def events(models: Cluster) -> set[str]:
    return {event["reason"] for event in models.items("events") if event["involvedObject"]["name"] == NAME}


@contextmanager
def load(url: str, clients: int = 2, tokens: int = 24) -> Iterator[Load]:
    """Chats one after another; afterwards, none may have failed."""
    bodies = [
        {
            "model": NAME,
            "messages": [{"role": "user", "content": f"Tell me story number {number}."}],
            "max_tokens": tokens,
            "min_tokens": tokens,
            "seed": number,
        }
        for number in range(clients)
    ]
    running = Load(url, bodies, requests_each=2000, timeout=400)
    try:
        yield running
    finally:
        running.stop()
    streams = running.join(400)
    failed = [stream for stream in streams if not stream.complete]
    assert streams
    assert not failed, failed[:3]


def answered(running: Load, more: int) -> Callable[[], bool]:
    """Whether `more` chats have ended from now on."""
    before = len(running.results)
    return lambda: len(running.results) >= before + more


def test_a_canary_is_followed_when_it_answers_well_and_given_up_when_it_does_not_start(
    models: Cluster, url: str, example: str
) -> None:
    steps = {"steps": [{"percent": 50, "holdSeconds": 5}], "maxTtftRegressionPercent": 10000}
    rollout = {"strategy": "Canary", "canary": steps, "revisionHistoryLimit": 0}
    models.apply(resource(example, rollout=rollout))
    patiently("ready", lambda: rolled(models), timeout=240)
    first = models.get(RESOURCE, NAME) or {}

    with load(url, clients=3, tokens=4):
        patch(models, {"engine": {"scheduler": {"maxRunningRequests": 48}}})
        patiently("a canary", lambda: models.get("deployment", f"{NAME}-canary"), timeout=60)
        patiently("followed", lambda: rolled(models), timeout=280)
        second = models.get(RESOURCE, NAME) or {}
        assert second["status"]["currentRevision"] != first["status"]["currentRevision"]
        assert models.get("deployment", f"{NAME}-canary") is None
        patiently("nothing left", lambda: models.get("service", f"{NAME}-canary") is None, timeout=60)

        # Its server dies at its first token: no need to wait as long as a good one may take.
        bad = {"env": [{"name": "OCTAVO_FAILPOINTS", "value": "engine.step:raise@1"}]}
        patch(models, {"engine": bad, "rollout": {"progressDeadlineSeconds": 20}})
        patiently("rolled back", lambda: says(models, "Progressing")[0] == "RolledBack", timeout=240)
        assert "canary was not ready within 20 s" in says(models, "Progressing")[1]
        patiently("no canary", lambda: models.get("deployment", f"{NAME}-canary") is None, timeout=60)
    assert {"Canary", "CanaryPromoted", "RolledBack"} <= events(models)
    records = {body["metadata"]["name"] for body in models.items("controllerrevisions", POD)}
    updated = (models.get(RESOURCE, NAME) or {})["status"]["updateRevision"]
    assert records == {f"{NAME}-{second['status']['currentRevision']}", f"{NAME}-{updated}"}


def test_without_room_for_a_surge_the_replica_is_replaced_in_place_and_the_old_spec_brings_the_old_pods(
    models: Cluster, url: str, example: str
) -> None:
    (node,) = models.items("nodes")
    cpu = f"{int(0.55 * 1000 * float(node['status']['allocatable']['cpu']))}m"
    rollout = {"surgeScheduleTimeoutSeconds": 5}
    models.apply(resource(example, rollout=rollout, resources={"cpu": cpu}))
    patiently("ready", lambda: rolled(models), timeout=240)
    good = (models.get(RESOURCE, NAME) or {})["status"]["currentRevision"]

    with load(url):
        patch(models, {"engine": {"scheduler": {"maxRunningRequests": 48}}})
        reason = "SurgeUnschedulable"
        patiently("replaced in place", lambda: says(models, "Progressing")[0] == reason, timeout=120)
        patiently("rolled", lambda: rolled(models), timeout=280)
        strategy = (models.get("deployment", NAME) or {})["spec"]["strategy"]["rollingUpdate"]
        assert strategy == {"maxSurge": 1, "maxUnavailable": 0}
        assert reason in events(models)

        # Back to the spec it had: the very template that is on record, not a new one.
        patch(models, {"engine": {"scheduler": None}})
        patiently("back", lambda: rolled(models), timeout=280)
        assert (models.get(RESOURCE, NAME) or {})["status"]["currentRevision"] == good


@pytest.mark.exclusive
def test_a_node_is_drained_under_load(models: Cluster, url: str, example: str) -> None:
    models.apply(resource(example))
    patiently("ready", lambda: rolled(models), timeout=240)
    (node,) = (body["metadata"]["name"] for body in models.items("nodes"))
    (before,) = (pod["metadata"]["name"] for pod in models.ready_pods(NAME))

    with load(url, tokens=48) as running:
        patiently("answers", answered(running, 2), timeout=120)
        try:
            drain = ["drain", node, f"--pod-selector={POD}", "--delete-emptydir-data", "--timeout=180s"]
            models.run(*drain, timeout=200)
            (pod,) = models.items("pods", POD)
            assert pod["metadata"]["name"] != before
            waits = condition(pod, "PodScheduled")
            assert waits is not None
            assert waits["status"] == "False"
            # It says so, and it is not taken for a reason to roll anything back.
            patiently("says why", lambda: says(models, "Scheduled")[0] == "Unschedulable", timeout=60)
        finally:
            models.run("uncordon", node)
        patiently("ready again", lambda: rolled(models), timeout=240)
        patiently("answers again", answered(running, 4), timeout=120)

"""Routing and scaling on a real node: cached prefixes are found again, bursts wake a sleeper, and parts may be away."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.e2e.examples import changed
from tests.e2e.waiting import patiently

from demo.cluster import RESOURCE, Cluster, condition
from demo.traffic import Load, Stream, chat

LABEL = "octavo.dev/llmdeployment"
QUICK = {"stabilizationSeconds": 5, "periodSeconds": 5}


def ready(cluster: Cluster, name: str) -> bool:
    resource = cluster.get(RESOURCE, name) or {}
    found = condition(resource, "Ready")
    current = resource.get("metadata", {}).get("generation")
    return bool(found and found["status"] == "True" and resource["status"].get("observedGeneration") == current)


@contextmanager
def deployed(cluster: Cluster, resource: dict[str, Any], replicas: int) -> Iterator[str]:
    """The resource with its replicas ready; gone afterwards."""
    name = resource["metadata"]["name"]
    cluster.apply(resource)
    try:
        patiently(f"{name} ready", lambda: ready(cluster, name), timeout=240)
        patiently("replicas", lambda: len(cluster.ready_pods(name)) == replicas, timeout=240)
        yield name
    finally:
        cluster.run("delete", RESOURCE, name, "-n", cluster.namespace, "--ignore-not-found", "--wait=false")
        patiently(f"pods of {name} gone", lambda: not cluster.items("pods", f"{LABEL}={name}"), timeout=180)


def patch(cluster: Cluster, name: str, spec: dict[str, Any]) -> None:
    body = json.dumps({"spec": spec})
    cluster.run("patch", RESOURCE, name, "-n", cluster.namespace, "--type=merge", "-p", body)


def tale(name: str, number: int, tokens: int) -> dict[str, Any]:
    return {
        "model": name,
        "messages": [{"role": "user", "content": f"Tell me tale number {number}."}],
        "max_tokens": tokens,
        "min_tokens": tokens,
    }


def converse(url: str, name: str, topic: str, turns: int) -> list[Stream]:
    """A conversation under a system prompt of its own; each turn brings all before it."""
    rules = " ".join(f"Rule {n} of {topic}: keep to {topic} number {n}." for n in range(40))
    messages = [{"role": "system", "content": rules}]
    answers = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"What about {topic}, part {turn}?"})
        answer = chat(url, {"model": name, "messages": messages, "max_tokens": 16, "temperature": 0})
        assert answer.complete, answer
        messages.append({"role": "assistant", "content": answer.text})
        answers.append(answer)
    return answers


def found_again(url: str, name: str, topics: list[str]) -> float:
    """Share of the prompt tokens of later turns that the pods had in their caches."""
    later = [answer for topic in topics for answer in converse(url, name, topic, 4)[1:]]
    return sum(answer.cached_tokens for answer in later) / sum(answer.prompt_tokens for answer in later)


@pytest.mark.exclusive  # other tests' load would decide where turns go
def test_a_conversation_goes_back_to_the_pod_that_remembers_it(cluster: Cluster, url: str, example: str) -> None:
    with deployed(cluster, changed(example, "prefixes", replicas=2), 2) as name:
        pods = {pod["metadata"]["uid"] for pod in cluster.ready_pods(name)}
        aware = found_again(url, name, ["ships", "bread", "stars", "clocks", "rivers"])
        patch(cluster, name, {"routing": {"strategy": "RoundRobin"}})
        service = {LABEL: name}

        def told() -> bool:
            services = cluster.items("services", f"{LABEL}={service[LABEL]}")
            return any("RoundRobin" in json.dumps(item["metadata"].get("annotations", {})) for item in services)

        patiently("the gateways are told", told, timeout=30)
        blind = found_again(url, name, ["kites", "tea", "maps", "snow", "bells"])
        print(f"\nprompt tokens of later turns found in a cache: {aware:.0%} prefix-aware, {blind:.0%} in turn")
        assert aware > 0.8
        assert aware > blind + 0.1
        assert {pod["metadata"]["uid"] for pod in cluster.ready_pods(name)} == pods, "a change of routing needs no pod"


def test_a_burst_wakes_a_sleeper_and_every_request_is_answered(cluster: Cluster, url: str, example: str) -> None:
    resource = changed(example, "burst")
    scaling = {"mode": "Builtin", "minReplicas": 0, "maxReplicas": 2, "idleSecondsToZero": 30, "scaleDown": QUICK}
    resource["spec"]["autoscaling"] = scaling
    with deployed(cluster, resource, 1) as name:
        patiently("asleep", lambda: not cluster.items("pods", f"{LABEL}={name}"), timeout=240)
        load = Load(url, [tale(name, n, 24) for n in range(40)], requests_each=1, timeout=240)
        streams = load.join(300)
        lost = [stream for stream in streams if not stream.complete]
        assert len(streams) == 40
        assert not lost, lost[:3]
        history = cluster.get(RESOURCE, name)["status"]["autoscaling"]["history"]  # type: ignore[index]
        assert any(entry["from"] == 0 and entry["reason"] == "RequestsHeld" for entry in history), history


@pytest.mark.exclusive
def test_without_the_operator_requests_go_on_and_its_return_takes_no_replica_away_blindly(
    cluster: Cluster, url: str, example: str, system: str
) -> None:
    resource = changed(example, "unwatched")
    window = {"stabilizationSeconds": 60, "periodSeconds": 5}
    resource["spec"]["autoscaling"] = {"mode": "Builtin", "minReplicas": 2, "maxReplicas": 2, "scaleDown": window}
    deployment = cluster.get("deployment", "octavo-operator", system)
    assert deployment
    with deployed(cluster, resource, 2) as name:
        pods = {pod["metadata"]["uid"] for pod in cluster.ready_pods(name)}
        patch(cluster, name, {"autoscaling": {"minReplicas": 1}})
        patiently("seen", lambda: ready(cluster, name), timeout=60)
        cluster.run("scale", "deployment", "octavo-operator", "-n", system, "--replicas=0")
        try:
            operators = "app.kubernetes.io/component=operator"
            patiently("no operator", lambda: not cluster.items("pods", operators, system), timeout=120)
            load = Load(url, [tale(name, n, 24) for n in range(3)], requests_each=6, timeout=120)
            streams = load.join(180)
            assert len(streams) == 18
            assert all(stream.complete for stream in streams)
        finally:
            count = deployment["spec"]["replicas"]
            cluster.run("scale", "deployment", "octavo-operator", "-n", system, f"--replicas={count}")
        began = time.monotonic()
        cluster.run("rollout", "status", "deployment/octavo-operator", "-n", system, "--timeout=180s", timeout=200)
        patiently("one replica", lambda: len(cluster.ready_pods(name)) == 1, timeout=300)
        assert time.monotonic() - began >= window["stabilizationSeconds"], "a window must be seen before one goes"
        assert {pod["metadata"]["uid"] for pod in cluster.ready_pods(name)} <= pods


@pytest.mark.exclusive
def test_a_killed_gateway_ends_only_its_own_streams(cluster: Cluster, url: str, example: str, system: str) -> None:
    gateways = "app.kubernetes.io/component=gateway"
    with deployed(cluster, changed(example, "crossing"), 1) as name:
        assert len(cluster.items("pods", gateways, system)) >= 2
        load = Load(url, [tale(name, n, 120) for n in range(8)], requests_each=8, timeout=240)
        patiently("answers", lambda: len(load.results) >= 4, timeout=120)
        victim = cluster.items("pods", gateways, system)[0]["metadata"]["name"]
        cluster.run("delete", "pod", victim, "-n", system, "--grace-period=0", "--force")
        patiently("more answers", lambda: len(load.results) >= 30, timeout=240)
        load.stop()
        streams = load.join(240)
        broken = [stream for stream in streams if not stream.complete]
        # Each client had at most one stream at the killed one, and may have met its address once more.
        assert len(broken) <= 16, broken[:3]
        assert not any(stream.done for stream in broken), "a broken stream must not look complete"
        assert all(stream.complete for stream in streams[-8:]), streams[-8:]
        patiently("both again", lambda: _ready(cluster, gateways, system) >= 2, timeout=120)


def _ready(cluster: Cluster, selector: str, namespace: str) -> int:
    pods = cluster.items("pods", selector, namespace)
    return sum(all(c.get("ready") for c in pod["status"].get("containerStatuses", [{}])) for pod in pods)

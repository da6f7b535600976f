"""What people and machines get wrong: each fault is injected for real, and only what it must cost is lost."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from tests.e2e.examples import LABEL, changed, remove
from tests.e2e.waiting import patiently

from demo.cluster import RESOURCE, Cluster, ClusterError, condition
from demo.traffic import Load, Stream, chat


def story(name: str, number: int, tokens: int) -> dict[str, object]:
    """A chat that takes a while: `tokens` tokens, no fewer."""
    text = f"Tell me story number {number}."
    return {
        "model": name,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "min_tokens": tokens,
        "seed": number,
    }


def ready(cluster: Cluster, name: str) -> bool:
    resource = cluster.get(RESOURCE, name) or {}
    found = condition(resource, "Ready")
    current = resource.get("metadata", {}).get("generation")
    return bool(found and found["status"] == "True" and resource["status"].get("observedGeneration") == current)


def test_wrong_model_uri_is_named_in_the_status(cluster: Cluster, example: str) -> None:
    uri = "oci://localhost:5000/models/no-such-model:v1"
    cluster.apply(changed(example, "wrong-uri", model={"uri": uri}))
    try:

        def message() -> str:
            resource = cluster.get(RESOURCE, "wrong-uri") or {}
            failures = resource.get("status", {}).get("failures", [])
            found = condition(resource, "Ready") or {"status": "", "message": ""}
            texts = [found["message"], *(failure["message"] for failure in failures)]
            return next((text for text in texts if uri in text and found["status"] == "False"), "")

        assert patiently("failure that names the URI", message, timeout=90)
    finally:
        remove(cluster, "wrong-uri")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"autoscaling": {"mode": "Builtin", "minReplicas": 3, "maxReplicas": 2}}, "minReplicas"),
        ({"model": {"uri": "ftp://example.com/model"}}, "model.uri"),
        ({"replicas": -1}, "replicas"),
        ({"engine": {"noSuchKnob": 1}}, "noSuchKnob"),
    ],
)
def test_nonsense_is_refused_with_the_field(cluster: Cluster, example: str, spec: dict[str, Any], says: str) -> None:
    with pytest.raises(ClusterError, match=says):
        cluster.apply(changed(example, "refused", **spec))
    assert cluster.get(RESOURCE, "refused") is None


def test_killed_pod_ends_only_its_own_streams(cluster: Cluster, url: str, example: str) -> None:
    cluster.apply(changed(example, "killed", replicas=2))
    try:
        patiently("two ready pods", lambda: len(cluster.ready_pods("killed")) == 2, timeout=180)
        # Several chats each: the first ones may all go to one pod, when the gateway has not heard of the other yet.
        load = Load(url, [story("killed", n, 400) for n in range(6)], requests_each=20, timeout=300)
        try:
            victim = patiently("streams on both pods", lambda: _busy_pod(cluster, "killed"), timeout=180)
            cluster.run("delete", "pod", victim, "-n", cluster.namespace, "--grace-period=0", "--force")
        finally:
            load.stop()
        streams = load.join(300)

        broken = [stream for stream in streams if not stream.complete]
        whole = [stream for stream in streams if stream.complete]
        assert broken, "the killed pod had streams"
        assert whole, "the other pod's streams went on"
        for stream in broken:
            assert stream.error, stream
            assert not stream.done, "a broken stream must not look complete"
        patiently("a replacement", lambda: len(cluster.ready_pods("killed")) == 2, timeout=120)
        assert chat(url, story("killed", 1, 4)).complete
    finally:
        remove(cluster, "killed")


@pytest.mark.exclusive
def test_operator_killed_during_a_rollout_converges_and_drops_nothing(
    cluster: Cluster, url: str, example: str, system: str
) -> None:
    name = "rollout"
    cluster.apply(changed(example, name))
    try:
        patiently("ready", lambda: ready(cluster, name), timeout=180)
        before = {pod["metadata"]["name"] for pod in cluster.ready_pods(name)}
        load = Load(url, [story(name, n, 60) for n in range(3)], requests_each=200, timeout=300)
        try:
            change = {"spec": {"engine": {"scheduler": {"maxRunningRequests": 48}}}}
            cluster.run("patch", RESOURCE, name, "-n", cluster.namespace, "--type=merge", "-p", json.dumps(change))
            for pod in cluster.items("pods", "app.kubernetes.io/component=operator", system):
                where = ["-n", system, "--grace-period=0", "--force"]
                cluster.run("delete", "pod", pod["metadata"]["name"], *where)

            def rolled() -> bool:
                now = {pod["metadata"]["name"] for pod in cluster.items("pods", f"{LABEL}={name}")}
                return ready(cluster, name) and len(now) == 1 and not now & before

            patiently("new pod alone", rolled, timeout=240)
        finally:
            load.stop()
        streams = load.join(120)
        dropped = [stream for stream in streams if not stream.complete]
        assert len(streams) > 3
        assert not dropped, dropped[:3]
    finally:
        remove(cluster, name)


def test_deletion_leaves_nothing_behind(cluster: Cluster, example: str) -> None:
    name = "gone"
    cluster.apply(changed(example, name))
    patiently("ready", lambda: ready(cluster, name), timeout=180)
    kinds = "deployments,replicasets,pods,services,endpointslices,configmaps,serviceaccounts,"
    kinds += "poddisruptionbudgets,networkpolicies"
    assert cluster.items(kinds, f"{LABEL}={name}")

    cluster.run("delete", RESOURCE, name, "-n", cluster.namespace)
    patiently("no child left", lambda: not cluster.items(kinds, f"{LABEL}={name}"), timeout=120)


def test_scale_to_zero_and_wake_by_a_request(cluster: Cluster, url: str, example: str) -> None:
    name = "sleeper"
    resource = changed(example, name)
    scaling = {"mode": "Builtin", "minReplicas": 0, "maxReplicas": 1, "idleSecondsToZero": 30}
    resource["spec"]["autoscaling"] = {**scaling, "scaleDown": {"stabilizationSeconds": 5, "periodSeconds": 5}}
    cluster.apply(resource)
    try:
        patiently("asleep", lambda: _asleep(cluster, name), timeout=240)
        woken: list[Stream] = []
        thread = threading.Thread(target=lambda: woken.append(chat(url, story(name, 1, 8))))
        thread.start()
        thread.join(150)
        assert woken, "the held request was not answered within 150 s"
        assert woken[0].complete, woken[0]
    finally:
        remove(cluster, name)


def _asleep(cluster: Cluster, name: str) -> bool:
    status = (cluster.get(RESOURCE, name) or {}).get("status", {})
    history = status.get("autoscaling", {}).get("history", [])
    return bool(history) and history[-1]["to"] == 0 and not cluster.items("pods", f"{LABEL}={name}")


def _busy_pod(cluster: Cluster, name: str) -> str:
    """Name of a pod with a running stream, once every pod has one."""
    running = {}
    for pod in cluster.ready_pods(name):
        metrics = cluster.run(
            "get", "--raw", f"/api/v1/namespaces/{cluster.namespace}/pods/{pod['metadata']['name']}:9000/proxy/metrics"
        )
        lines = [line for line in metrics.splitlines() if line.startswith("octavo:num_requests_running")]
        running[pod["metadata"]["name"]] = sum(float(line.rsplit(" ", 1)[1]) for line in lines)
    return next(iter(running)) if len(running) == 2 and all(running.values()) else ""

"""What serves stands still, for real on a node: its engine, its server, or its kubelet. The status names which."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.examples import changed
from tests.e2e.waiting import patiently

from demo.cluster import RESOURCE, Cluster, condition
from demo.install import Installation
from demo.traffic import chat

NAMESPACE = "standstill"
TIMEOUT = 240
Serve = Callable[[str], AbstractContextManager[Any]]


@pytest.fixture(scope="module")
def cluster(installation: Installation) -> Iterator[Cluster]:
    """A namespace of its own."""
    cluster = replace(installation.cluster, namespace=NAMESPACE)
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    yield cluster
    cluster.run("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")


@pytest.fixture
def serve(cluster: Cluster, installation: Installation) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Makes an LLMDeployment of a name that serves, and returns its pod."""
    made: list[str] = []

    def start(name: str) -> dict[str, Any]:
        made.append(name)
        cluster.apply(changed(installation.example, name, probes={"livenessStallSeconds": 10}))
        patiently(f"{name} ready", lambda: healthy(cluster, name), timeout=TIMEOUT)
        (pod,) = cluster.ready_pods(name)
        return pod

    yield start
    for name in made:
        cluster.run("delete", RESOURCE, name, "-n", NAMESPACE, "--wait=false")


def healthy(cluster: Cluster, name: str) -> bool:
    """Whether the resource is ready and no failure is reported."""
    body = cluster.get(RESOURCE, name) or {}
    return (condition(body, "Ready") or {}).get("status") == "True" and "failures" not in body["status"]


def reason_of(cluster: Cluster, name: str) -> str:
    """The worst failure now; empty when there is none."""
    body = cluster.get(RESOURCE, name) or {}
    return str(next((found["reason"] for found in body.get("status", {}).get("failures", [])), ""))


def test_an_engine_that_stands_still(cluster: Cluster, serve: Any, url: str) -> None:
    pod = serve("stalled")
    with stopped(processes(pod, "octavo_inference.engine.process")):
        body = {"model": "stalled", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        threading.Thread(target=chat, args=(url, body), daemon=True).start()
        patiently(
            "EngineStalled", lambda: reason_of(cluster, "stalled") == "EngineStalled", timeout=TIMEOUT, interval=0.2
        )
    patiently("stalled serves again", lambda: healthy(cluster, "stalled"), timeout=TIMEOUT)


def test_a_server_that_does_not_answer_any_more(cluster: Cluster, serve: Any) -> None:
    pod = serve("frozen")
    with stopped(processes(pod, "octavo-server")):
        patiently("NotReady", lambda: reason_of(cluster, "frozen") == "NotReady", timeout=TIMEOUT)
        assert (condition(cluster.get(RESOURCE, "frozen"), "Available") or {})["status"] == "False"
    patiently("frozen serves again", lambda: healthy(cluster, "frozen"), timeout=TIMEOUT)


@pytest.mark.exclusive
def test_a_node_that_does_not_report(cluster: Cluster, serve: Any, installation: Installation) -> None:
    """The kubelet stands still: the pod serves on, and the status says that its state is unknown."""
    pod = serve("lost")
    with stopped(kubelets(installation)):
        patiently("NodeNotReady", lambda: reason_of(cluster, "lost") == "NodeNotReady", timeout=TIMEOUT)
        assert '"lost"' in models(cluster, pod)
    patiently("lost is found", lambda: healthy(cluster, "lost"), timeout=TIMEOUT)
    (same,) = cluster.ready_pods("lost")
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]


def models(cluster: Cluster, pod: dict[str, Any]) -> str:
    """What a server says it serves, by way of the API server: a NetworkPolicy keeps this machine from its port."""
    return cluster.run(
        "get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}:8000/proxy/v1/models"
    )


def processes(pod: dict[str, Any], program: str) -> list[int]:
    """Ids, as the host sees them, of a pod's processes whose command line names a program."""
    uid = pod["metadata"]["uid"]
    return [pid for pid, cgroup, command in running() if uid in cgroup and program in command]


def kubelets(installation: Installation) -> list[int]:
    """Ids of the kubelet of this cluster."""
    folder = str((installation.cluster.kubeconfig or Path()).parent)
    return [pid for pid, _, command in running() if "/kubelet " in command and folder in command]


def running() -> Iterator[tuple[int, str, str]]:
    """Id, cgroups and command line of every process."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            yield int(entry.name), (entry / "cgroup").read_text(), command
        except OSError:  # it has ended meanwhile
            continue


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Processes that stand still for a while."""
    assert pids, "no process to stop"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue

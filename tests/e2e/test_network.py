"""NetworkPolicies, enforced: who reaches what, tried from every pod to every port."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from tests.e2e.waiting import patiently

from demo.cluster import RESOURCE, Cluster, is_ready

NAME = "guarded"
STRANGERS = "strangers"
# Runs in a pod: tries to connect to every target, all at once, and prints which let it in. A refused connection was let
# through: only silence is a policy's work.
PROBE = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def open_(target):
    host, port = target
    try:
        socket.create_connection((host, port), timeout=3).close()
    except ConnectionRefusedError:
        return "closed"
    except OSError:
        return "no"
    return "yes"
targets = json.loads(sys.argv[1])
with ThreadPoolExecutor(32) as pool:
    print(json.dumps(dict(zip(targets, pool.map(open_, targets.values())))))
"""
LISTEN = "import http.server as h; h.HTTPServer(('', 8080), h.SimpleHTTPRequestHandler).serve_forever()"

# from: what it may reach. Everything else in the columns must be out of reach.
COLUMNS = (
    "gateway API", "gateway admin", "operator", "model API", "model admin", "API server", "neighbour", "outside",
)  # fmt: skip
ALLOWED: dict[str, set[str]] = {
    # No policy of ours is about what they may reach, but about who may reach us.
    "stranger": {"gateway API", "API server", "neighbour", "outside"},
    "neighbour": {"gateway API", "model API", "API server", "neighbour", "outside"},
    "gateway": {"gateway API", "gateway admin", "operator", "model API", "model admin", "API server"},
    "operator": {"gateway admin", "operator", "model admin", "API server"},
    "model": {"model API", "model admin"},
    "metrics peer": {"gateway API", "gateway admin", "operator", "model admin", "API server", "neighbour", "outside"},
}


@dataclass(frozen=True)
class World:
    """Where everybody is. `pods` are (namespace, name) of those who try."""

    pods: Mapping[str, tuple[str, str]]
    targets: Mapping[str, tuple[str, int]]


def plain_pod(image: str, name: str) -> dict[str, Any]:
    """A pod of nobody's, which listens on port 8080."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "c", "image": image, "command": ["python", "-c", LISTEN], "securityContext": security}
    user = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "securityContext": user, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@contextmanager
def listener(address: str) -> Iterator[int]:
    """A port of this machine that takes connections."""
    with socket.create_server((address, 0)) as server:
        threading.Thread(target=_accept, args=(server,), daemon=True).start()
        yield int(server.getsockname()[1])


def _accept(server: socket.socket) -> None:
    while True:
        try:
            server.accept()[0].close()
        except OSError:
            return


@pytest.fixture(scope="module")
def world(cluster: Cluster, system: str, example: str, this_machine: str) -> Iterator[World]:
    image = _one(cluster, "gateway", system)["spec"]["containers"][0]["image"]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": STRANGERS}}
    cluster.apply(namespace)
    resource = yaml.safe_load(example)
    resource["metadata"]["name"] = NAME
    resource["spec"].pop("autoscaling", None)
    cluster.apply(resource)
    spaces = {"stranger": STRANGERS, "neighbour": cluster.namespace}
    for name, space in spaces.items():
        cluster.run("apply", "-n", space, "-f", "-", stdin=json.dumps(plain_pod(image, name)))
    try:
        patiently("model", lambda: cluster.ready_pods(NAME), timeout=600)

        def running() -> bool:
            found = [cluster.get("pod", name, space) for name, space in spaces.items()]
            return all(pod is not None and is_ready(pod) for pod in found)

        patiently("plain pods", running, timeout=120)
        gateway, operator = _one(cluster, "gateway", system), _one(cluster, "operator", system)
        (model,) = cluster.ready_pods(NAME)
        ips = {
            "gateway": gateway["status"]["podIP"],
            "operator": operator["status"]["podIP"],
            "model": model["status"]["podIP"],
            "neighbour": (cluster.get("pod", "neighbour") or {})["status"]["podIP"],
        }
        api = (cluster.get("service", "kubernetes", "default") or {})["spec"]["clusterIP"]
        pods = {name: (space, name) for name, space in spaces.items()}
        pods |= {"gateway": (system, gateway["metadata"]["name"]), "operator": (system, operator["metadata"]["name"])}
        pods |= {"model": (cluster.namespace, model["metadata"]["name"])}
        with listener(this_machine) as port:
            yield World(
                pods,
                {
                    "gateway API": (ips["gateway"], 8080),
                    "gateway admin": (ips["gateway"], 9000),
                    "operator": (ips["operator"], 8081),
                    "model API": (ips["model"], 8000),
                    "model admin": (ips["model"], 9000),
                    "API server": (api, 443),
                    "neighbour": (ips["neighbour"], 8080),
                    "outside": (this_machine, port),
                },
            )
    finally:
        cluster.run("delete", "namespace", STRANGERS, "--ignore-not-found", "--wait=false")
        cluster.run("delete", "pod", "neighbour", "-n", cluster.namespace, "--ignore-not-found", "--wait=false")
        cluster.run("delete", RESOURCE, NAME, "-n", cluster.namespace, "--ignore-not-found", "--wait=false")


def reached(cluster: Cluster, world: World, source: str) -> dict[str, str]:
    """`yes`, `no` or `closed` by target."""
    targets = json.dumps(world.targets)
    if source in world.pods:
        space, pod = world.pods[source]
        text = cluster.run("exec", "-n", space, pod, "--", "python", "-c", PROBE, targets)
        return dict(json.loads(text))
    # This machine: its own address is the one that networkPolicy.metrics lets in.
    return {name: "yes" if _connects(*target) else "no" for name, target in world.targets.items()}


def test_who_reaches_what(cluster: Cluster, world: World, report: Callable[[str, str], None]) -> None:
    lines = ["| from | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    wrong = []
    seen: dict[str, set[str]] = {}
    for source, allowed in ALLOWED.items():
        found = reached(cluster, world, source)
        seen[source] = {target for target, answer in found.items() if answer == "yes"}
        cells = []
        for target in COLUMNS:
            expected = "yes" if target in allowed else "no"
            right = found[target] == expected
            cells.append(expected if right else f"**{found[target]}, not {expected}**")
            if not right:
                wrong.append(f"{source} → {target}: {found[target]}, expected {expected}")
        lines.append(f"| {source} | " + " | ".join(cells) + " |")
    report("network.md", "\n".join(lines))
    assert not wrong
    # What is out of reach for some listens all the same: others reach it.
    assert set().union(*seen.values()) == set(COLUMNS)


def test_without_its_policy_the_model_is_open_and_with_it_closed_again(cluster: Cluster, world: World) -> None:
    def protect(*, on: bool) -> None:
        change = {"spec": {"availability": {"networkPolicy": on, "podDisruptionBudget": on}}}
        cluster.run("patch", RESOURCE, NAME, "-n", cluster.namespace, "--type=merge", "-p", json.dumps(change))

    def objects() -> int:
        return len(cluster.items("networkpolicies,poddisruptionbudgets", f"octavo.dev/llmdeployment={NAME}"))

    before, protections = {pod["metadata"]["uid"] for pod in cluster.ready_pods(NAME)}, objects()
    protect(on=False)
    patiently("no policy, no budget", lambda: objects() == 0, timeout=60)
    patiently("open", lambda: reached(cluster, world, "stranger")["model API"] == "yes", timeout=60)
    protect(on=True)
    patiently("all again", lambda: objects() == protections > 1, timeout=60)
    patiently("closed", lambda: reached(cluster, world, "stranger")["model API"] == "no", timeout=60)
    assert {pod["metadata"]["uid"] for pod in cluster.ready_pods(NAME)} == before


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError:
        return False
    return True


def _one(cluster: Cluster, component: str, system: str) -> dict[str, Any]:
    pods = cluster.items("pods", f"app.kubernetes.io/component={component}", system)
    return next(pod for pod in pods if is_ready(pod))

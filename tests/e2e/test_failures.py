"""What goes wrong with pods, each for real on a node: people must read the field, the cause and the next step.

All bad resources are applied at once; each test then waits for its own.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml
from tests.e2e import fileimages
from tests.e2e.waiting import patiently

from demo.cluster import RESOURCE, Cluster, condition
from demo.install import Installation

NAMESPACE = "failures"
TIMEOUT = 240

# Python reads this at its start, when PYTHONPATH leads to it: a server that does what a test asks, in the real image.
FAULTY = b"""
import os, time
fault = os.environ.get("FAULT")
if fault == "slow":
    time.sleep(3600)
if fault == "hungry":
    hoard = bytearray(os.urandom(1 << 20) * 1024)
if fault == "full":  # the only small disk of a container
    try:
        with open("/dev/shm/filled", "wb") as out:
            for _ in range(1 << 10):
                out.write(bytes(1 << 20))
    except OSError as error:
        os.write(2, f"{error}\\n".encode())
        os._exit(1)
if fault == "greedy":  # somewhat more than the emptyDir's limit
    with open("/tmp/filled", "wb") as out:
        for _ in range(2100):
            out.write(bytes(1 << 20))
    time.sleep(3600)
"""


@dataclass(frozen=True)
class Case:
    """A spec (merged into the example's), the reasons that may explain it, and what the message must hold."""

    name: str
    reasons: tuple[str, ...]
    says: tuple[str, ...]
    spec: dict[str, Any] = field(default_factory=dict)
    conditions: tuple[tuple[str, str], ...] = ()
    namespace: str = NAMESPACE


def env(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"env": list(entries)}


def value_from(kind: str, name: str, key: str) -> dict[str, Any]:
    return {"name": "WANTED", "valueFrom": {kind: {"name": name, "key": key}}}


def cases(hub: str, images: dict[str, str]) -> list[Case]:
    endpoint = env({"name": "HF_ENDPOINT", "value": hub})

    def fault(kind: str) -> dict[str, Any]:
        engine = env({"name": "PYTHONPATH", "value": "/model"}, {"name": "FAULT", "value": kind})
        return {"model": {"uri": images["faulty"]}, "engine": engine}

    def hub_model(name: str, secret: str) -> dict[str, Any]:
        return {"model": {"uri": f"hf://{name}/x", "credentialsSecretRef": {"name": secret}}, "engine": endpoint}

    unresolved = (("ModelResolved", "False"), ("Degraded", "True"))
    homeless = (("Scheduled", "False"), ("Degraded", "True"))
    degraded = (("Degraded", "True"), ("Available", "False"))
    image, model = "localhost:5000/no-such-server:1", "oci://localhost:5000/models/no-such:v1"
    return [
        Case("image", ("ImagePullFailed",), ("spec.engine.image", image, "not found"), {"engine": {"image": image}}),
        Case(
            "no-model",
            ("ModelPullFailed",),
            ("spec.model.uri", model, "not found"),
            {"model": {"uri": model}},
            unresolved,
        ),
        Case(
            "denied",
            ("Unauthorized",),
            ("hf://denied/x", "401", "credentialsSecretRef"),
            hub_model("denied", "hub"),
            unresolved,
        ),
        Case(
            "gated",
            ("Unauthorized",),
            ("hf://gated/x", "403", "credentialsSecretRef"),
            hub_model("gated", "hub"),
            unresolved,
        ),
        Case(
            "no-token",
            ("SecretMissing",),
            ("spec.model.credentialsSecretRef", "'gone'", "create it"),
            hub_model("gated", "gone"),
        ),
        Case(
            "no-secret",
            ("SecretMissing",),
            ("spec.engine.env[WANTED]", "'nope'", "create it"),
            {"engine": env(value_from("secretKeyRef", "nope", "k"))},
        ),
        Case(
            "no-key",
            ("SecretMissing",),
            ("spec.engine.env[WANTED]", "'hub' has no key 'k'"),
            {"engine": env(value_from("secretKeyRef", "hub", "k"))},
        ),
        Case(
            "no-map",
            ("ConfigMapMissing",),
            ("spec.engine.env[WANTED]", "'later'", "create it"),
            {"engine": env(value_from("configMapKeyRef", "later", "k"))},
        ),
        Case(
            "no-claim",
            ("ModelVolumeUnavailable",),
            ("spec.model.uri", "pvc://nope/x", "create"),
            {"model": {"uri": "pvc://nope/x"}},
            homeless,
        ),
        Case(
            "too-big",
            ("Unschedulable",),
            ("64 CPUs", "spec.resources", "Insufficient cpu"),
            {"resources": {"cpu": "64"}},
            homeless,
        ),
        Case(
            "no-memory",
            ("OOMKilled",),
            ("spec.resources.memory", "512Mi", "raise it"),
            {**fault("hungry"), "resources": {"memory": "512Mi"}},
            degraded,
        ),
        Case(
            "crash",
            ("CrashLoop",),
            ("--no-such-flag", "kubectl logs"),
            {"engine": {"extraArgs": ["--no-such-flag"]}},
            degraded,
        ),
        Case("full", ("DiskFull",), ("kubectl logs", "No space left on device"), fault("full"), degraded),
        Case("evicted", ("DiskFull",), ('EmptyDir volume "tmp" exceeds the limit',), fault("greedy"), degraded),
        Case(
            "slow",
            ("StartTooSlow",),
            ("spec.probes.startupTimeoutSeconds", "30 s", "raise it"),
            {
                **fault("slow"),
                "probes": {"startupTimeoutSeconds": 30},
                "drain": {"timeoutSeconds": 0, "propagationSeconds": 0},
            },
            degraded,
        ),
        Case(
            "unknown",
            ("UnknownArchitecture", "InvalidModel"),
            ("NoSuchForCausalLM",),
            {"model": {"uri": images["unknown"]}},
            degraded,
        ),
        Case(
            "damaged",
            ("UnknownArchitecture", "InvalidModel"),
            ("damaged GGUF file",),
            {"model": {"uri": images["damaged"]}},
            degraded,
        ),
        Case(
            "sandbox",
            ("SandboxFailed",),
            ("sandbox", 'no runtime for "nope"'),
            {"scheduling": {"runtimeClassName": "no-handler"}},
            degraded,
        ),
        Case(
            "no-class",
            ("PodsRefused",),
            ("spec.scheduling.runtimeClassName", "nowhere"),
            {"scheduling": {"runtimeClassName": "nowhere"}},
            homeless,
        ),
        Case("quota", ("QuotaExceeded",), ("ResourceQuota", "exceeded quota: small"), {}, homeless, "failures-quota"),
        Case(
            "limits",
            ("LimitRangeExceeded",),
            ("spec.resources", "LimitRange", "100Mi"),
            {},
            homeless,
            "failures-limits",
        ),
    ]


class Refusing(BaseHTTPRequestHandler):
    """A hub that knows the model and not the token."""

    def do_GET(self) -> None:
        self.send_response(401 if "/denied/" in self.path else 403)
        self.end_headers()
        self.wfile.write(b'{"error": "access denied"}')

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def hub(installation: Installation) -> Iterator[str]:
    """Address of a hub that refuses everybody, where pods reach it."""
    with ThreadingHTTPServer((installation.host, 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://{installation.host}:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def images(installation: Installation) -> dict[str, str]:
    """Model images that are not what they should be."""
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "n_ctx")
    unknown = {"architectures": ["NoSuchForCausalLM"], "model_type": "nosuch", **dict.fromkeys(sizes, 8)}
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    contents = {
        "faulty": {"sitecustomize.py": FAULTY},
        "unknown": {
            "config.json": json.dumps(unknown).encode(),
            "tokenizer.json": b'{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}',
            "model.safetensors": len(header).to_bytes(8, "little") + header + bytes(4),
        },
        "damaged": {"model.gguf": b"GGUF\x03\0\0\0" + b"garbage" * 100},
    }
    model = yaml.safe_load(installation.example)["spec"]["model"]["uri"].partition("localhost:5000/")[2]
    return {
        name: "oci://"
        + fileimages.push(installation.registry, f"models/{name}", files, base=model if name == "faulty" else "")
        for name, files in contents.items()
    }


@pytest.fixture(scope="module")
def known(hub: str, images: dict[str, str]) -> dict[str, Case]:
    return {case.name: case for case in cases(hub, images)}


@pytest.fixture(scope="module")
def failing(installation: Installation, known: dict[str, Case]) -> Iterator[Cluster]:
    """Everything bad applied, in namespaces of its own."""
    cluster = replace(installation.cluster, namespace=NAMESPACE)
    spaces = [NAMESPACE, "failures-quota", "failures-limits"]
    for space in spaces:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": space, "labels": labels}
        cluster.run(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        )
    handler = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "no-handler"},
        "handler": "nope",
    }
    cluster.run("apply", "-f", "-", stdin=json.dumps(handler))
    token = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "stringData": {"token": "hf_x"}}
    cluster.apply(token)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}}
    replace(cluster, namespace="failures-quota").apply({**quota, "spec": {"hard": {"requests.cpu": "5m"}}})
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"}}
    limit = {"type": "Container", "max": {"memory": "100Mi"}}
    replace(cluster, namespace="failures-limits").apply({**limits, "spec": {"limits": [limit]}})
    try:
        for case in known.values():
            replace(cluster, namespace=case.namespace).apply(resource(installation.example, case.name, case.spec))
        yield cluster
    finally:
        cluster.run("delete", "namespace", *spaces, "--ignore-not-found", "--wait=false")
        cluster.run("delete", "runtimeclass", "no-handler", "--ignore-not-found")


def resource(example: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The example with `spec` laid over it: one replica that asks for next to no CPU, so that all fit on the node."""
    body: dict[str, Any] = yaml.safe_load(example)
    body["metadata"]["name"] = name
    body["spec"].pop("autoscaling", None)
    body["spec"]["resources"]["cpu"] = "10m"
    for block, value in spec.items():
        body["spec"][block] = {**body["spec"].get(block, {}), **value} if isinstance(value, dict) else value
    return body


def names(example_cases: list[Case]) -> list[str]:
    return [case.name for case in example_cases]


NAMES = names(cases("", {"faulty": "", "unknown": "", "damaged": ""}))
# The one that fills the node's disk goes first, and is deleted at once.
NAMES.sort(key=lambda name: name != "evicted")


def explained(cluster: Cluster, case: Case) -> dict[str, Any]:
    """The failure that explains the case; empty when there is none yet."""
    body = cluster.get(RESOURCE, case.name, case.namespace) or {}
    for found in body.get("status", {}).get("failures", []):
        if found["reason"] in case.reasons and all(text in found["message"] for text in case.says):
            return dict(found)
    return {}


@pytest.mark.parametrize("name", NAMES)
def test_failure_is_explained(name: str, failing: Cluster, known: dict[str, Case]) -> None:
    case = known[name]
    found = patiently(
        f"{name} explained by {case.reasons} with {case.says}", lambda: explained(failing, case), timeout=TIMEOUT
    )
    assert len(found["message"]) <= 1024
    assert "Traceback" not in found["message"]
    assert found["message"].isprintable()
    assert found["count"] >= 1

    body = failing.get(RESOURCE, name, case.namespace)
    for kind, status in case.conditions:
        shown = condition(body, kind)
        assert shown
        assert shown["status"] == status, shown
    assert (condition(body, "Ready") or {})["status"] == "False"
    # What people type first: the reason in the one line, everything in the description, the event at its end.
    assert found["reason"] in failing.run("get", "llmd", name, "-n", case.namespace, "--no-headers")
    said = patiently("event", lambda: events(failing, case, found["reason"]), timeout=30)
    assert any(all(text in note for text in case.says) for note in said), said
    description = failing.run("describe", "llmd", name, "-n", case.namespace)
    assert found["reason"] in description.partition("Events:")[2]
    assert "Traceback" not in description
    if name == "evicted":
        failing.run("delete", RESOURCE, name, "-n", case.namespace)


def events(cluster: Cluster, case: Case, reason: str) -> list[str]:
    """Messages of the operator's warnings with a reason about a resource."""
    fields = f"involvedObject.kind=LLMDeployment,involvedObject.name={case.name},reason={reason},type=Warning"
    found = json.loads(cluster.run("get", "events", "-n", case.namespace, "--field-selector", fields, "-o", "json"))
    return [event["message"] for event in found["items"]]


def test_a_failure_is_an_event_and_a_log_line_once(failing: Cluster, known: dict[str, Case], system: str) -> None:
    """Some minutes and many restarts later."""
    for name in ("crash", "image", "quota", "sandbox"):
        case = known[name]
        reason = case.reasons[0]
        assert len(events(failing, case, reason)) == 1
        made = (failing.get(RESOURCE, name, case.namespace) or {})["metadata"]["creationTimestamp"]
        logs = "".join(
            failing.run("logs", pod["metadata"]["name"], "-n", system, f"--since-time={made}")
            for pod in failing.items("pods", "app.kubernetes.io/component=operator", system)
        )
        lines = [line for line in logs.splitlines() if f'"{case.namespace}/{name}"' in line and f'"{reason}: ' in line]
        assert len(lines) == 1, lines


def test_failures_go_when_their_cause_goes(failing: Cluster, installation: Installation) -> None:
    """Each cure is what the message asked for; nothing else is touched."""
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "later"}, "data": {"k": "v"}}
    failing.apply(wanted)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "nope"}, "stringData": {"k": "v"}}
    failing.apply(secret)
    patch(failing, "too-big", {"resources": {"cpu": "10m"}})
    patch(failing, "crash", {"engine": {"extraArgs": []}})
    failing.run("delete", "resourcequota", "small", "-n", "failures-quota")
    cured = [("no-map", NAMESPACE), ("no-secret", NAMESPACE), ("too-big", NAMESPACE), ("crash", NAMESPACE)]
    for name, space in [*cured, ("quota", "failures-quota")]:
        body = patiently(f"{name} cured", lambda name=name, space=space: healthy(failing, name, space), timeout=TIMEOUT)
        assert "failures" not in body["status"]
        assert (condition(body, "Degraded") or {})["reason"] == "AsExpected"
        failing.run("delete", RESOURCE, name, "-n", space)


def healthy(cluster: Cluster, name: str, namespace: str) -> dict[str, Any]:
    """The resource when it is ready and nothing is said against it."""
    body = cluster.get(RESOURCE, name, namespace) or {}
    fine = (condition(body, "Ready") or {}).get("status") == "True"
    return body if fine and "failures" not in body["status"] else {}


def patch(cluster: Cluster, name: str, spec: dict[str, Any]) -> None:
    cluster.run("patch", RESOURCE, name, "-n", cluster.namespace, "--type=merge", "-p", json.dumps({"spec": spec}))

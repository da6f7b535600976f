"""GPUs by a device plugin on a real node: who gets which, who waits and is told why, and who sees none.

No device is behind them: what a server without CUDA says at its start is part of the test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from tests.e2e import fileimages, gpus
from tests.e2e.examples import changed
from tests.e2e.waiting import patiently

from demo.cluster import RESOURCE, Cluster, condition
from demo.install import SYSTEM, Installation

NAMESPACE = "gpus"
TIMEOUT = 240
QUICK = {"drain": {"timeoutSeconds": 0, "propagationSeconds": 0}}

LOST = "the GPU failed and cannot recover: CUDA error: an illegal memory access was encountered"
# Python reads this at its start, when PYTHONPATH leads to it: a server in the real image that says what it sees, and
# may end as one does whose GPU failed.
TELLING = f"""
import json, os, time
print("sees", os.environ.get("NVIDIA_VISIBLE_DEVICES", "everything"), flush=True)
shm = os.statvfs("/dev/shm")
print("shares", shm.f_blocks * shm.f_frsize >> 20, flush=True)
if "LOSE" in os.environ:
    print(json.dumps({{"level": "error", "message": "{LOST}"}}), flush=True)
    os._exit(72)
time.sleep(3600)
""".encode()


@pytest.fixture(scope="module")
def node(installation: Installation) -> Iterator[str]:
    """Name of the node, which has two GPUs."""
    with gpus.on_the_node(installation, 2) as name:
        yield name


@pytest.fixture(scope="module")
def models(installation: Installation, node: str) -> Iterator[Cluster]:
    """The cluster, in a namespace of these tests."""
    cluster = replace(installation.cluster, namespace=NAMESPACE)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.run("apply", "-f", "-", stdin=json.dumps(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    ))  # fmt: skip
    yield cluster
    cluster.run("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=300)


@pytest.fixture(scope="module")
def cpu_image(installation: Installation) -> str:
    """The server's image at hand: the one without torch and CUDA. (With them it is 5 GB.)"""
    operator = installation.cluster.get("deployment", "octavo-operator", SYSTEM) or {}
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    flag = "--server-cpu-image="
    return next(str(arg).removeprefix(flag) for arg in container["args"] if str(arg).startswith(flag))


@pytest.fixture(scope="module")
def telling(installation: Installation) -> str:
    """A model whose servers say what they see and then wait."""
    model = yaml.safe_load(installation.example)["spec"]["model"]["uri"].partition("localhost:5000/")[2]
    files = {"sitecustomize.py": TELLING}
    return "oci://" + fileimages.push(installation.registry, "models/telling", files, base=model)


@pytest.fixture
def teller(models: Cluster, installation: Installation, cpu_image: str, telling: str) -> Iterator[Any]:
    """Applies an LLMDeployment whose servers say what they see; it is gone after the test, and its pods with it."""
    made: list[str] = []

    def apply(name: str, gpu: dict[str, Any], variable: str = "USUAL", **spec: Any) -> None:
        made.append(name)
        engine = {
            "image": cpu_image,
            "env": [{"name": "PYTHONPATH", "value": "/model"}, {"name": variable, "value": ""}],
            "parallelism": {"tensor": max(1, gpu["count"])},
        }
        resources = {"cpu": "10m", "gpu": gpu}
        body = changed(
            installation.example, name, model={"uri": telling}, engine=engine, resources=resources, **QUICK, **spec
        )
        models.apply(body)

    yield apply
    for name in made:
        models.run("delete", RESOURCE, name, "-n", NAMESPACE)
        patiently(f"{name} gone", lambda name=name: not pods(models, name), timeout=TIMEOUT)


def pods(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    return cluster.items("pods", f"octavo.dev/llmdeployment={name},app.kubernetes.io/component=server")


def log_of(cluster: Cluster, pod: dict[str, Any], *flags: str) -> str:
    """What a pod's server wrote; whatever kubectl says instead, where there is no log."""
    return cluster.run("logs", pod["metadata"]["name"], "-n", NAMESPACE, "-c", "server", *flags, check=False)


def seen(cluster: Cluster, name: str, word: str = "sees") -> list[str]:
    """What the servers of an LLMDeployment say that they see (or share)."""
    lines = [line for pod in pods(cluster, name) for line in log_of(cluster, pod).splitlines()]
    return sorted(line.removeprefix(f"{word} ") for line in lines if line.startswith(f"{word} "))


def failure(cluster: Cluster, name: str, reason: str, *texts: str) -> str:
    """The message of a failure with that reason which holds these texts; empty when there is none."""
    body = cluster.get(RESOURCE, name) or {}
    found = [f["message"] for f in body.get("status", {}).get("failures", []) if f["reason"] == reason]
    return next((message for message in found if all(text in message for text in texts)), "")


def test_each_pod_gets_a_gpu_of_its_own_and_the_third_is_told_why_it_waits(models: Cluster, teller: Any) -> None:
    teller("two", {"count": 1}, replicas=2, rollout={"surgeScheduleTimeoutSeconds": 10})
    patiently("two GPUs", lambda: seen(models, "two") == ["GPU-fake-0", "GPU-fake-1"], timeout=TIMEOUT)

    # No room beside them for a pod of a new spec: they are replaced in place.
    change = {"spec": {"engine": {"env": [{"name": "PYTHONPATH", "value": "/model"}, {"name": "A", "value": "b"}]}}}
    models.run("patch", RESOURCE, "two", "-n", NAMESPACE, "--type=merge", "-p", json.dumps(change))
    patiently("in place", lambda: in_place(models, "two"), timeout=TIMEOUT)

    models.run("patch", RESOURCE, "two", "-n", NAMESPACE, "--type=merge", "-p", '{"spec": {"replicas": 3}}')
    says = ("requests 10m CPUs", "1 nvidia.com/gpu (spec.resources)", "Insufficient nvidia.com/gpu", "; nodes have: 2 ")
    patiently("the third waits", lambda: failure(models, "two", "Unschedulable", *says), timeout=TIMEOUT)
    scheduled = condition(models.get(RESOURCE, "two"), "Scheduled") or {}
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")


def in_place(cluster: Cluster, name: str) -> bool:
    said = condition(cluster.get(RESOURCE, name), "Progressing") or {}
    return said.get("reason") == "SurgeUnschedulable" and "an additional pod with 1 nvidia.com/gpu" in said["message"]


def test_gpus_that_share_a_model_come_to_one_pod_at_once(models: Cluster, teller: Any) -> None:
    teller("shared", {"count": 2})
    (both,) = patiently("both GPUs", lambda: seen(models, "shared"), timeout=TIMEOUT)
    assert sorted(both.split(",")) == ["GPU-fake-0", "GPU-fake-1"]
    assert seen(models, "shared", "shares") == ["1024"]

    teller("wide", {"count": 4})
    says = ("4 nvidia.com/gpu (spec.resources)", "no node has 4 of them", "nodes have: 2 ")
    patiently("wide waits", lambda: failure(models, "wide", "Unschedulable", *says), timeout=TIMEOUT)


def test_a_card_is_chosen_by_product_and_memory(models: Cluster, node: str, teller: Any) -> None:
    teller("picky", {"count": 1, "product": "NVIDIA-L4", "minMemory": "24G"})

    def waits(*texts: str) -> None:
        asked = "1 nvidia.com/gpu of product 'NVIDIA-L4' with at least 24G (22889 MiB)"
        patiently(f"{texts}", lambda: failure(models, "picky", "Unschedulable", asked, *texts), timeout=TIMEOUT)

    waits("no node fits resources.gpu.product", "nodes have: 2 nvidia.com/gpu without label nvidia.com/gpu.product")
    models.run("label", "node", node, "nvidia.com/gpu.product=NVIDIA-L4", "nvidia.com/gpu.memory=15360")
    waits("no node fits resources.gpu.minMemory", "nodes have: 2 NVIDIA-L4 of 15360 MiB (1 node)")
    models.run("label", "node", node, "--overwrite", "nvidia.com/gpu.memory=22889")
    patiently("a GPU that fits", lambda: seen(models, "picky"), timeout=TIMEOUT)
    assert seen(models, "picky")[0].startswith("GPU-fake-")


def test_a_pod_that_asks_for_no_gpu_sees_none(models: Cluster, teller: Any) -> None:
    teller("plain", {"count": 0})
    patiently("plain runs", lambda: seen(models, "plain"), timeout=TIMEOUT)
    assert seen(models, "plain") == ["void"]
    assert seen(models, "plain", "shares") == ["64"]


def test_a_gpu_that_failed_is_told_from_a_server_that_ends(models: Cluster, teller: Any) -> None:
    teller("lost", {"count": 1}, "LOSE")
    patiently("GpuFailed", lambda: failure(models, "lost", "GpuFailed", LOST, "drain the node"), timeout=TIMEOUT)
    fields = "involvedObject.kind=LLMDeployment,involvedObject.name=lost,reason=GpuFailed"
    assert models.run("get", "events", "-n", NAMESPACE, "--field-selector", fields, "-o", "name").split()


def test_a_server_without_cuda_says_so_in_its_log_and_in_the_resource(
    models: Cluster, installation: Installation, cpu_image: str
) -> None:
    """The pod has a GPU, and nothing to compute on it with."""
    resources = {"cpu": "10m", "gpu": {"count": 1}}
    models.apply(changed(installation.example, "bare", engine={"image": cpu_image}, resources=resources, **QUICK))
    says = ("device cuda needs torch and triton", "use the image octavo-server")
    message = patiently("bare fails", lambda: failure(models, "bare", "CrashLoop", *says), timeout=TIMEOUT)
    said = patiently("its log", lambda: last_line(models, "bare"), timeout=TIMEOUT)
    assert said in message
    assert "Traceback" not in message
    models.run("delete", RESOURCE, "bare", "-n", NAMESPACE)


def last_line(cluster: Cluster, name: str) -> str:
    """What the last line says that a server wrote before it ended."""
    for pod in pods(cluster, name):
        for which in ((), ("--previous",)):
            lines = log_of(cluster, pod, *which).splitlines()
            if lines and "octavo-server" in lines[-1]:
                return str(json.loads(lines[-1])["message"]) if lines[-1].startswith("{") else lines[-1]
    return ""

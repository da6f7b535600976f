"""GPU pods on a real API server: the pod that is made, what is said where no node fits, and what is said of its end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from octavo_operator.api.resource import Key
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import DEPLOYMENTS, LLMDEPLOYMENTS, NODES, PODS
from octavo_operator.metrics.process import OperatorMetrics
from octavo_operator.reconcile.nodes import NodeGpuReader
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.resources.common import Installation
from octavo_protocol.model import GpuReport, GpuShare, ModelReport, encode_inspection

from .jobs import finish_jobs

Json = dict[str, Any]
LABELS = {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034"}
SCHEDULER = (
    "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector. "
    "preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful "
    "for scheduling."
)


@pytest.fixture
async def node(kube: KubeClient, namespace: str) -> AsyncIterator[None]:
    """One node with an L4."""
    has = {"nvidia.com/gpu": "1", "cpu": "8"}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"{namespace}-l4", "labels": LABELS}}
    made = await kube._call("POST", NODES.path(None), body={**body, "status": {"capacity": has, "allocatable": has}})
    yield
    await kube._call("DELETE", NODES.path(None, made["metadata"]["name"]))


@pytest.fixture
def reconciler(kube: KubeClient, sampled: Any) -> Reconciler:
    installation = Installation("octavo-server:1", "octavo-server-cpu:1", "octavo-system")
    nodes = NodeGpuReader(kube, time.monotonic)
    return Reconciler(kube, installation, sampled, OperatorMetrics(), time.time, "test", nodes=nodes)


async def make_pod(kube: KubeClient, key: Key, status: Json) -> Json:
    """A pod of the Deployment, as the API server takes it, in the given state."""
    deployment = await kube.get(DEPLOYMENTS, key.namespace, key.name)
    assert deployment is not None
    template = deployment["spec"]["template"]
    metadata = {"name": "tiny-0", "namespace": key.namespace, "labels": template["metadata"]["labels"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    made: Json = await kube.create(PODS, pod)
    await kube.apply_status(PODS, key.namespace, "tiny-0", status)
    return made


async def conditions(kube: KubeClient, key: Key) -> dict[str, Json]:
    body = await kube.get(LLMDEPLOYMENTS, key.namespace, key.name)
    assert body is not None
    return {condition["type"]: condition for condition in body["status"]["conditions"]}


@pytest.fixture
async def started(kube: KubeClient, llmd: Callable[..., Json], namespace: str, reconciler: Reconciler) -> Key:
    """A resource that asks for a card that no node has, its Deployment made."""
    key = Key(namespace, "tiny")
    asked = {"gpu": {"count": 1, "product": "NVIDIA-H100-80GB-HBM3", "minMemory": "80G"}}
    await kube.apply(LLMDEPLOYMENTS, llmd(resources=asked))
    await reconciler.reconcile(key)
    await finish_jobs(kube, namespace)
    await reconciler.reconcile(key)
    return key


async def test_a_gpu_pod_is_one_that_kubernetes_takes(kube: KubeClient, started: Key) -> None:
    pod = await make_pod(kube, started, {"phase": "Pending"})
    (server,) = pod["spec"]["containers"]
    # The API server makes the request of an extended resource from its limit.
    assert server["resources"]["requests"]["nvidia.com/gpu"] == server["resources"]["limits"]["nvidia.com/gpu"] == "1"
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"][0]["matchExpressions"][1]["values"] == ["76293"]


@pytest.mark.usefixtures("node")
async def test_a_gpu_that_no_node_has_is_set_beside_those_there_are(
    kube: KubeClient, started: Key, reconciler: Reconciler
) -> None:
    time = "2026-01-01T00:00:00Z"
    homeless = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SCHEDULER}
    await make_pod(kube, started, {"phase": "Pending", "conditions": [{**homeless, "lastTransitionTime": time}]})
    await reconciler.reconcile(started)
    said = (await conditions(kube, started))["Scheduled"]
    assert (said["status"], said["reason"]) == ("False", "Unschedulable")
    asked = "1 nvidia.com/gpu of product 'NVIDIA-H100-80GB-HBM3' with at least 80G (76294 MiB) (spec.resources)"
    for text in (
        asked,
        "Insufficient nvidia.com/gpu",
        "no node fits resources.gpu.product",
        "1 NVIDIA-L4 of 23034 MiB",
    ):
        assert text in said["message"]


@pytest.mark.parametrize(
    ("code", "sentence", "reason"),
    [
        (72, "the GPU failed: CUDA error: an illegal memory access was encountered", "GpuFailed"),
        (73, "rank 1 of 2 died: it was killed by signal 9", "RankLost"),
        (1, "--device cuda: there is no NVIDIA driver on this node", "CrashLoop"),
    ],
)
async def test_the_servers_last_sentence_reaches_the_resource(
    code: int, sentence: str, reason: str, kube: KubeClient, started: Key, reconciler: Reconciler
) -> None:
    time = "2026-01-01T00:00:00Z"
    ended = {"exitCode": code, "reason": "Error", "message": sentence, "startedAt": time, "finishedAt": time}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}
    container = {
        "name": "server", "image": "x", "imageID": "", "ready": False, "restartCount": 1, "state": waiting,
        "lastState": {"terminated": ended},
    }  # fmt: skip
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": time}
    await make_pod(kube, started, {"phase": "Running", "conditions": [scheduled], "containerStatuses": [container]})
    await reconciler.reconcile(started)
    found = await conditions(kube, started)
    for kind in ("Ready", "Degraded"):
        assert found[kind]["reason"] == reason
        assert sentence in found[kind]["message"]


def report(**changes: Any) -> str:
    """What the Job says of a model of 16 GiB."""
    sizes = {"kv_elements_per_token": 65_536, "token": 16_800, "token_elements": 64_000, "widest": 14_336}
    bf16 = 16 << 30
    weights = {"auto": bf16, "bfloat16": bf16, "float32": 2 * bf16, "fp8": 9 << 30}
    share = GpuShare(ranks=1, weights=weights, row=1_400_000, fixed=17_000_000, **sizes)
    gpu = GpuReport(head_dim=128, row_elements=4096, position=512, shares=(share,))
    found = {"architecture": "llama", "format": "bf16", "file_bytes": bf16, "max_length": 131_072, "gpu": gpu}
    return encode_inspection(ModelReport(**{**found, **changes})).decode()


@pytest.fixture
async def small_node(kube: KubeClient, namespace: str) -> AsyncIterator[None]:
    """A node with a card of 15 GiB, in a zone that no other test has."""
    labels = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360", "zone": namespace}
    has = {"nvidia.com/gpu": "1", "cpu": "8"}
    head = {"name": f"{namespace}-t4", "labels": labels}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": head, "status": {"capacity": has, "allocatable": has}}
    made = await kube._call("POST", NODES.path(None), body=body)
    yield
    await kube._call("DELETE", NODES.path(None, made["metadata"]["name"]))


async def resolved(kube: KubeClient, reconciler: Reconciler, body: Json, found: str) -> Json:
    """The resource after a pass that has the Job's report."""
    key = Key(body["metadata"]["namespace"], body["metadata"]["name"])
    await kube.apply(LLMDEPLOYMENTS, body)
    await reconciler.reconcile(key)
    await finish_jobs(kube, key.namespace, found)
    await reconciler.reconcile(key)
    seen = await kube.get(LLMDEPLOYMENTS, key.namespace, key.name)
    assert seen is not None
    return seen


@pytest.mark.usefixtures("small_node")
async def test_a_model_that_fits_no_gpu_of_the_cluster_gets_no_pods(
    kube: KubeClient, llmd: Callable[..., Json], namespace: str, reconciler: Reconciler
) -> None:
    key, spec = Key(namespace, "tiny"), {"resources": {"gpu": {"count": 1}}}
    spec["scheduling"] = {"nodeSelector": {"zone": namespace}}
    await resolved(kube, reconciler, llmd(**spec), report())
    found = await conditions(kube, key)
    for kind in ("Ready", "SpecValid"):
        assert (found[kind]["status"], found[kind]["reason"]) == ("False", "ModelTooLarge")
        assert "Tesla-T4 with 15360Mi is too small: the weights take 16384Mi (bf16)" in found[kind]["message"]
        assert "or set spec.engine.quantization to fp8" in found[kind]["message"]
    assert await kube.get(DEPLOYMENTS, namespace, "tiny") is None
    # The way out that the message names.
    smaller = {**spec, "engine": {"quantization": "fp8"}}
    status = (await resolved(kube, reconciler, llmd(**smaller), report()))["status"]
    assert await kube.get(DEPLOYMENTS, namespace, "tiny") is not None
    assert (status["model"]["format"], status["model"]["fileBytes"]) == ("bf16", 16 << 30)
    assert status["model"]["weightsBytes"] == 9 << 30
    assert 20_000 < status["capacity"]["estimatedKvTokensPerReplica"] < 40_000
    assert status["capacity"]["estimatedGpuMemoryBytes"] <= 15360 << 20


async def test_a_quantization_that_the_server_would_refuse_makes_no_pods(
    kube: KubeClient, llmd: Callable[..., Json], namespace: str, reconciler: Reconciler
) -> None:
    spec = {"resources": {"gpu": {"count": 1}}, "engine": {"quantization": "fp8"}}
    await resolved(kube, reconciler, llmd(**spec), report(format="awq int4 g128", quantized=True))
    said = (await conditions(kube, Key(namespace, "tiny")))["SpecValid"]
    assert (said["status"], said["reason"]) == ("False", "QuantizationConflict")
    assert "quantization fp8 has no effect: the checkpoint is already quantised; leave it at auto" in said["message"]
    assert await kube.get(DEPLOYMENTS, namespace, "tiny") is None

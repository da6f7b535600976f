"""Pods with GPUs: where they may run, what they and all others see, and what is said where no node has such a GPU."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.kube.errors import RefusedError, TransientError
from octavo_operator.observe import gpu_fit
from octavo_operator.observe.diagnosis import Problem
from octavo_operator.observe.gpu_fit import Card, NodeGpus
from octavo_operator.observe.messages import LIMIT
from octavo_operator.observe.pods import Pod
from octavo_operator.reconcile.nodes import AGAIN_SECONDS, NodeGpuReader
from octavo_operator.reconcile.plan import Observed
from octavo_operator.resources import config, deployment, model_job
from octavo_operator.resources.common import Installation
from octavo_operator.rollout import plan
from octavo_operator.status.status import MESSAGE

Json = dict[str, Any]
Make = Callable[..., LLMDeployment]

H100 = NodeGpus(8, "NVIDIA-H100-80GB-HBM3", 81559)
L4 = NodeGpus(1, "NVIDIA-L4", 23034)
SHARED = {"engine": {"parallelism": {"tensor": 4}}, "resources": {"gpu": {"count": 4}}}


@pytest.fixture
def gpu(make_owner: Make) -> Make:
    def make(spec: Json | None = None, **asked: Any) -> LLMDeployment:
        return make_owner({**(spec or {}), "resources": {"gpu": {"count": 1, **asked}}})

    return make


def pods(owner: LLMDeployment, installation: Installation) -> list[Json]:
    """The server's pod and the one that looks at its model."""
    server: Json = deployment.pod_template(owner, installation, "c")["spec"]
    look: Json = model_job.job(owner, installation, model_job.Pins())["spec"]["template"]["spec"]
    return [server, look]


def variables(container: Json) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


def test_only_the_server_of_a_gpu_pod_sees_gpus(gpu: Make, make_owner: Make, installation: Installation) -> None:
    uri = {"model": {"uri": "hf://org/model"}}
    seen = {}
    for name, owner in (("gpu", gpu(uri)), ("cpu", make_owner(uri))):
        for pod in pods(owner, installation):
            for container in (*pod.get("initContainers", []), *pod["containers"]):
                seen[name, container["name"]] = variables(container).get("NVIDIA_VISIBLE_DEVICES")
    # The device plugin sets it there.
    assert seen.pop(("gpu", "server")) is None
    assert len(seen) == 5
    assert set(seen.values()) == {"void"}


def test_a_gpu_pod_has_the_gpu_its_image_and_a_place_for_kernels(gpu: Make, installation: Installation) -> None:
    pod, _ = pods(gpu(), installation)
    (server,) = pod["containers"]
    assert server["image"] == installation.server_image
    assert server["resources"]["limits"]["nvidia.com/gpu"] == "1"
    cache = variables(server)["TRITON_CACHE_DIR"]
    (mount,) = [mount for mount in server["volumeMounts"] if mount["mountPath"] == cache]
    assert "readOnly" not in mount
    assert "emptyDir" in next(volume for volume in pod["volumes"] if volume["name"] == mount["name"])


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([], [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]),
        (
            [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        ),
    ],
)
def test_nodes_kept_for_gpus_take_gpu_pods(
    own: list[Json], expected: list[Json], gpu: Make, installation: Installation
) -> None:
    """The look goes there too: where it runs, volumes are bound."""
    for pod in pods(gpu({"scheduling": {"tolerations": own}}), installation):
        assert pod["tolerations"] == expected


def test_nodes_kept_for_gpus_take_no_cpu_pod(make_owner: Make, installation: Installation) -> None:
    assert not any("tolerations" in pod or "affinity" in pod for pod in pods(make_owner(), installation))


@pytest.mark.parametrize(
    ("memory", "mib"), [("80G", 76294), ("80Gi", 81920), ("24G", 22889), ("1Gi", 1024), ("16000000000", 15259)]
)
def test_a_node_fits_from_the_memory_asked_for_on(memory: str, mib: int, gpu: Make, installation: Installation) -> None:
    for pod in pods(gpu(minMemory=memory), installation):
        assert terms(pod) == [[{"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": [str(mib - 1)]}]]


def test_every_term_of_an_affinity_gets_the_product(gpu: Make, installation: Installation) -> None:
    zones = [[{"key": "zone", "operator": "In", "values": [zone]}] for zone in "ab"]
    required = {"nodeSelectorTerms": [{"matchExpressions": zone} for zone in zones]}
    node = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    owner = gpu({"scheduling": {"affinity": {"nodeAffinity": node}}}, product="NVIDIA-L4")
    wanted = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L4"]}
    for pod in pods(owner, installation):
        assert terms(pod) == [[*zone, wanted] for zone in zones]


def terms(pod: Json) -> list[list[Json]]:
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [term["matchExpressions"] for term in required["nodeSelectorTerms"]]


def test_the_server_is_told_its_device(gpu: Make, make_owner: Make) -> None:
    assert config.server_settings(make_owner())["device"] == "cpu"
    plain = config.server_settings(gpu())
    assert (plain["device"], "kv-dtype" in plain, "quantization" in plain) == ("cuda", False, False)
    asked = config.server_settings(gpu({"engine": {"quantization": "fp8", "kv": {"dtype": "int8"}}}))
    assert (asked["kv-dtype"], asked["quantization"]) == ("int8", "fp8")


def test_gpus_that_share_a_model_are_in_one_pod_with_shared_memory(
    make_owner: Make, installation: Installation
) -> None:
    owner = make_owner(SHARED)
    pod, look = pods(owner, installation)
    (server,) = pod["containers"]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == "4"
    (mount,) = [mount for mount in server["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "2048Mi"}
    assert "shm" not in {volume["name"] for volume in look["volumes"]}
    assert config.server_settings(owner)["tensor-parallel-size"] == 4


def test_one_gpu_is_as_it_was_before_there_could_be_more(gpu: Make, installation: Installation) -> None:
    """Else an upgrade of the operator would restart pods."""
    owner = gpu({"engine": {"parallelism": {"tensor": 1}}})
    pod, _ = pods(owner, installation)
    assert "shm" not in {volume["name"] for volume in pod["volumes"]}
    assert "tensor-parallel-size" not in config.server_settings(owner)
    assert owner.revision == gpu().revision


def test_a_surge_that_fails_for_a_gpu_names_it(gpu: Make) -> None:
    progress = plan._in_place(gpu(product="NVIDIA-L4").spec)
    assert "an additional pod with 1 nvidia.com/gpu of product 'NVIDIA-L4' within 120 s" in progress.message


@pytest.mark.parametrize(
    ("asked", "nodes", "says"),
    [
        ({}, [NodeGpus(0, "", 0)], "no node has nvidia.com/gpu: is the vendor's device plugin running"),
        ({}, [L4, L4], "nodes have: 1 NVIDIA-L4 of 23034 MiB (2 nodes)"),
        (
            {"product": "NVIDIA-A100"},
            [L4, H100, H100],
            "no node fits resources.gpu.product; nodes have: 8 NVIDIA-H100-80GB-HBM3 of 81559 MiB (2 nodes), 1 N",
        ),
        ({"minMemory": "24Gi"}, [L4], "no node fits resources.gpu.minMemory; nodes have: 1 NVIDIA-L4"),
        ({"product": "NVIDIA-L4", "minMemory": "80G"}, [L4, H100], "no node fits resources.gpu.minMemory; "),
        (
            {"product": "NVIDIA-L4"},
            [NodeGpus(2, "", 0)],
            "2 nvidia.com/gpu without label nvidia.com/gpu.product and nvidia.com/gpu.memory (1 node)",
        ),
        (
            {"count": 2, "minMemory": "20G"},
            [L4, L4],
            "no node has 2 of them, and a replica has all its GPUs on one (resources.gpu.count); nodes have: 1 NVIDIA",
        ),
        ({"count": 8}, [L4, H100], "nodes have: 1 NVIDIA-L4"),
        ({"count": 2, "minMemory": "24G"}, [L4, NodeGpus(4, "NVIDIA-T4", 15360)], "no node has 2 of them, "),
        ({"count": 8, "product": "NVIDIA-L4"}, [L4, H100], "no node has 8 of them, "),
    ],
)
def test_what_nodes_have_is_said(asked: Json, nodes: list[NodeGpus], says: str, gpu: Make) -> None:
    text = gpu_fit.explained(gpu(**asked).spec.resources.gpu, nodes)
    assert says in text
    assert ("of them" in text) == ("of them" in says)


def test_many_kinds_of_nodes_are_counted_and_fit_a_status(gpu: Make) -> None:
    nodes = [NodeGpus(8, f"NVIDIA-{'X' * 50}-{n}", 81559) for n in range(200)]
    text = gpu_fit.explained(gpu(product="NVIDIA-L4").spec.resources.gpu, nodes)
    assert LIMIT + len("; ") + len(text) <= MESSAGE
    few = gpu_fit.explained(gpu().spec.resources.gpu, [NodeGpus(8, f"X{n}", 1) for n in range(7)])
    assert few.endswith("and 2 other kinds")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"metadata": {}}, NodeGpus(0, "", 0)),
        (
            {
                "metadata": {"labels": {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034"}},
                "status": {"allocatable": {"nvidia.com/gpu": "1"}},
            },
            L4,
        ),
        (
            {
                "metadata": {"labels": {"nvidia.com/gpu.memory": "much"}},
                "status": {"allocatable": {"nvidia.com/gpu": "1k"}},
            },
            NodeGpus(0, "", 0),
        ),
    ],
)
def test_nodes_are_read_as_they_are(body: Json, expected: NodeGpus) -> None:
    assert gpu_fit.of_node(body, "nvidia.com/gpu") == expected


class Cluster:
    """One node with an L4; counts how often it was asked for."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.asked = error, 0

    async def pages(self, *_: object) -> Any:
        self.asked += 1
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        labels = {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034"}
        yield [{"metadata": {"labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": "1"}}}]


def waiting(make_pod: Callable[..., Pod]) -> Observed:
    problem = Problem("tiny-0", "", "Unschedulable", "no node takes it")
    other = Problem("tiny-0", "", "VolumeMountFailed", "no volume")
    return Observed(pods=(make_pod("tiny-0", ready=False, problems=(problem, other)), make_pod("tiny-1")))


async def test_nodes_are_read_for_gpu_pods_and_not_each_time(
    gpu: Make, make_owner: Make, make_pod: Callable[..., Pod]
) -> None:
    cluster, now = Cluster(), [0.0]
    nodes = NodeGpuReader(cluster, lambda: now[0])  # type: ignore[arg-type]
    seen = waiting(make_pod)
    assert await nodes.look(make_owner(), seen) == seen
    assert cluster.asked == 0
    served = replace(seen, pods=seen.pods[1:])
    assert await nodes.look(gpu(), served) == replace(served, cards=(Card("NVIDIA-L4", 23034 << 20, 1),))
    for _ in range(3):
        told = await nodes.look(gpu(), seen)
        first, second = told.pods[0].problems
        assert first.message == "no node takes it; nodes have: 1 NVIDIA-L4 of 23034 MiB (1 node)"
        assert second.message == "no volume"
    assert cluster.asked == 1
    now[0] = AGAIN_SECONDS
    await nodes.look(gpu(), seen)
    assert cluster.asked == 2


async def test_passes_that_start_together_list_nodes_once(gpu: Make, make_pod: Callable[..., Pod]) -> None:
    cluster = Cluster()
    nodes, seen = NodeGpuReader(cluster, lambda: 0.0), waiting(make_pod)  # type: ignore[arg-type]
    first, *others = await asyncio.gather(*(nodes.look(gpu(), seen) for _ in range(4)))
    assert others == [first] * 3
    assert cluster.asked == 1


@pytest.mark.parametrize("error", [RefusedError(403, "nodes is forbidden"), TransientError(500, "overloaded")])
async def test_nodes_that_were_read_are_known_while_they_cannot_be_read(
    error: Exception, gpu: Make, make_pod: Callable[..., Pod]
) -> None:
    cluster, now = Cluster(), [0.0]
    nodes, seen = NodeGpuReader(cluster, lambda: now[0]), waiting(make_pod)  # type: ignore[arg-type]
    before = await nodes.look(gpu(), seen)
    cluster.error, now[0] = error, AGAIN_SECONDS
    assert await nodes.look(gpu(), seen) == before != seen
    assert cluster.asked == 2


async def test_without_the_right_to_read_nodes_less_is_said(gpu: Make, make_pod: Callable[..., Pod]) -> None:
    cluster = Cluster(RefusedError(403, "nodes is forbidden"))
    nodes, seen = NodeGpuReader(cluster, lambda: 0.0), waiting(make_pod)  # type: ignore[arg-type]
    assert await nodes.look(gpu(), seen) == seen
    await nodes.look(gpu(), seen)
    assert cluster.asked == 1

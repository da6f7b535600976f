"""What is in the cluster: nodes, LLMDeployments, and what is done to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from localcluster import ControlPlane
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import KubeError, NotFoundError
from octavo_operator.kube.permissions import rules
from octavo_operator.kube.resources import LLMDEPLOYMENTS, NODES, PODS, SERVICE_ACCOUNTS, Resource
from octavo_protocol import names

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
OPERATOR_NAMESPACE = "octavo-system"
GPUS_PER_NODE = 8
REPLICAS = 5
PER_NAMESPACE = 100
_PARALLEL = 16

NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole")
CLUSTER_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding")


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything. `deployments` have five replicas each."""

    nodes: int
    deployments: int
    changed: int
    deleted_pods: int

    @classmethod
    def of(cls, scale: float) -> Size:
        """1 is the size that the aims are about."""

        def part(whole: int) -> int:
            return max(1, round(whole * scale))

        # At full size 500 GPUs are free for the additional pods of rollouts; small sizes round them away.
        spare = 0 if scale >= 1 else 2
        return cls(nodes=part(1000) + spare, deployments=part(2000), changed=part(200), deleted_pods=part(100))

    @property
    def pods(self) -> int:
        """Replicas of all."""
        return REPLICAS * self.deployments

    @property
    def namespaces(self) -> list[str]:
        """Where they are."""
        return [f"team-{number}" for number in range(-(-self.deployments // PER_NAMESPACE))]


async def connect(plane: ControlPlane) -> KubeClient:
    """The administrator's client."""
    configuration = Configuration()
    await config.load_kube_config(config_file=str(plane.kubeconfig), client_configuration=configuration)
    return KubeClient(ApiClient(configuration=configuration))


async def furnish(kube: KubeClient, size: Size) -> None:
    """CRD, namespaces, rights and nodes."""
    await _cluster_scoped(kube, CRDS, yaml.safe_load((ROOT / "crds/llmdeployments.octavo.dev.yaml").read_text()))
    head = {"apiVersion": "v1", "kind": "Namespace"}
    for name in (OPERATOR_NAMESPACE, *size.namespaces):
        await _cluster_scoped(kube, NAMESPACES, {**head, "metadata": {"name": name}})
    await _each((node(number) for number in range(size.nodes)), lambda body: _cluster_scoped(kube, NODES, body))
    while not await _served(kube):  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.2)


def node(number: int) -> Json:
    """A node with eight GPUs."""
    has = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(GPUS_PER_NODE)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"gpu-{number:04d}", "labels": {"kubernetes.io/hostname": f"gpu-{number:04d}"}},
        "status": {"capacity": has, "allocatable": has},
    }


def llmd(number: int, size: Size) -> Json:
    """One LLMDeployment: three in four on GPUs, one in ten scaled by the operator, the others by hand."""
    gpus = 0 if number % 4 == 3 else 1
    scaling: Json = {"mode": "Manual"}
    if number % 10 == 0:
        scaling = {"mode": "Builtin", "minReplicas": REPLICAS, "maxReplicas": REPLICAS + 1}
    return {
        "apiVersion": LLMDEPLOYMENTS.api_version,
        "kind": LLMDEPLOYMENTS.kind,
        "metadata": {"name": f"model-{number:04d}", "namespace": size.namespaces[number // PER_NAMESPACE]},
        "spec": {
            "replicas": REPLICAS,
            "model": {"uri": "oci://registry.example.com/models/tiny:1"},
            "resources": {"gpu": {"count": gpus}, "cpu": "1", "memory": "1Gi"},
            "autoscaling": scaling,
            "drain": {"timeoutSeconds": 5, "propagationSeconds": 0},
        },
    }


async def create(kube: KubeClient, size: Size) -> None:
    """All LLMDeployments, as fast as the API server takes them."""
    bodies = (llmd(number, size) for number in range(size.deployments))
    await _each(bodies, lambda body: kube.create(LLMDEPLOYMENTS, body))


async def change(kube: KubeClient, size: Size) -> None:
    """Specs that roll their pods."""
    step = size.deployments // size.changed
    # Of all kinds, whatever their period.
    bodies = [llmd(number * step + number % step, size) for number in range(size.changed)]
    for body in bodies:
        body["spec"]["engine"] = {"maxModelLen": 4096}
    await _each(bodies, lambda body: kube.merge(LLMDEPLOYMENTS, body))


async def delete_pods(kube: KubeClient, size: Size) -> None:
    """Pods, as an eviction would."""
    selector = f"{names.LABEL_COMPONENT}={names.COMPONENT_SERVER}"
    found = [pod["metadata"] for space in size.namespaces for pod in await kube.list(PODS, space, labels=selector)]
    step = len(found) // size.deleted_pods
    chosen = found[::step][: size.deleted_pods]
    await _each(chosen, lambda meta: kube.delete(PODS, meta["namespace"], meta["name"], meta["uid"]))


async def delete_all(kube: KubeClient, size: Size) -> None:
    """All LLMDeployments."""
    for space in size.namespaces:
        await kube._call("DELETE", LLMDEPLOYMENTS.path(space))


async def count(kube: KubeClient, resource: Resource) -> int:
    """How many objects of the operator's there are, without reading them."""
    labels = f"?limit=1&labelSelector={names.LABEL_MANAGED_BY}%3D{names.MANAGED_BY}"
    page = await kube._call("GET", resource.path(None) + labels)
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))


async def states(kube: KubeClient) -> list[Json]:
    """Status and generation of every LLMDeployment."""
    return [
        {"generation": body["metadata"]["generation"], **body.get("status", {})}
        for body in await kube.list(LLMDEPLOYMENTS, None)
    ]


def settled(state: Json) -> bool:
    """Whether every replica is ready and of the newest spec, and the status says so of this generation."""
    return state.get("observedGeneration") == state["generation"] and set(counts(state).values()) == {REPLICAS}


def counts(state: Json) -> Json:
    """Replicas as a status has them."""
    return {name: state.get(name) for name in ("replicas", "readyReplicas", "updatedReplicas", "desiredReplicas")}


async def operator_kubeconfig(kube: KubeClient, plane: ControlPlane, folder: Path) -> Path:
    """The identity of a service account with the operator's rights, no more."""
    head = {"metadata": {"name": "octavo-operator", "namespace": OPERATOR_NAMESPACE}}
    await kube.create(SERVICE_ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", **head})
    api = "rbac.authorization.k8s.io/v1"
    granted = [rule for group in rules().values() for rule in group]
    role = {"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": "octavo-operator"}, "rules": granted}
    await _cluster_scoped(kube, CLUSTER_ROLES, role)
    binding = {
        "apiVersion": api,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "octavo-operator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "octavo-operator"},
        "subjects": [{"kind": "ServiceAccount", "name": "octavo-operator", "namespace": OPERATOR_NAMESPACE}],
    }
    await _cluster_scoped(kube, CLUSTER_BINDINGS, binding)
    path = SERVICE_ACCOUNTS.path(OPERATOR_NAMESPACE, "octavo-operator", "token")
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    token = (await kube._call("POST", path, body=request))["status"]["token"]
    written = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": plane.server, "certificate-authority": str(plane.ca)}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    file = folder / "operator.kubeconfig"
    file.write_text(yaml.safe_dump(written))
    return file


async def _each(bodies: Iterable[Any], do: Callable[[Any], Awaitable[Any]]) -> None:
    """A few at the same time; an answer that says "later" is taken at its word."""
    waiting = iter(bodies)

    async def work() -> None:
        for body in waiting:
            while True:
                try:
                    await do(body)
                except KubeError as error:
                    if error.status not in (0, 429, 500, 503, 504):
                        raise
                    await asyncio.sleep(1)
                else:
                    break

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_PARALLEL):
            tasks.create_task(work())


async def _cluster_scoped(kube: KubeClient, resource: Resource, body: Json) -> None:
    # The client speaks of namespaced objects alone, as the operator does; None leaves the namespace out of the address.
    await kube.apply(resource, {**body, "metadata": {**body["metadata"], "namespace": None}})


async def _served(kube: KubeClient) -> bool:
    try:
        await kube.list(LLMDEPLOYMENTS, "default")
    except NotFoundError:
        return False
    return True

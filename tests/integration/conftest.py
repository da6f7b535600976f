"""A real API server for the session, and a namespace of its own for every test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from tests.support.waiting import eventually_async

from localcluster import ClusterError, ControlPlane, shared_control_plane
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import NotFoundError
from octavo_operator.kube.resources import LLMDEPLOYMENTS, Resource

ROOT = Path(__file__).resolve().parents[2]

NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")

# The CRD is large: given to an API server once, not for every test.
_HAVE_CRD: list[ControlPlane] = []

Connect = Callable[..., Awaitable[KubeClient]]


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver: one for all workers of this run. Tests that stop or kill it have one of their own."""
    own = tmp_path_factory.getbasetemp()
    try:
        # The folder of a worker stands in that of the run.
        with shared_control_plane(own.parent if hasattr(request.config, "workerinput") else own) as running:
            yield running
    except ClusterError as error:
        pytest.skip(f"no control plane: {error}")


@pytest.fixture
async def connect(plane: ControlPlane) -> AsyncIterator[Connect]:
    """Makes clients; `environment` may hold failpoints, `kubeconfig` another identity than the administrator's."""
    clients: list[KubeClient] = []

    async def make(kubeconfig: Path | None = None, **environment: str) -> KubeClient:
        configuration = Configuration()
        await config.load_kube_config(
            config_file=str(kubeconfig or plane.kubeconfig), client_configuration=configuration
        )
        client = KubeClient(ApiClient(configuration=configuration), environment=environment)
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
async def kube(plane: ControlPlane, connect: Connect) -> KubeClient:
    """The administrator's client; the CRD is there."""
    client = await connect()
    if plane in _HAVE_CRD:
        return client
    crd: dict[str, Any] = yaml.safe_load((ROOT / "crds/llmdeployments.octavo.dev.yaml").read_text())
    await _apply_cluster_scoped(client, CRDS, crd)
    await eventually_async(lambda: _served(client))
    _HAVE_CRD.append(plane)
    return client


async def _served(client: KubeClient) -> bool:
    try:
        await client.list(LLMDEPLOYMENTS, "default")
    except NotFoundError:
        return False
    return True


@pytest.fixture
def make_namespace(kube: KubeClient) -> Callable[[], Awaitable[str]]:
    """Makes namespaces no other test uses. Without a controller manager they never go: they are left behind."""

    async def make() -> str:
        name = f"t-{uuid.uuid4().hex[:10]}"
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        head = {"apiVersion": "v1", "kind": "Namespace"}
        await _apply_cluster_scoped(kube, NAMESPACES, {**head, "metadata": {"name": name, "labels": labels}})
        return name

    return make


@pytest.fixture
async def namespace(make_namespace: Callable[[], Awaitable[str]]) -> str:
    """A namespace no other test uses."""
    return await make_namespace()


async def _apply_cluster_scoped(client: KubeClient, resource: Resource, body: dict[str, Any]) -> None:
    # The client speaks of namespaced objects alone, as the operator does; None leaves the namespace out of the address.
    await client.apply(resource, {**body, "metadata": {**body["metadata"], "namespace": None}})

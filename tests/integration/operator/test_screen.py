"""Looking at many resources with a few lists: who needs a pass, and who does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from octavo_operator.api.resource import Key
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import (
    CHILDREN,
    CONFIG_MAPS,
    DEPLOYMENTS,
    LLMDEPLOYMENTS,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Resource,
)
from octavo_operator.reconcile.reconciler import Reconciler

Json = dict[str, Any]
Make = Callable[..., Json]
Connect = Callable[..., Awaitable[KubeClient]]
MakeReconciler = Callable[[KubeClient], Reconciler]


class Counting:
    """A client that counts what is asked of it."""

    def __init__(self, client: KubeClient) -> None:
        self._client, self.calls = client, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def list(self, *arguments: Any, **more: Any) -> list[Json]:
        self.calls += 1
        return await self._client.list(*arguments, **more)

    async def get(self, *arguments: Any) -> Json | None:
        self.calls += 1
        return await self._client.get(*arguments)


async def screened(kube: KubeClient, reconciler: Reconciler, namespace: str) -> set[str]:
    needy = await reconciler.screen(namespace, await kube.list(LLMDEPLOYMENTS, namespace))
    return {key.name for key in needy}


@pytest.fixture
async def settled(kube: KubeClient, llmd: Make, namespace: str, make_reconciler: MakeReconciler) -> Reconciler:
    """Three resources of which nobody has to be looked at any more: they are suspended, and wait for nothing."""
    reconciler = make_reconciler(kube)
    for name in ("one", "two", "three"):
        await kube.apply(LLMDEPLOYMENTS, llmd(name, suspend=True))
    for _ in range(3):
        for name in ("one", "two", "three"):
            await reconciler.reconcile(Key(namespace, name))
    return reconciler


async def test_of_settled_resources_none_needs_a_pass_whoever_asks(
    kube: KubeClient, namespace: str, settled: Reconciler, make_reconciler: MakeReconciler
) -> None:
    assert await screened(kube, settled, namespace) == set()
    client = Counting(kube)
    successor = make_reconciler(client)  # type: ignore[arg-type] - a client that counts
    assert await screened(kube, successor, namespace) == set()
    assert client.calls == len(CHILDREN) + 1
    assert {key.name for key in successor.known} == {"one", "two", "three"}
    for name in ("one", "two", "three"):
        assert not successor._version_tracker.needs_pass(Key(namespace, name))


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        (DEPLOYMENTS, "two"),
        (SERVICES, "two"),
        (SERVICES, "two-pods"),
        (SERVICE_ACCOUNTS, "two"),
        (NETWORK_POLICIES, "two"),
        (POD_DISRUPTION_BUDGETS, "two"),
        (CONFIG_MAPS, ""),
    ],
)
async def test_who_lost_a_child_needs_one(
    kube: KubeClient, namespace: str, settled: Reconciler, resource: Resource, name: str
) -> None:
    found = await kube.list(resource, namespace, labels="octavo.dev/llmdeployment=two")
    (child,) = [body for body in found if body["metadata"]["name"] == name or not name]
    await kube.delete(resource, namespace, child["metadata"]["name"], child["metadata"]["uid"])
    assert await screened(kube, settled, namespace) == {"two"}
    await settled.reconcile(Key(namespace, "two"))
    assert await screened(kube, settled, namespace) == set()


async def test_who_has_another_spec_or_another_child_needs_one(
    kube: KubeClient, llmd: Make, namespace: str, settled: Reconciler
) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd("one", replicas=2))
    service = await kube.get(SERVICES, namespace, "three")
    assert service is not None
    service["spec"]["selector"] = {"app": "another"}
    await kube.replace(SERVICES, service)
    await kube.apply(LLMDEPLOYMENTS, llmd("four"))
    assert await screened(kube, settled, namespace) == {"one", "three", "four"}

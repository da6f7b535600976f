"""Granted is used: a life of an LLMDeployment needs every right of the RBAC rules, and no other."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from octavo_operator.api.resource import Key
from octavo_operator.app.watches import _CHILDREN
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.permissions import SERVED
from octavo_operator.kube.resources import CONTROLLER_REVISIONS, DEPLOYMENTS, LLMDEPLOYMENTS, PODS, SERVICES
from octavo_operator.reconcile.reconciler import Reconciler

Json = dict[str, Any]
Right = tuple[str, str, str]

_ADDRESS = re.compile(r"/apis?/(?:(?P<group>[^/]+\.[^/]+|apps|batch|policy)/)?[^/]+/namespaces/[^/]+/(?P<rest>.+)")
_VERBS = {"GET": "get", "POST": "create", "DELETE": "delete"}


def rights(method: str, path: str, content_type: str) -> set[Right]:
    """What RBAC asks for a call."""
    match = _ADDRESS.fullmatch(path)
    assert match is not None, path
    plural, _, name = match["rest"].partition("/")
    name, _, subresource = name.partition("/")
    resource = f"{plural}/{subresource}" if subresource else plural
    group = match["group"] or ""
    if method == "PATCH":
        # Apply makes what is not there; a status always is.
        makes = "apply" in content_type and not subresource
        return {(group, resource, verb) for verb in (("patch", "create") if makes else ("patch",))}
    verb = "list" if method == "GET" and not name else _VERBS[method]
    return {(group, resource, verb)}


@pytest.fixture
async def recorded(connect: Callable[..., Awaitable[KubeClient]]) -> tuple[KubeClient, set[Right]]:
    client, used = await connect(), set[Right]()
    call = client._call

    async def record(method: str, path: str, query: Any = None, body: Any = None, content_type: str = "") -> Json:
        used.update(rights(method, path, content_type))
        return await call(method, path, query, body, content_type or "application/json")

    client._call = record  # type: ignore[method-assign]
    return client, used


async def test_granted_is_used(
    kube: KubeClient,
    llmd: Callable[..., Json],
    namespace: str,
    recorded: tuple[KubeClient, set[Right]],
    make_reconciler: Callable[[KubeClient], Reconciler],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("octavo_operator.reconcile.read.SILENT_SECONDS", -60.0)
    client, used = recorded
    reconciler, key = make_reconciler(client), Key(namespace, "tiny")
    await kube.apply(LLMDEPLOYMENTS, llmd(replicas=2))
    await reconciler.reconcile(key)
    await make_pods(kube, key)
    # One pod is silent: its events are listed. It goes first: it is marked.
    await kube.apply(LLMDEPLOYMENTS, llmd(replicas=1))
    await reconciler.reconcile(key)
    for pod in await kube.list(PODS, namespace):
        await kube.delete(PODS, namespace, pod["metadata"]["name"], pod["metadata"]["uid"])
    # Another configuration and no protection: the old children are deleted.
    changed = {"engine": {"threads": 1}, "availability": {"podDisruptionBudget": False, "networkPolicy": False}}
    await kube.apply(LLMDEPLOYMENTS, llmd(**changed, rollout={"revisionHistoryLimit": 0}))
    await reconciler.reconcile(key)
    await reconciler.reconcile(key)
    # What a canary has left behind.
    await leave_canary(kube, key)
    await reconciler.reconcile(key)
    # A cache, which a claim is made for.
    cache = {"type": "PersistentVolumeClaim", "size": "1Gi"}
    await kube.apply(LLMDEPLOYMENTS, llmd("cached", model={"uri": "hf://org/tiny"}, cache=cache))
    await reconciler.reconcile(Key(namespace, "cached"))

    watched = {(kind.group, kind.plural, verb) for kind in (*_CHILDREN, LLMDEPLOYMENTS) for verb in ("list", "watch")}
    owner = {(LLMDEPLOYMENTS.group, f"{LLMDEPLOYMENTS.plural}/finalizers", "update")}
    granted = {(group, resource, verb) for group, resource, verbs in SERVED for verb in verbs}
    assert used | watched | owner == granted


async def leave_canary(kube: KubeClient, key: Key) -> None:
    annotations = {"octavo.dev/canary-state": '{"step": -1, "begun": 0, "held": null}'}
    (record,) = await kube.list(CONTROLLER_REVISIONS, key.namespace)
    await kube.annotate(CONTROLLER_REVISIONS, key.namespace, record["metadata"]["name"], annotations)
    for resource in (DEPLOYMENTS, SERVICES):
        body = await kube.get(resource, key.namespace, key.name)
        assert body is not None
        kept = {name: body["metadata"][name] for name in ("namespace", "labels", "ownerReferences")}
        spec = {name: value for name, value in body["spec"].items() if not name.startswith("clusterIP")}
        body = {**body, "metadata": {**kept, "name": f"{key.name}-canary"}, "spec": spec}
        await kube.create(resource, body)


async def make_pods(kube: KubeClient, key: Key) -> None:
    deployment = await kube.get(DEPLOYMENTS, key.namespace, key.name)
    assert deployment is not None
    template = deployment["spec"]["template"]
    for name in ("one", "two"):
        metadata = {"name": name, "namespace": key.namespace, "labels": template["metadata"]["labels"]}
        await kube.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})

"""Rollouts against a real API server: the history and its notes, rollback, and canaries. What a cluster's controllers
do, the tests do: no Deployment makes pods here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo_operator.api.resource import Key
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import CONTROLLER_REVISIONS, DEPLOYMENTS, LLMDEPLOYMENTS, PODS, SERVICES
from octavo_operator.observe.canary_analysis import AnalysisSample, TrackAnswers
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.status.input import Load

Json = dict[str, Any]
Make = Callable[..., Json]
TIME = "2026-01-01T00:00:00Z"
OLD, NEW = {"engine": {"threads": 1}}, {"engine": {"threads": 2}}


class Cluster:
    """One LLMDeployment, its reconciler, and the controllers that this API server has not."""

    def __init__(self, kube: KubeClient, reconciler: Reconciler, key: Key, llmd: Make) -> None:
        self.kube, self.reconciler, self.key, self.llmd = kube, reconciler, key, llmd

    async def spec(self, **spec: Any) -> None:
        await self.kube.apply(LLMDEPLOYMENTS, self.llmd(**spec))
        await self.reconciler.reconcile(self.key)

    async def status(self) -> Json:
        body = await self.kube.get(LLMDEPLOYMENTS, self.key.namespace, self.key.name)
        assert body is not None
        found: Json = body["status"]
        return {**found, "conditions": {c["type"]: c for c in found["conditions"]}}

    async def deployment(self, name: str = "tiny") -> Json | None:
        return await self.kube.get(DEPLOYMENTS, self.key.namespace, name)

    async def threads(self, name: str = "tiny") -> Json:
        """What a Deployment's pods mount, which depends on engine.threads."""
        body = await self.deployment(name)
        assert body is not None
        found: Json = body["metadata"]["labels"]["octavo.dev/revision"]
        return found

    async def revisions(self) -> dict[str, Json]:
        found = await self.kube.list(CONTROLLER_REVISIONS, self.key.namespace)
        return {body["metadata"]["labels"]["octavo.dev/revision"]: body for body in found}

    async def roll(self, deployment: str = "tiny") -> None:
        """All pods of a Deployment are replaced by ready ones of its template."""
        body = await self.deployment(deployment)
        assert body is not None
        labels = body["spec"]["template"]["metadata"]["labels"]
        for pod in await self.kube.list(PODS, self.key.namespace):
            if pod["metadata"]["name"].startswith(f"{deployment}-pod"):
                await self.kube.delete(PODS, self.key.namespace, pod["metadata"]["name"], pod["metadata"]["uid"])
        for number in range(body["spec"]["replicas"]):
            name = f"{deployment}-pod{number}"
            metadata = {"name": name, "namespace": self.key.namespace, "labels": labels}
            spec = body["spec"]["template"]["spec"]
            await self.kube.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
            times = {"lastTransitionTime": TIME}
            state = {"running": {"startedAt": TIME}}
            container = {"name": "server", "image": "x", "imageID": "", "ready": True, "restartCount": 0}
            await self.kube.apply_status(
                PODS,
                self.key.namespace,
                name,
                {
                    "phase": "Running",
                    "podIP": "10.1.2.3",
                    "conditions": [{"type": t, "status": "True", **times} for t in ("PodScheduled", "Ready")],
                    "containerStatuses": [{**container, "state": state}],
                },
            )
        await self.reconciler.reconcile(self.key)

    async def late(self) -> None:
        """The Deployment controller gives up on the rollout."""
        body = await self.deployment()
        assert body is not None
        condition = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": ""}
        times = {"lastUpdateTime": TIME, "lastTransitionTime": TIME}
        status = {"observedGeneration": body["metadata"]["generation"], "conditions": [{**condition, **times}]}
        await self.kube.apply_status(DEPLOYMENTS, self.key.namespace, "tiny", status)
        await self.reconciler.reconcile(self.key)


@pytest.fixture
def cluster(
    kube: KubeClient, namespace: str, llmd: Make, make_reconciler: Callable[[KubeClient], Reconciler]
) -> Cluster:
    return Cluster(kube, make_reconciler(kube), Key(namespace, "tiny"), llmd)


async def test_a_spec_comes_back_with_the_template_it_had(cluster: Cluster) -> None:
    await cluster.spec(**OLD)
    await cluster.roll()
    first = await cluster.status()
    assert first["currentRevision"] == first["updateRevision"]
    before = await cluster.deployment()
    await cluster.spec(**NEW)
    await cluster.roll()
    second = await cluster.status()
    assert second["currentRevision"] == second["updateRevision"] != first["currentRevision"]
    numbers = {name: body["revision"] for name, body in (await cluster.revisions()).items()}
    assert numbers == {first["currentRevision"]: 1, second["currentRevision"]: 2}
    await cluster.spec(**OLD)
    assert (await cluster.revisions())[first["currentRevision"]]["revision"] == 3
    after = await cluster.deployment()
    assert before is not None
    assert after is not None
    assert after["spec"]["template"] == before["spec"]["template"]


async def test_a_deleted_record_of_what_runs_is_written_again(cluster: Cluster, kube: KubeClient) -> None:
    await cluster.spec(**OLD)
    await cluster.roll()
    before = await cluster.deployment()
    (record,) = (await cluster.revisions()).values()
    await kube.delete(
        CONTROLLER_REVISIONS, cluster.key.namespace, record["metadata"]["name"], record["metadata"]["uid"]
    )
    await cluster.reconciler.reconcile(cluster.key)
    (again,) = (await cluster.revisions()).values()
    assert again["data"] == record["data"]
    assert await cluster.deployment() == before


async def test_a_rollout_that_fails_is_rolled_back_and_stays_so(
    cluster: Cluster, kube: KubeClient, make_reconciler: Callable[[KubeClient], Reconciler]
) -> None:
    await cluster.spec(**OLD)
    await cluster.roll()
    good = (await cluster.status())["currentRevision"]
    await cluster.spec(**NEW)
    assert await cluster.threads() != good
    await cluster.late()
    assert await cluster.threads() == good
    found = await cluster.status()
    assert found["currentRevision"] == good
    assert found["conditions"]["Progressing"]["reason"] == "RolledBack"
    assert found["conditions"]["Progressing"]["status"] == "False"
    assert found["conditions"]["Available"]["status"] == "True"
    # Another operator, another pass: the note is in the cluster.
    await make_reconciler(kube).reconcile(cluster.key)
    assert await cluster.threads() == good
    # Another spec is another try.
    await cluster.spec(engine={"threads": 3})
    assert await cluster.threads() == (await cluster.status())["updateRevision"]


async def test_a_canary_is_begun_judged_and_followed(cluster: Cluster, sampled: Any) -> None:
    rollout = {"strategy": "Canary", "canary": {"steps": [{"percent": 50, "holdSeconds": 0}]}}
    await cluster.spec(**OLD, rollout=rollout)
    await cluster.roll()
    old = await cluster.threads()
    await cluster.spec(**NEW, rollout=rollout)
    assert await cluster.threads() == old
    new = await cluster.threads("tiny-canary")
    assert new == (await cluster.status())["updateRevision"]
    await cluster.roll("tiny-canary")
    service = await cluster.kube.get(SERVICES, cluster.key.namespace, "tiny")
    assert service is not None
    annotations = service["metadata"]["annotations"]
    assert annotations["octavo.dev/canary-percent"] == "50"
    sampled.now = Load(
        evidence={annotations["octavo.dev/canary-step"]: AnalysisSample(TrackAnswers(50, 0), TrackAnswers(50, 0))}
    )
    await cluster.reconciler.reconcile(cluster.key)
    assert await cluster.threads() == new
    assert (await cluster.status())["conditions"]["Progressing"]["reason"] == "CanaryPromoted"
    await cluster.roll()
    assert await cluster.deployment("tiny-canary") is None


async def test_a_bad_canary_goes_and_leaves_nothing(cluster: Cluster, sampled: Any, kube: KubeClient) -> None:
    rollout = {"strategy": "Canary", "canary": {"steps": [{"percent": 50}]}}
    await cluster.spec(**OLD, rollout=rollout)
    await cluster.roll()
    old = await cluster.threads()
    await cluster.spec(**NEW, rollout=rollout)
    await cluster.roll("tiny-canary")
    service = await kube.get(SERVICES, cluster.key.namespace, "tiny")
    assert service is not None
    step = service["metadata"]["annotations"]["octavo.dev/canary-step"]
    assert step.startswith(f"{await cluster.threads('tiny-canary')}-0-")
    sampled.now = Load(evidence={step: AnalysisSample(TrackAnswers(100, 0), TrackAnswers(100, 9))})
    await cluster.reconciler.reconcile(cluster.key)
    assert await cluster.threads() == old
    assert await cluster.deployment("tiny-canary") is None
    found = (await cluster.status())["conditions"]
    assert found["Progressing"]["reason"] == "RolledBack"
    assert "canary failed 9.0 % of 100 requests" in found["Progressing"]["message"]
    # The gateways know the canary's pods by its Service: it stays until they are gone.
    assert await kube.get(SERVICES, cluster.key.namespace, "tiny-canary") is not None
    for pod in await kube.list(PODS, cluster.key.namespace, labels="octavo.dev/track=canary"):
        await kube.delete(PODS, cluster.key.namespace, pod["metadata"]["name"], pod["metadata"]["uid"])
    await cluster.reconciler.reconcile(cluster.key)
    assert await kube.get(SERVICES, cluster.key.namespace, "tiny-canary") is None
    await cluster.reconciler.reconcile(cluster.key)
    assert all(
        "octavo.dev/canary-state" not in b["metadata"]["annotations"] for b in (await cluster.revisions()).values()
    )


@pytest.mark.parametrize(
    "rollout",
    [
        {},
        {"strategy": "Recreate"},
        {"strategy": "Rolling", "maxSurge": 0, "maxUnavailable": 1},
        {"strategy": "Rolling"},
        {"strategy": "Canary", "canary": {"steps": [{"percent": 1}, {"percent": 2}]}},
    ],
)
async def test_strategies_are_accepted(kube: KubeClient, llmd: Make, rollout: Json) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd(rollout=rollout))

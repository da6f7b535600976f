"""Models in images, on a real API server: their tags become digests, by the credentials of a user's pull secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo_operator.api.resource import Key
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import DEPLOYMENTS, JOBS, LLMDEPLOYMENTS, NETWORK_POLICIES, SERVICE_ACCOUNTS
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_protocol.model import ModelReport, encode_inspection

from .jobs import finish_jobs

Json = dict[str, Any]
TAG, DIGEST = "registry.local/models/tiny:1", "sha256:" + "a" * 64


def volumes(body: Json) -> dict[str, Json]:
    return {volume["name"]: volume for volume in body["spec"]["template"]["spec"]["volumes"]}


async def test_replicas_use_the_digest_that_the_job_found(
    kube: KubeClient, llmd: Callable[..., Json], namespace: str, make_reconciler: Callable[..., Reconciler]
) -> None:
    key, reconciler = Key(namespace, "tiny"), make_reconciler(kube, jobs=False)
    await kube.apply(LLMDEPLOYMENTS, llmd(model={"uri": f"oci://{TAG}"}))
    await reconciler.reconcile(key)
    account = await kube.get(SERVICE_ACCOUNTS, namespace, "tiny")
    assert account is not None
    await kube.replace(SERVICE_ACCOUNTS, {**account, "imagePullSecrets": [{"name": "registry"}]})
    for _ in range(2):  # the Job is deleted, then created again
        await reconciler.reconcile(key)
    (job,) = await kube.list(JOBS, namespace)
    assert volumes(job)["model"]["image"]["reference"] == TAG
    (secret,) = volumes(job)["pull-secrets"]["projected"]["sources"]
    assert secret["secret"]["name"] == "registry"
    account = await kube.get(SERVICE_ACCOUNTS, namespace, "tiny")
    assert account is not None
    assert account["imagePullSecrets"] == [{"name": "registry"}]
    policy = await kube.get(NETWORK_POLICIES, namespace, "tiny-fetch")
    assert policy is not None
    assert policy["spec"]["egress"][-1]["ports"] == [{"protocol": "TCP", "port": 443}]
    report = ModelReport(architecture="llama", format="Q4_K, Q6_K", revision=DIGEST)
    await finish_jobs(kube, namespace, encode_inspection(report).decode())
    await reconciler.reconcile(key)
    deployment = await kube.get(DEPLOYMENTS, namespace, "tiny")
    assert deployment is not None
    assert volumes(deployment)["model"]["image"]["reference"] == f"{TAG}@{DIGEST}"
    assert "pull-secrets" not in volumes(deployment)
    body = await kube.get(LLMDEPLOYMENTS, namespace, "tiny")
    assert body is not None
    model = body["status"]["model"]
    assert (model["resolvedRevision"], model["format"]) == (DIGEST, "Q4_K, Q6_K")

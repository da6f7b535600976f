"""What a real API server makes of the CRD: defaults, refusals, /scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import LLMDEPLOYMENTS

Json = dict[str, Any]
Make = Callable[..., Json]


async def test_defaults_are_filled_in(kube: KubeClient, llmd: Make) -> None:
    spec = (await kube.create(LLMDEPLOYMENTS, llmd()))["spec"]
    assert spec["replicas"] == 1
    # cpu and memory are not filled in: a resource profile decides them where they are not given.
    assert spec["resources"] == {"gpu": {"count": 0, "resourceName": "nvidia.com/gpu"}}
    assert spec["autoscaling"]["mode"] == "Manual"
    assert spec["autoscaling"]["scaleDown"]["stabilizationSeconds"] == 120
    assert spec["engine"]["scheduler"] == {"chunkedPrefill": True}
    assert spec["engine"]["parallelism"] == {"tensor": 1}
    assert spec["drain"] == {"timeoutSeconds": 120, "propagationSeconds": 5}


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"uri": "hf://org/model", "revision": "main", "credentialsSecretRef": {"name": "hub"}}},
        {"model": {"uri": "s3://bucket/team/v1.0/Q4_K.gguf", "credentialsSecretRef": {"name": "s3"}}},
        {"model": {"uri": "gs://a.bucket", "revision": "0123456789abcdef" * 2 + "01234567"}},
        {"model": {"uri": "pvc://claim"}},
        {"model": {"uri": "pvc://claim/a/b-c/model.gguf"}},
        {"resources": {"gpu": {"count": 0}, "cpu": 2, "memory": "1.5Gi"}},
        {"resources": {"gpu": {"count": 1}}},
        {"resources": {"gpu": {"count": 0}}, "engine": {"parallelism": {}}},
        {"resources": {"gpu": {"count": 16, "minMemory": "80G"}}, "engine": {"parallelism": {"tensor": 16}}},
        {
            "model": {"uri": "hf://org/model", "adapters": [{"name": "sql", "uri": "hf://org/sql"}]},
            "resources": {"gpu": {"count": 2}},
            "engine": {"parallelism": {"tensor": 2}, "adapters": {"maxLoaded": 4}},
        },
        {
            "resources": {"gpu": {"count": 1, "product": "NVIDIA-L4", "minMemory": "24G"}, "memory": "2Gi"},
            "engine": {"quantization": "fp8", "kv": {"dtype": "int8", "blockSize": 16, "memory": "16Gi"}},
        },
        {"autoscaling": {"mode": "Builtin", "minReplicas": 0, "maxReplicas": 3, "idleSecondsToZero": 60}},
        {"engine": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}},
        {"scheduling": {"tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {}}}},
    ],
)
async def test_sensible_specs_are_accepted(spec: Json, kube: KubeClient, llmd: Make) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd(**spec))


async def test_replicas_can_be_changed_when_the_builtin_autoscaler_stops(kube: KubeClient, llmd: Make) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd(autoscaling={"mode": "Builtin", "maxReplicas": 3}, replicas=1))
    await kube.apply(LLMDEPLOYMENTS, llmd(autoscaling={"mode": "External"}, replicas=2))


async def test_scale_reads_and_writes_replicas(kube: KubeClient, llmd: Make, namespace: str) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd(autoscaling={"mode": "External"}))
    selector = "octavo.dev/llmdeployment=tiny,app.kubernetes.io/component=server"
    status = {"observedGeneration": 1, "replicas": 1, "selector": selector, "url": "http://x"}
    await kube.apply_status(LLMDEPLOYMENTS, namespace, "tiny", status)
    path = f"{LLMDEPLOYMENTS.path(namespace, 'tiny')}/scale"
    scale = await kube._call("GET", path)
    assert (scale["spec"]["replicas"], scale["status"]) == (1, {"replicas": 1, "selector": selector})
    await kube._call("PATCH", path, {}, {"spec": {"replicas": 4}}, content_type="application/merge-patch+json")
    body = await kube.get(LLMDEPLOYMENTS, namespace, "tiny")
    assert body is not None
    assert body["spec"]["replicas"] == 4

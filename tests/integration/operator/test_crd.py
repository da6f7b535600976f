"""What a real API server makes of the CRD: defaults, refusals, /scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import RefusedError
from octavo_operator.kube.resources import LLMDEPLOYMENTS

Json = dict[str, Any]
Make = Callable[..., Json]


async def test_defaults_are_filled_in(kube: KubeClient, llmd: Make) -> None:
    spec = (await kube.create(LLMDEPLOYMENTS, llmd()))["spec"]
    assert spec["replicas"] == 1
    assert spec["resources"] == {
        "gpu": {"count": 0, "resourceName": "nvidia.com/gpu"},
        "cpu": "4",
        "memory": "16Gi",
    }
    assert spec["autoscaling"]["mode"] == "Manual"
    assert spec["autoscaling"]["scaleDown"]["stabilizationSeconds"] == 300
    assert spec["engine"]["scheduler"] == {"chunkedPrefill": True}
    assert spec["drain"] == {"timeoutSeconds": 120, "propagationSeconds": 5}


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"uri": "hf://org/model", "revision": "main", "credentialsSecretRef": {"name": "hub"}}},
        {"model": {"uri": "pvc://claim"}},
        {"model": {"uri": "pvc://claim/a/b-c/model.gguf"}},
        {"resources": {"gpu": {"count": 0}, "cpu": 2, "memory": "1.5Gi"}},
        {"autoscaling": {"mode": "Builtin", "minReplicas": 0, "maxReplicas": 3, "idleSecondsToZero": 60}},
        {"engine": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}},
        {"scheduling": {"tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {}}}},
    ],
)
async def test_sensible_specs_are_accepted(spec: Json, kube: KubeClient, llmd: Make) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd(**spec))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"model": {"uri": "s3://bucket/x"}}, "spec.model.uri"),
        ({"model": {"uri": "hf://only-one"}}, "hf://ORGANISATION/REPOSITORY"),
        ({"model": {"uri": "pvc://claim/../secret"}}, "pvc://CLAIM/PATH"),
        ({"model": {"uri": "oci://r/m:1", "revision": "main"}}, "model.revision is for hf:// models"),
        ({"model": {"uri": "oci://r/m:1", "credentialsSecretRef": {"name": "s"}}}, "imagePullSecrets"),
        ({"model": {"uri": "oci://r/m:1", "servedName": "a,b"}}, "spec.model.servedName"),
        ({"autoscaling": {"minReplicas": 3, "maxReplicas": 2}}, "minReplicas must not exceed maxReplicas"),
        ({"autoscaling": {"idleSecondsToZero": 60}}, "idleSecondsToZero needs mode Builtin and minReplicas 0"),
        ({"autoscaling": {"mode": "Off"}}, "spec.autoscaling.mode"),
        ({"engine": {"extraArgs": ["--port=1"]}}, "engine.extraArgs must not set --port"),
        ({"engine": {"extraArgs": ["--model", "x"]}}, "engine.extraArgs must not set --model"),
        ({"engine": {"kv": {"memory": "0.5Gi"}}}, "spec.engine.kv.memory"),
        ({"engine": {"kv": {"blockSize": 24}}}, "spec.engine.kv.blockSize"),
        ({"engine": {"env": [{"name": "A"}]}}, "one of value and valueFrom"),
        ({"resources": {"gpu": {"count": 17}}}, "spec.resources.gpu.count"),
        ({"resources": {"gpu": {"count": 1}}}, "set resources.gpu.count to 0"),
        ({"resources": {"cpu": "four"}}, "spec.resources.cpu"),
        ({"drain": {"timeoutSeconds": 3601}}, "spec.drain.timeoutSeconds"),
    ],
)
async def test_nonsense_is_refused_by_name(spec: Json, message: str, kube: KubeClient, llmd: Make) -> None:
    with pytest.raises(RefusedError, match=message):
        await kube.apply(LLMDEPLOYMENTS, llmd(**spec))


@pytest.mark.parametrize(
    ("name", "message"), [("a" * 46, "45 characters"), ("1st", "start with a letter"), ("a.b", "letter")]
)
async def test_names_that_children_could_not_have_are_refused(
    name: str, message: str, kube: KubeClient, llmd: Make
) -> None:
    with pytest.raises(RefusedError, match=message):
        await kube.apply(LLMDEPLOYMENTS, llmd(name))


async def test_replicas_cannot_be_changed_under_the_builtin_autoscaler(kube: KubeClient, llmd: Make) -> None:
    builtin = {"mode": "Builtin", "maxReplicas": 3}
    await kube.apply(LLMDEPLOYMENTS, llmd(autoscaling=builtin, replicas=1))
    with pytest.raises(RefusedError, match="replicas is not used while"):
        await kube.apply(LLMDEPLOYMENTS, llmd(autoscaling=builtin, replicas=2))
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

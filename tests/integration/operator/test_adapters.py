"""Adapters of an LLMDeployment in a real API server: pods learn of them without being replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.operator.conftest import Sampled
from tests.integration.operator.jobs import finish_job
from tests.integration.operator.test_reconcile import make_pod, status

from octavo_operator.api.resource import Key, parse
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENT_RECORDS,
    JOBS,
    LLMDEPLOYMENTS,
    PODS,
    SERVICES,
)
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.resources import adapters
from octavo_operator.status.input import AdapterReplicas, Load
from octavo_protocol import names
from octavo_protocol.adapters import AdapterInspection, decode_wanted
from octavo_protocol.model import encode_inspection

Json = dict[str, Any]
Make = Callable[..., Json]
FOUND = encode_inspection(AdapterInspection(revision="beef", rank=16, file_bytes=1000)).decode()


@pytest.fixture
def key(namespace: str) -> Key:
    return Key(namespace, "tiny")


@pytest.fixture
def quiet(make_reconciler: Callable[..., Reconciler], kube: KubeClient) -> Reconciler:
    """A reconciler in a cluster whose Jobs end when the test says so."""
    return make_reconciler(kube, jobs=False)


def with_adapters(llmd: Make, *wanted: str) -> Json:
    listed = [{"name": name, "uri": f"hf://org/{name}"} for name in wanted]
    return llmd(model={"uri": "oci://registry.local/models/tiny:1", "adapters": listed})


async def work(kube: KubeClient, reconciler: Reconciler, key: Key) -> None:
    """Passes until nothing is left to do, with Jobs that end well."""
    for _ in range(6):
        await reconciler.reconcile(key)
        for job in await kube.list(JOBS, key.namespace):
            if not job.get("status", {}).get("succeeded"):
                await finish_job(kube, job, FOUND if "-lora-" in job["metadata"]["name"] else "")


async def listed(kube: KubeClient, key: Key, body: Json) -> dict[str, str]:
    name = adapters.list_name(parse(body))
    (found,) = [each for each in await kube.list(CONFIG_MAPS, key.namespace) if each["metadata"]["name"] == name]
    return {each.name: each.source for each in decode_wanted(found["data"]["list.json"].encode())}


async def test_pods_get_another_list_and_no_other_template(
    kube: KubeClient, llmd: Make, key: Key, quiet: Reconciler
) -> None:
    body = await kube.apply(LLMDEPLOYMENTS, with_adapters(llmd, "sql"))
    await work(kube, quiet, key)
    await make_pod(kube, key, "tiny-1")
    await work(kube, quiet, key)
    assert await listed(kube, key, body) == {"sql": "hf://org/sql@beef"}
    before = await kube.get(DEPLOYMENTS, key.namespace, key.name)
    (pod,) = [each for each in await kube.list(PODS, key.namespace) if each["metadata"]["name"] == "tiny-1"]
    await kube.apply(LLMDEPLOYMENTS, with_adapters(llmd, "sql", "chat"))
    await work(kube, quiet, key)
    assert await listed(kube, key, body) == {"sql": "hf://org/sql@beef", "chat": "hf://org/chat@beef"}
    after = await kube.get(DEPLOYMENTS, key.namespace, key.name)
    assert before is not None
    assert after is not None
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    (changed,) = [each for each in await kube.list(PODS, key.namespace) if each["metadata"]["name"] == "tiny-1"]
    notes = [each["metadata"]["annotations"][adapters.ANNOTATION_LIST] for each in (pod, changed)]
    assert notes[0] != notes[1], "the kubelet reads the list when its pod changes"
    assert await kube.list(JOBS, key.namespace) == []
    service = await kube.get(SERVICES, key.namespace, key.name)
    assert service is not None
    assert service["metadata"]["annotations"][names.ANNOTATION_ADAPTERS] == "sql,chat"


async def test_the_state_of_each_is_in_the_status_until_it_is_removed(
    kube: KubeClient, llmd: Make, key: Key, quiet: Reconciler, sampled: Sampled
) -> None:
    await kube.apply(LLMDEPLOYMENTS, with_adapters(llmd, "sql", "chat"))
    await work(kube, quiet, key)
    await make_pod(kube, key, "tiny-1")
    sampled.now = Load(
        adapters={
            ("sql", "hf://org/sql@beef"): AdapterReplicas(1),
            ("chat", "hf://org/chat@beef"): AdapterReplicas(0, {"tiny-1": "trained on another base model"}),
        }
    )
    await quiet.reconcile(key)
    found = await status(kube, key)
    assert [(each["name"], each["state"], each["readyReplicas"]) for each in found["adapters"]] == [
        ("sql", "Ready", 1),
        ("chat", "Failed", 0),
    ]
    assert found["conditions"]["AdaptersReady"]["message"] == (
        "adapter chat: pod tiny-1: trained on another base model"
    )
    assert found["conditions"]["Ready"]["status"] == "True"
    await kube.apply(LLMDEPLOYMENTS, with_adapters(llmd, "sql"))
    await work(kube, quiet, key)
    found = await status(kube, key)
    assert [each["name"] for each in found["adapters"]] == ["sql"]
    assert found["conditions"]["AdaptersReady"]["status"] == "True"


async def test_a_deleted_list_is_written_again_with_the_same_pins(
    kube: KubeClient, llmd: Make, key: Key, quiet: Reconciler
) -> None:
    body = await kube.apply(LLMDEPLOYMENTS, with_adapters(llmd, "sql"))
    await work(kube, quiet, key)
    name = adapters.list_name(parse(body))
    (before,) = [each for each in await kube.list(CONFIG_MAPS, key.namespace) if each["metadata"]["name"] == name]
    await kube.delete(CONFIG_MAPS, key.namespace, name, before["metadata"]["uid"])
    await quiet.reconcile(key)
    (after,) = [each for each in await kube.list(CONFIG_MAPS, key.namespace) if each["metadata"]["name"] == name]
    assert after["data"] == before["data"]
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert await kube.list(JOBS, key.namespace) == [], "the branch is not resolved again"
    assert (await status(kube, key))["adapters"][0]["revision"] == "beef"


async def test_another_secret_resolves_no_branch_again(
    kube: KubeClient, llmd: Make, key: Key, quiet: Reconciler
) -> None:
    body = with_adapters(llmd, "sql")
    body["spec"]["model"]["credentialsSecretRef"] = {"name": "hub"}
    await kube.apply(LLMDEPLOYMENTS, body)
    await quiet.reconcile(key)
    (job,) = [each for each in await kube.list(JOBS, key.namespace) if "-lora-" in each["metadata"]["name"]]
    (token,) = [each for each in job["spec"]["template"]["spec"]["containers"][0]["env"] if each["name"] == "HF_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token", "optional": True}
    await work(kube, quiet, key)
    deployment = await kube.get(DEPLOYMENTS, key.namespace, key.name)
    assert deployment is not None
    (volume,) = [
        each["secret"]
        for each in deployment["spec"]["template"]["spec"]["volumes"]
        if each["name"] == "adapters-credentials"
    ]
    assert volume["secretName"] == "hub"
    body["spec"]["model"]["credentialsSecretRef"] = {"name": "renamed"}
    applied = await kube.apply(LLMDEPLOYMENTS, body)
    await quiet.reconcile(key)
    assert not [each for each in await kube.list(JOBS, key.namespace) if "-lora-" in each["metadata"]["name"]]
    assert await listed(kube, key, applied) == {"sql": "hf://org/sql@beef"}


async def test_an_adapter_on_the_claim_of_the_model_needs_no_other_volume(
    kube: KubeClient, llmd: Make, key: Key, quiet: Reconciler
) -> None:
    model = {"uri": "pvc://disk/m", "adapters": [{"name": "sql", "uri": "pvc://disk/adapters/sql"}]}
    body = await kube.apply(LLMDEPLOYMENTS, llmd(model=model))
    await quiet.reconcile(key)
    (job,) = [each for each in await kube.list(JOBS, key.namespace) if "-lora-" in each["metadata"]["name"]]
    pod = job["spec"]["template"]["spec"]
    assert {"name": "model", "persistentVolumeClaim": {"claimName": "disk", "readOnly": True}} in pod["volumes"]
    found = encode_inspection(AdapterInspection(rank=16, file_bytes=1000)).decode()
    for _ in range(4):
        await quiet.reconcile(key)
        for each in await kube.list(JOBS, key.namespace):
            if not each.get("status", {}).get("succeeded"):
                await finish_job(kube, each, found if "-lora-" in each["metadata"]["name"] else "")
    (listed_map,) = [
        each
        for each in await kube.list(CONFIG_MAPS, key.namespace)
        if each["metadata"]["name"] == adapters.list_name(parse(body))
    ]
    (wanted,) = decode_wanted(listed_map["data"]["list.json"].encode())
    assert (wanted.source, wanted.path) == ("pvc://disk/adapters/sql", "/model/adapters/sql")
    assert (await status(kube, key))["adapters"][0]["rank"] == 16


async def test_a_refusal_is_an_event_with_the_reason(kube: KubeClient, llmd: Make, key: Key, quiet: Reconciler) -> None:
    body = with_adapters(llmd, "sql")
    body["spec"]["engine"] = {"adapters": {"maxRank": 8}}
    await kube.apply(LLMDEPLOYMENTS, body)
    await work(kube, quiet, key)
    notes = [
        each["note"] for each in await kube.list(EVENT_RECORDS, key.namespace) if each["reason"] == "AdapterFailed"
    ]
    why = "its rank is 16, and spec.engine.adapters.maxRank is 8; raise it to 16"
    assert notes == [f"adapter sql: spec.model.adapters: 'hf://org/sql': {why}"]

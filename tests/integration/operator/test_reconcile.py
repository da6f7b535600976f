"""Passes against a real API server: children, ownership, repair, status, and kills between any two writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.waiting import eventually_async

from octavo_common.failpoints import InjectedFaultError
from octavo_operator.api.resource import Key
from octavo_operator.kube.client import MANAGER, STATUS_MANAGER, KubeClient
from octavo_operator.kube.errors import RefusedError
from octavo_operator.kube.resources import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    LLMDEPLOYMENTS,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Resource,
)
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.rollout.replicas import DRAIN_NOTICE_SECONDS
from octavo_operator.status.input import Scaling

Json = dict[str, Any]
Make = Callable[..., Json]
MakeReconciler = Callable[[KubeClient], Reconciler]
Connect = Callable[..., Awaitable[KubeClient]]

EVENTS = Resource("", "v1", "events", "Event")
_ADMISSION = "admissionregistration.k8s.io"
POLICIES = Resource(_ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy")
POLICY_BINDINGS = Resource(_ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding")
CHILDREN = (
    DEPLOYMENTS,
    CONTROLLER_REVISIONS,
    SERVICES,
    CONFIG_MAPS,
    SERVICE_ACCOUNTS,
    POD_DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
)


@pytest.fixture
def key(namespace: str) -> Key:
    return Key(namespace, "tiny")


@pytest.fixture
def reconciler(kube: KubeClient, make_reconciler: MakeReconciler) -> Reconciler:
    return make_reconciler(kube)


async def status(kube: KubeClient, key: Key) -> Json:
    body = await kube.get(LLMDEPLOYMENTS, key.namespace, key.name)
    assert body is not None
    found: Json = body["status"]
    found["conditions"] = {c["type"]: c for c in found["conditions"]}
    return found


async def versions(kube: KubeClient, namespace: str) -> dict[tuple[str, str], str]:
    """Resource version of every child: what a write changes."""
    return {
        (resource.kind, body["metadata"]["name"]): body["metadata"]["resourceVersion"]
        for resource in CHILDREN
        for body in await kube.list(resource, namespace)
        if body["metadata"]["name"] != "kube-root-ca.crt"
    }


async def make_pod(kube: KubeClient, key: Key, name: str, *, ready: bool = True) -> None:
    """A pod as the Deployment's ReplicaSet and the kubelet would make it."""
    deployment = await kube.get(DEPLOYMENTS, key.namespace, key.name)
    assert deployment is not None
    template = deployment["spec"]["template"]
    metadata = {"name": name, "namespace": key.namespace, "labels": template["metadata"]["labels"]}
    await kube.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    times = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    state = (
        {"running": {"startedAt": "2026-01-01T00:00:00Z"}} if ready else {"waiting": {"reason": "ContainerCreating"}}
    )
    container = {"name": "server", "image": "x", "imageID": "", "ready": ready, "restartCount": 0, "state": state}
    body = {
        "phase": "Running" if ready else "Pending",
        "podIP": "10.1.2.3",
        "conditions": [
            {"type": "PodScheduled", "status": "True", **times},
            {"type": "Ready", "status": str(ready), **times},
        ],
        "containerStatuses": [container],
    }
    await kube.apply_status(PODS, key.namespace, name, body)


async def test_children_are_made_once_and_left_alone(
    kube: KubeClient, llmd: Make, key: Key, reconciler: Reconciler
) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd())
    await reconciler.reconcile(key)
    before = await versions(kube, key.namespace)
    assert len(before) == 9
    for _ in range(3):
        await reconciler.reconcile(key)
    assert await versions(kube, key.namespace) == before


async def test_pods_pass_the_restricted_standard(
    kube: KubeClient, llmd: Make, key: Key, reconciler: Reconciler
) -> None:
    for number, uri in enumerate(("oci://r/m:1", "hf://org/model", "pvc://claim/x")):
        name = f"m{number}"
        await kube.apply(LLMDEPLOYMENTS, llmd(name, model={"uri": uri}))
        await reconciler.reconcile(Key(key.namespace, name))
        # The namespace enforces the standard: a pod that violates it would be refused.
        await make_pod(kube, Key(key.namespace, name), f"{name}-0")


async def test_fields_have_one_owner(kube: KubeClient, llmd: Make, key: Key, reconciler: Reconciler) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd())
    await reconciler.reconcile(key)
    deployment = await kube.get(DEPLOYMENTS, key.namespace, key.name)
    body = await kube.get(LLMDEPLOYMENTS, key.namespace, key.name)
    assert deployment is not None
    assert body is not None
    assert {m["manager"] for m in deployment["metadata"]["managedFields"]} == {MANAGER}
    owners = {m["manager"] for m in body["metadata"]["managedFields"] if m.get("subresource") == "status"}
    assert owners == {STATUS_MANAGER}
    (reference,) = deployment["metadata"]["ownerReferences"]
    assert (reference["uid"], reference["controller"]) == (body["metadata"]["uid"], True)
    assert "finalizers" not in body["metadata"]
    assert "annotations" not in body["metadata"]


async def test_what_others_change_or_delete_comes_back(
    kube: KubeClient, llmd: Make, key: Key, reconciler: Reconciler
) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd())
    await reconciler.reconcile(key)
    service = await kube.get(SERVICES, key.namespace, key.name)
    policy = await kube.get(NETWORK_POLICIES, key.namespace, key.name)
    assert service is not None
    assert policy is not None
    service["spec"]["ports"][0]["port"] = 81
    await kube.replace(SERVICES, service)
    await kube.delete(NETWORK_POLICIES, key.namespace, key.name, policy["metadata"]["uid"])
    await reconciler.reconcile(key)
    service = await kube.get(SERVICES, key.namespace, key.name)
    assert service is not None
    assert service["spec"]["ports"][0]["port"] == 8000
    assert await kube.get(NETWORK_POLICIES, key.namespace, key.name) is not None


async def test_a_field_that_another_manager_took_is_taken_back(
    kube: KubeClient, llmd: Make, key: Key, reconciler: Reconciler
) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd())
    await reconciler.reconcile(key)
    deployment = await kube.get(DEPLOYMENTS, key.namespace, key.name)
    assert deployment is not None
    before = deployment["spec"]["progressDeadlineSeconds"]
    deployment["spec"]["progressDeadlineSeconds"] = before + 1
    await kube.replace(DEPLOYMENTS, deployment)
    await reconciler.reconcile(key)
    deployment = await kube.get(DEPLOYMENTS, key.namespace, key.name)
    assert deployment is not None
    assert deployment["spec"]["progressDeadlineSeconds"] == before


async def test_status_follows_the_pods(kube: KubeClient, llmd: Make, key: Key, reconciler: Reconciler) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd(replicas=2))
    await reconciler.reconcile(key)
    found = await status(kube, key)
    assert (found["desiredReplicas"], found["readyReplicas"]) == (2, 0)
    assert found["conditions"]["Ready"]["reason"] == "Starting"
    await make_pod(kube, key, "one")
    await make_pod(kube, key, "two", ready=False)
    await reconciler.reconcile(key)
    found = await status(kube, key)
    assert (found["replicas"], found["readyReplicas"], found["updatedReplicas"]) == (2, 1, 2)
    assert found["conditions"]["Ready"] | {"lastTransitionTime": ""} == {
        "type": "Ready",
        "status": "True",
        "reason": "PartiallyReady",
        "message": "1 of 2 replicas are ready",
        "observedGeneration": 1,
        "lastTransitionTime": "",
    }
    assert found["conditions"]["ModelResolved"]["reason"] == "Loaded"


async def test_an_unchanged_status_is_not_written(
    kube: KubeClient, llmd: Make, key: Key, reconciler: Reconciler
) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd())
    await reconciler.reconcile(key)
    before = await kube.get(LLMDEPLOYMENTS, key.namespace, key.name)
    await reconciler.reconcile(key)
    assert await kube.get(LLMDEPLOYMENTS, key.namespace, key.name) == before


async def test_events_of_a_silent_pod_are_failures(
    kube: KubeClient, llmd: Make, key: Key, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo_operator.reconcile.read.SILENT_SECONDS", -60.0)
    await kube.apply(LLMDEPLOYMENTS, llmd(model={"uri": "pvc://weights/llama"}))
    await reconciler.reconcile(key)
    await make_pod(kube, key, "one", ready=False)
    pod = await kube.get(PODS, key.namespace, "one")
    assert pod is not None
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e1", "namespace": key.namespace},
        "involvedObject": {"kind": "Pod", "namespace": key.namespace, "name": "one", "uid": pod["metadata"]["uid"]},
        "reason": "FailedMount",
        "type": "Warning",
        "message": 'persistentvolumeclaim "weights" not found',
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 7,
    }
    await kube.create(EVENTS, event)
    await reconciler.reconcile(key)
    (failure,) = (await status(kube, key))["failures"]
    assert failure == {
        "pod": "one",
        "reason": "ModelVolumeUnavailable",
        "message": "spec.model.uri: 'pvc://weights/llama': persistentvolumeclaim \"weights\" not found; create "
        f"PersistentVolumeClaim 'weights' in namespace {key.namespace}, or see kubectl describe pvc weights",
        "count": 7,
        "lastTime": "2026-01-01T00:00:00Z",
    }


async def test_scale_down_marks_the_victim_then_lowers_the_number(
    kube: KubeClient, llmd: Make, key: Key, reconciler: Reconciler, sampled: Any
) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd(autoscaling={"mode": "Builtin", "maxReplicas": 3}))
    sampled.decision = Scaling(2, "KvOccupancy", "")
    await reconciler.reconcile(key)
    await make_pod(kube, key, "one")
    await make_pod(kube, key, "two")
    sampled.decision = Scaling(1, "LowLoad", "")
    again = await reconciler.reconcile(key)
    assert again is not None
    assert again <= DRAIN_NOTICE_SECONDS
    drain_requested_at = [
        pod["metadata"]["name"]
        for pod in await kube.list(PODS, key.namespace)
        if "octavo.dev/draining" in pod["metadata"].get("annotations", {})
    ]
    assert len(drain_requested_at) == 1
    deployment = await kube.get(DEPLOYMENTS, key.namespace, key.name)
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 2
    reconciler._clock = lambda: 4e9
    await reconciler.reconcile(key)
    deployment = await kube.get(DEPLOYMENTS, key.namespace, key.name)
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 1


async def test_a_new_state_is_an_event_once(kube: KubeClient, llmd: Make, key: Key, reconciler: Reconciler) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd())
    for _ in range(3):
        await reconciler.reconcile(key)
    await make_pod(kube, key, "one")
    for _ in range(3):
        await reconciler.reconcile(key)
    found = await kube.list(EVENTS, key.namespace, fields="involvedObject.kind=LLMDeployment")
    said = {(event["type"], event["reason"], event["reportingComponent"]) for event in found}
    assert len(found) == 3
    reasons = ("ResolvingModel", "Starting", "AllReplicasReady")
    assert said == {("Normal", reason, "octavo-operator") for reason in reasons}


async def test_a_foreign_service_of_the_name_is_respected(
    kube: KubeClient, llmd: Make, key: Key, reconciler: Reconciler
) -> None:
    mine = {"metadata": {"name": key.name, "namespace": key.namespace}, "spec": {"ports": [{"port": 80}]}}
    await kube.create(SERVICES, {"apiVersion": "v1", "kind": "Service", **mine})
    await kube.apply(LLMDEPLOYMENTS, llmd())
    await reconciler.reconcile(key)
    found = (await status(kube, key))["conditions"]["SpecValid"]
    assert (found["status"], found["reason"]) == ("False", "NameConflict")
    assert await kube.get(DEPLOYMENTS, key.namespace, key.name) is None


async def test_what_the_api_server_refuses_is_said(
    kube: KubeClient, llmd: Make, key: Key, reconciler: Reconciler
) -> None:
    await forbid_deployments(kube, key.namespace, "ask the platform team first")
    await kube.apply(LLMDEPLOYMENTS, llmd())

    async def refused() -> bool:
        # A policy holds a moment after it was made: each try asks for another Deployment.
        for body in await kube.list(DEPLOYMENTS, key.namespace):
            await kube.delete(DEPLOYMENTS, key.namespace, body["metadata"]["name"], body["metadata"]["uid"])
        try:
            await reconciler.reconcile(key)
        except RefusedError:
            return True
        return False

    await eventually_async(refused)
    found = (await status(kube, key))["conditions"]
    assert found["Ready"]["reason"] == "ApplyRefused"
    assert "ask the platform team first" in found["SpecValid"]["message"]


async def forbid_deployments(kube: KubeClient, namespace: str, message: str) -> None:
    """What the owner of a cluster may do: a policy of the API server that refuses Deployments in one namespace."""
    meta = {"name": f"none-{namespace}", "namespace": None}
    everything = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["deployments"]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    head = {"apiVersion": POLICIES.api_version, "metadata": meta}
    validations = [{"expression": "request.operation == 'DELETE'", "message": message}]
    rules = {"resourceRules": [everything]}
    spec = {"failurePolicy": "Fail", "matchConstraints": rules, "validations": validations}
    await kube.apply(POLICIES, {**head, "kind": POLICIES.kind, "spec": spec})
    binding = {"policyName": meta["name"], "validationActions": ["Deny"], "matchResources": here}
    await kube.apply(POLICY_BINDINGS, {**head, "kind": POLICY_BINDINGS.kind, "spec": binding})


async def test_killed_between_any_two_writes_it_converges(
    kube: KubeClient, connect: Connect, llmd: Make, key: Key, make_reconciler: MakeReconciler
) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd())
    killed = 0
    while True:
        # Every process does one write more than the one before, and dies at the next.
        process = await connect(OCTAVO_FAILPOINTS="kube.write:raise@2")
        try:
            await make_reconciler(process).reconcile(key)
        except InjectedFaultError:
            killed += 1
            assert killed < 20
        else:
            break
    # Seven children with the Job, status and event; then record, settings, Deployment, the end of the Job, status and
    # event.
    assert killed == 13
    before = await versions(kube, key.namespace)
    assert len(before) == 9
    await make_reconciler(kube).reconcile(key)
    assert await versions(kube, key.namespace) == before
    assert (await status(kube, key))["observedGeneration"] == 1


async def test_a_deleted_resource_is_forgotten(
    kube: KubeClient, key: Key, reconciler: Reconciler, sampled: Any
) -> None:
    sampled.tracked = ("something",)
    assert await reconciler.reconcile(key) is None
    assert sampled.tracked == ()

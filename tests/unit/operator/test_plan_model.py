"""Pods wait for a look at their model, and nothing else does."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.unit.operator.world import World, condition

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.reconcile.plan import Apply, Delete, Plan, plan, stuck
from octavo_operator.resources import model_job
from octavo_operator.resources.common import Installation
from octavo_protocol.model import GpuReport, ModelFailure, ModelReport, encode_inspection

Json = dict[str, Any]
HUB = {"model": {"uri": "hf://org/tiny"}}
FOUND = ModelReport(
    revision="c0ffee",
    architecture="llama",
    parameters=134_000_000,
    weights={"auto": 126_000_000, "bfloat16": 270_000_000, "float32": 540_000_000},
    kv_elements_per_token=11_520,
    max_length=8192,
    gpu=GpuReport(head_dim=64, row_elements=576, position=0, shares=()),
)


@pytest.fixture
def make_world(make_owner: Callable[..., LLMDeployment], installation: Installation) -> Callable[..., World]:
    def make(spec: Json | None = None, said: str | None = encode_inspection(FOUND).decode()) -> World:
        world = World(make_owner(spec), installation)
        world.said = said
        return world

    return make


def jobs(world: World) -> list[str]:
    return [name for kind, name in world.children if kind == "Job"]


def container(world: World, kind: str = "containers") -> Json:
    found: Json = world.children["Deployment", "tiny"]["spec"]["template"]["spec"][kind][0]
    return found


def applied(decided: Plan) -> list[str]:
    return [action.body["kind"] for action in decided.actions if isinstance(action, Apply)]


def test_no_pod_before_the_model_is_known(make_world: Callable[..., World]) -> None:
    world = make_world(HUB, said=None)
    for _ in range(3):
        decided = world.pass_()
        world.run()
    assert ("Deployment", "tiny") not in world.children
    assert len(jobs(world)) == 1
    assert condition(decided, "Ready")["reason"] == "ResolvingModel"
    assert condition(decided, "ModelResolved")["status"] == "Unknown"
    # The gateway may know of it, and hold requests.
    assert ("Service", "tiny") in world.children


def test_what_was_found_is_shown_and_pinned(make_world: Callable[..., World]) -> None:
    world = make_world(HUB)
    final = world.settle()
    assert final.status["model"] | {"identity": ""} == {
        "identity": "",
        "resolvedRevision": "c0ffee",
        "architecture": "llama",
        "parameters": 134_000_000,
        "weightsBytes": 126_000_000,
        "kvBytesPerToken": 23_040,
        "contextLength": 8192,
    }
    message = condition(final, "ModelResolved")["message"]
    assert message == "hf://org/tiny at c0ffee is a llama model, 134 million parameters"
    assert "hf://org/tiny@c0ffee" in container(world, "initContainers")["command"]
    assert jobs(world) == []


def test_a_job_without_a_report_is_enough(make_world: Callable[..., World]) -> None:
    world = make_world(HUB, said="")
    final = world.settle()
    assert condition(final, "Ready")["reason"] == "AllReplicasReady"
    assert set(final.status["model"]) == {"identity"}


def test_a_branch_that_moves_moves_no_replica(make_world: Callable[..., World], make_owner: Any) -> None:
    world = make_world(HUB)
    world.settle()
    world.said = encode_inspection(ModelReport(revision="beef", architecture="llama")).decode()
    world.owner = make_owner({**HUB, "engine": {"maxModelLen": 128}}, status=world.owner.status)
    final = world.settle()
    assert "hf://org/tiny@c0ffee" in container(world, "initContainers")["command"]
    assert final.status["model"]["resolvedRevision"] == "c0ffee"


def test_an_older_report_is_completed_for_the_next_revision_at_the_same_commit(
    make_world: Callable[..., World], make_owner: Any
) -> None:
    old = msgspec.structs.replace(FOUND, gpu=None)
    world = make_world(HUB, said=encode_inspection(old).decode())
    world.settle()
    assert jobs(world) == []
    world.said = None
    world.owner = make_owner({**HUB, "engine": {"maxModelLen": 128}}, status=world.owner.status)
    for _ in range(3):
        world.pass_()
        world.run()
    (name,) = jobs(world)
    assert "hf://org/tiny@c0ffee" in json.dumps(world.children["Job", name])
    world.said = encode_inspection(FOUND).decode()
    world.settle()
    assert record(world)["gpu"] is not None
    world.said = None
    world.owner = make_owner({**HUB, "engine": {"maxModelLen": 256}}, status=world.owner.status)
    world.settle()
    assert jobs(world) == []


@pytest.mark.parametrize(
    "spec", [{**HUB, "cache": {"type": "PersistentVolumeClaim"}}, {"model": {"uri": "pvc://disk/m"}}]
)
def test_an_older_report_on_a_volume_is_kept(spec: Json, make_world: Callable[..., World], make_owner: Any) -> None:
    world = make_world(spec, said=encode_inspection(msgspec.structs.replace(FOUND, gpu=None)).decode())
    world.settle()
    world.said = None
    world.owner = make_owner({**spec, "engine": {"maxModelLen": 128}}, status=world.owner.status)
    world.settle()
    assert "gpu" not in record(world)


def record(world: World) -> Json:
    template = world.children["Deployment", "tiny"]["spec"]["template"]
    found: Json = json.loads(template["metadata"]["annotations"][model_job.ANNOTATION_MODEL])["report"]
    return found


def test_another_model_is_looked_at_while_the_old_one_serves(make_world: Callable[..., World], make_owner: Any) -> None:
    world = make_world(HUB)
    world.settle()
    before = copy.deepcopy(world.children["Deployment", "tiny"]["spec"]["template"])
    world.said = None
    world.owner = make_owner({**HUB, "model": {"uri": "hf://org/other"}, "replicas": 2}, status=world.owner.status)
    for _ in range(3):
        decided = world.pass_()
        world.run()
    assert world.children["Deployment", "tiny"]["spec"]["template"] == before
    assert len(world.pods) == 2, "what serves is still scaled"
    assert "model" not in decided.status
    world.said = ""
    world.settle()
    assert "hf://org/other" in container(world, "initContainers")["command"]


def test_a_refused_model_says_why_and_leaves_the_old_one(make_world: Callable[..., World], make_owner: Any) -> None:
    world = make_world(HUB)
    world.settle()
    world.said = None
    world.owner = make_owner({"model": {"uri": "hf://org/other"}}, status=world.owner.status)
    world.pass_()
    world.failed = encode_inspection(
        ModelFailure(reason="ModelNotFound", message="the hub has no such model (404)")
    ).decode()
    decided = world.pass_()
    ready = condition(decided, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ModelNotFound")
    assert "'hf://org/other': the hub has no such model (404); 1 replicas of the previous spec" in ready["message"]
    assert condition(decided, "Available")["status"] == "True"
    assert decided.status["failures"][0]["reason"] == "ModelNotFound"
    assert len(world.pods) == 1


def test_gateways_are_told_of_a_model_that_cannot_start_until_it_can(make_world: Callable[..., World]) -> None:
    def told() -> str | None:
        found: str | None = world.children["Service", "tiny"]["metadata"]["annotations"].get("octavo.dev/cannot-start")
        return found

    world = make_world(HUB)
    world.said = None
    world.pass_()
    assert told() is None
    world.failed = encode_inspection(
        ModelFailure(reason="ModelNotFound", message="the hub has no such model (404)")
    ).decode()
    world.pass_()
    assert told() == "ModelNotFound"
    world.failed, world.said = "", ""
    world.settle()
    assert told() is None


@pytest.mark.parametrize(
    ("reason", "serving", "told"),
    [("CrashLoop", False, "CrashLoop"), ("Unschedulable", False, ""), ("CrashLoop", True, ""), ("Starting", False, "")],
)
def test_only_what_no_waiting_cures_is_told(reason: str, serving: bool, told: str, make_pod: Any) -> None:
    status = {"conditions": [{"type": "Ready", "status": "False", "reason": reason}]}
    assert stuck(status, (make_pod("a", ready=serving),)) == told
    invalid = {"type": "SpecValid", "status": "False", "reason": "ModelTooLarge"}
    refused = {"conditions": [{"type": "Ready", "status": "False", "reason": "ModelTooLarge"}, invalid]}
    assert stuck(refused, ()) == "ModelTooLarge"


def test_who_is_refused_reads_which_secret_was_not_enough(make_world: Callable[..., World]) -> None:
    world = make_world({"model": {"uri": "s3://models/tiny", "credentialsSecretRef": {"name": "storage"}}})
    world.said = None
    world.pass_()
    world.failed = encode_inspection(ModelFailure(reason="Unauthorized", message="access is refused (403)")).decode()
    ready = condition(world.pass_(), "Ready")
    assert ready["reason"] == "Unauthorized"
    assert "'s3://models/tiny': access is refused (403) (current Secret: 'storage')" in ready["message"]


def test_pods_made_before_there_were_looks_are_left_alone(make_world: Callable[..., World]) -> None:
    world = make_world(HUB)
    world.settle()
    for key in [key for key in world.children if key[0] == "ControllerRevision"]:
        del world.children[key]
    deployment = world.children["Deployment", "tiny"]
    recorded = deployment["metadata"]["annotations"]["octavo.dev/applied-template"]
    template = copy.deepcopy(deployment["spec"]["template"])
    # As an operator of before wrote it.
    del template["metadata"]["annotations"]
    legacy = recorded.replace(recorded[: recorded.index('"labels"')], '{"metadata":{')
    deployment["metadata"]["annotations"]["octavo.dev/applied-template"] = legacy
    deployment["spec"]["template"] = template
    decided = world.pass_()
    assert applied(decided) == ["ControllerRevision", "Deployment"], "a record, and the stamp"
    assert "annotations" not in world.children["Deployment", "tiny"]["spec"]["template"]["metadata"]
    assert condition(decided, "Ready")["status"] == "True"


def test_a_lost_status_comes_back_without_a_job(make_world: Callable[..., World], make_owner: Any) -> None:
    world = make_world(HUB)
    before = world.settle().status["model"]
    world.owner = make_owner(HUB)
    decided = world.pass_()
    assert decided.status["model"] == before
    assert jobs(world) == []


def test_a_lost_deployment_gets_the_same_commit(make_world: Callable[..., World]) -> None:
    world = make_world(HUB)
    world.settle()
    for key in [key for key in world.children if key[0] in ("Deployment", "ControllerRevision")]:
        del world.children[key]
    world.pass_()
    (name,) = jobs(world)
    command = world.children["Job", name]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert "hf://org/tiny@c0ffee" in command


def test_a_waiting_job_follows_the_spec_and_the_installation(make_world: Callable[..., World]) -> None:
    world = make_world(HUB, said=None)
    world.pass_()
    (name,) = jobs(world)
    world.installation = Installation("s:2", "c:2", "octavo-system")
    (gone,) = [action for action in world.pass_().actions if isinstance(action, Delete)]
    assert (gone.kind, gone.name) == ("Job", name)
    world.pass_()
    assert world.children["Job", name]["spec"]["template"]["spec"]["containers"][0]["image"] == "c:2"


CLAIM: Json = {"model": {"uri": "hf://org/tiny"}, "cache": {"type": "PersistentVolumeClaim", "size": "1Gi"}}


def test_a_claim_is_filled_once_and_read_by_pods_without_a_way_out(make_world: Callable[..., World]) -> None:
    found = msgspec.structs.replace(FOUND, path="org--tiny/c0ffee")
    world = make_world(CLAIM, said=encode_inspection(found).decode())
    world.pass_()
    claim = world.children["PersistentVolumeClaim", "tiny-cache"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Gi"
    final = world.settle()
    pod = world.children["Deployment", "tiny"]["spec"]["template"]["spec"]
    assert "initContainers" not in pod
    assert {"name": "model", "persistentVolumeClaim": {"claimName": "tiny-cache", "readOnly": True}} in pod["volumes"]
    mount = next(mount for mount in container(world)["volumeMounts"] if mount["name"] == "model")
    assert mount == {"name": "model", "mountPath": "/model", "readOnly": True, "subPath": "org--tiny/c0ffee"}
    assert world.children["NetworkPolicy", "tiny"]["spec"]["egress"] == []
    assert condition(final, "CacheReady")["reason"] == "Complete"


@pytest.mark.parametrize(("retain", "owners"), [(True, 0), (False, 1)])
def test_a_claim_outlives_its_resource_when_asked_to(
    retain: bool, owners: int, make_world: Callable[..., World]
) -> None:
    world = make_world({**CLAIM, "cache": {**CLAIM["cache"], "retain": retain}})
    world.settle()
    metadata = world.children["PersistentVolumeClaim", "tiny-cache"]["metadata"]
    assert len(metadata.get("ownerReferences", [])) == owners
    assert world.plan().actions == ()


def test_a_claim_left_behind_is_found_again_and_a_strangers_is_not_touched(
    make_world: Callable[..., World], make_owner: Any
) -> None:
    world = make_world(CLAIM)
    world.settle()
    claim = world.children["PersistentVolumeClaim", "tiny-cache"]
    world.children = {("PersistentVolumeClaim", "tiny-cache"): claim}
    world.owner = make_owner(CLAIM, uid="u2")
    assert condition(world.settle(), "Ready")["status"] == "True"
    del claim["metadata"]["labels"]
    assert condition(world.plan(), "SpecValid")["reason"] == "NameConflict"


@pytest.mark.parametrize(
    ("reason", "message", "said"),
    [
        ("ProvisioningFailed", 'storageclass.storage.k8s.io "fast" not found', "StorageClassNotFound"),
        ("FailedBinding", "no persistent volumes available for this claim and no storage class is set", "ClaimPending"),
        ("WaitForFirstConsumer", "waiting for first consumer", "ResolvingModel"),
    ],
)
def test_a_claim_without_a_volume_says_why(
    reason: str, message: str, said: str, make_world: Callable[..., World]
) -> None:
    world = make_world({**CLAIM, "cache": {**CLAIM["cache"], "storageClassName": "fast"}}, said=None)
    world.pass_()
    world.children["PersistentVolumeClaim", "tiny-cache"]["status"] = {"phase": "Pending"}
    world.claim_events = ({"reason": reason, "message": message},)
    decided = world.pass_()
    assert condition(decided, "Ready")["reason"] == said
    assert condition(decided, "CacheReady")["reason"] == ("Downloading" if said == "ResolvingModel" else said)
    if said != "ResolvingModel":
        assert message in condition(decided, "CacheReady")["message"]


def test_a_named_claim_that_is_not_there_is_named(make_world: Callable[..., World]) -> None:
    cache = {"type": "PersistentVolumeClaim", "claimName": "shared"}
    world = make_world({**HUB, "cache": cache}, said=None)
    decided = world.pass_()
    assert condition(decided, "Ready")["reason"] == "ClaimNotFound"
    assert "PersistentVolumeClaim 'shared' is not in namespace models" in condition(decided, "Ready")["message"]
    assert "PersistentVolumeClaim" not in applied(decided)
    world.children["PersistentVolumeClaim", "shared"] = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared", "uid": "x"},
        "status": {"phase": "Bound"},
    }
    world.said = ""
    assert condition(world.settle(), "Ready")["status"] == "True"


def test_a_result_that_was_lost_is_asked_for_again(make_world: Callable[..., World]) -> None:
    world = make_world(HUB)
    world.pass_()
    world.run()
    world.lost_inspection = True
    assert [action.kind for action in world.pass_().actions if isinstance(action, Delete)] == ["Job"]


def test_the_look_at_a_model_is_not_a_server(make_owner: Any, installation: Installation) -> None:
    world = World(make_owner(HUB), installation)
    world.pass_()
    job = next(body for (kind, _), body in world.children.items() if kind == "Job")
    labels = job["spec"]["template"]["metadata"]["labels"]
    service = world.children["Service", "tiny"]["spec"]["selector"]
    assert not service.items() <= labels.items()
    assert plan(world.owner, installation, world.observed(), world.now).replicas == 1

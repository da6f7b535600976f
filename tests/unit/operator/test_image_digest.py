"""Replicas load the image that was inspected: its tag is resolved to a digest once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.unit.operator.world import World, condition

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.observe.inspection import Resolved, observe_inspection, resolve
from octavo_operator.resources import model_job, protection
from octavo_operator.resources.common import Installation
from octavo_protocol.model import ModelReport, decode_inspection, encode_inspection

Json = dict[str, Any]
Make = Callable[..., LLMDeployment]
DIGEST, MOVED = "sha256:" + "a" * 64, "sha256:" + "b" * 64
TAG = "registry.local/models/tiny:1"
FOUND = ModelReport(architecture="llama", revision=DIGEST)
GUESSING = {"engine": {"speculation": {"method": "draft", "model": {"uri": "oci://registry.local/models/small:2"}}}}


def reference(world: World, kind: str = "Deployment", name: str = "tiny") -> str:
    pod = world.children[kind, name]["spec"]["template"]["spec"]
    found: str = next(volume for volume in pod["volumes"] if volume["name"] == "model")["image"]["reference"]
    return found


def look(world: World) -> Json:
    job = world.children["Job", model_job.job_name(world.owner)]
    found: Json = job["spec"]["template"]["spec"]
    return found


@pytest.fixture
def world(make_owner: Make, installation: Installation) -> World:
    return World(make_owner(), installation)


def test_pods_use_the_digest_of_the_image_that_was_inspected(world: World) -> None:
    world.said = encode_inspection(FOUND).decode()
    world.pass_()
    assert look(world)["containers"][0]["command"][-2:] == ["--image", TAG]
    assert reference(world, "Job", model_job.job_name(world.owner)) == TAG
    final = world.settle()
    assert reference(world) == f"{TAG}@{DIGEST}"
    assert final.status["model"]["resolvedRevision"] == DIGEST
    resolved = condition(final, "ModelResolved")
    assert (resolved["reason"], resolved["message"]) == ("Resolved", f"oci://{TAG} at {DIGEST} is a llama model")


def test_a_tag_that_moves_moves_no_replica(world: World, make_owner: Make) -> None:
    world.said = encode_inspection(FOUND).decode()
    world.settle()
    world.said = encode_inspection(msgspec.structs.replace(FOUND, revision=MOVED)).decode()
    world.owner = make_owner({"engine": {"maxModelLen": 128}}, status=world.owner.status)
    world.settle()
    assert reference(world) == f"{TAG}@{DIGEST}"
    # Nor does the loss of all that remembers it, except the status.
    world.children, world.pods = {}, {}
    world.pass_()
    assert look(world)["containers"][0]["command"][-1] == f"{TAG}@{DIGEST}"
    assert reference(world, "Job", model_job.job_name(world.owner)) == f"{TAG}@{DIGEST}"


def test_what_the_registry_answered_is_told_and_the_tag_is_used(world: World) -> None:
    answer = "registry.local answered 401 (UNAUTHORIZED: authentication required) without credentials"
    world.said = encode_inspection(ModelReport(architecture="llama", unresolved=answer)).decode()
    final = world.settle()
    assert reference(world) == TAG
    resolved = condition(final, "ModelResolved")
    assert (resolved["status"], resolved["reason"]) == ("True", "TagUnresolved")
    assert answer in resolved["message"]
    assert "resolvedRevision" not in final.status["model"]
    assert condition(final, "Ready")["status"] == "True"


def test_a_tag_without_a_digest_is_asked_for_again_by_the_next_revision(world: World, make_owner: Make) -> None:
    world.said = encode_inspection(ModelReport(architecture="llama", unresolved="it answered 401")).decode()
    world.settle()
    world.said = encode_inspection(FOUND).decode()
    world.owner = make_owner({"engine": {"maxModelLen": 128}}, status=world.owner.status)
    final = world.settle()
    assert reference(world) == f"{TAG}@{DIGEST}"
    assert condition(final, "ModelResolved")["reason"] == "Resolved"


def test_the_image_of_a_draft_model_is_resolved_and_pinned_too(make_owner: Make, installation: Installation) -> None:
    world = World(make_owner(GUESSING), installation)
    small = msgspec.structs.replace(FOUND, revision=MOVED)
    world.said = encode_inspection(msgspec.structs.replace(FOUND, draft=small)).decode()
    world.pass_()
    assert look(world)["containers"][0]["command"][-4:] == [
        *("--draft", "/draft", "--draft-image", "registry.local/models/small:2"),
    ]
    final = world.settle()
    volumes = world.children["Deployment", "tiny"]["spec"]["template"]["spec"]["volumes"]
    (volume,) = [volume for volume in volumes if volume["name"] == "draft-model"]
    assert volume["image"]["reference"] == f"registry.local/models/small:2@{MOVED}"
    assert final.status["model"]["draft"]["resolvedRevision"] == MOVED


def test_a_reference_with_a_digest_stays(make_owner: Make, installation: Installation) -> None:
    world = World(make_owner({"model": {"uri": f"oci://{TAG}@{MOVED}"}}), installation)
    world.said = encode_inspection(msgspec.structs.replace(FOUND, revision=MOVED)).decode()
    world.settle()
    assert reference(world) == f"{TAG}@{MOVED}"


def test_the_job_reads_the_pull_secrets_of_the_service_account(world: World) -> None:
    world.said = None
    world.pass_()
    assert "--pull-secrets" not in look(world)["containers"][0]["command"]
    # A user's, as `kubectl patch serviceaccount` writes it.
    world.children["ServiceAccount", "tiny"]["imagePullSecrets"] = [{"name": "registry"}, {"name": "other"}]
    world.pass_()  # deletes the Job, which cannot be changed
    world.pass_()
    pod = look(world)
    assert pod["containers"][0]["command"][-2:] == ["--pull-secrets", "/pull-secrets"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "pull-secrets"]
    secrets = [entry["secret"] for entry in volume["projected"]["sources"]]
    assert [(secret["name"], secret["optional"]) for secret in secrets] == [("registry", True), ("other", True)]
    assert secrets[0]["items"] == [{"key": ".dockerconfigjson", "path": "registry.json"}]
    # The server never sees them.
    world.said = encode_inspection(FOUND).decode()
    world.settle()
    assert "pull-secrets" not in json.dumps(world.children["Deployment", "tiny"]["spec"])


@pytest.mark.parametrize(
    ("uri", "ports"),
    [
        ("oci://registry.local/m:1", [443]),
        ("oci://registry.local:5000/m:1", [443, 5000]),
        ("oci://m:1", [443]),
        ("oci://registry.local:5000/m:1@" + DIGEST, None),
        ("pvc://claim/m", None),
    ],
)
def test_only_the_inspection_may_reach_the_registry(
    uri: str, ports: list[int] | None, make_owner: Make, installation: Installation
) -> None:
    owner = make_owner({"model": {"uri": uri}})
    assert protection.network_policy(owner, installation)["spec"]["egress"] == []
    egress = protection.inspection_policy(owner)["spec"]["egress"]
    assert ([port["port"] for port in egress[-1]["ports"]] if egress else None) == ports


def inspected(owner: LLMDeployment, mount: Json, message: str) -> Json:
    """The finished pod of the Job."""
    labels = {"batch.kubernetes.io/job-name": model_job.job_name(owner)}
    metadata = {"name": "look", "uid": "u", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
    ended = {"exitCode": 0, "message": message}
    status = {"name": "model", "state": {"terminated": ended}, "volumeMounts": [{"name": "tmp"}, mount]}
    return {"metadata": metadata, "spec": {}, "status": {"phase": "Succeeded", "containerStatuses": [status]}}


@pytest.mark.parametrize(
    ("uri", "image", "revision"),
    [
        (f"oci://{TAG}", f"registry.local/models/tiny@{MOVED}", MOVED),
        (f"oci://{TAG}", MOVED, DIGEST),
        (f"oci://{TAG}@{DIGEST}", f"registry.local/models/tiny@{MOVED}", DIGEST),
    ],
)
@pytest.mark.parametrize("message", [encode_inspection(FOUND).decode(), ""])
def test_the_kubelets_digest_is_more_certain(
    uri: str, image: str, revision: str, message: str, make_owner: Make
) -> None:
    owner = make_owner({"model": {"uri": uri}})
    mount = {"name": "model", "mountPath": "/model", "volumeStatus": {"image": {"imageRef": image}}}
    seen = observe_inspection([inspected(owner, mount, message)], owner, model_job.job_name(owner), [])
    model = resolve(owner, [], seen)
    assert isinstance(model, Resolved)
    if not message and revision == DIGEST:
        assert model.report == ""
        return
    assert model.found.revision == revision
    # It is recorded, so that later revisions of the spec use the same.
    assert decode_inspection(model.report) == model.found


def test_the_kubelets_digest_of_a_draft_model_is_its_own(make_owner: Make) -> None:
    owner = make_owner(GUESSING)
    image = {"imageRef": f"registry.local/models/small@{MOVED}"}
    mount = {"name": "draft-model", "mountPath": "/draft", "volumeStatus": {"image": image}}
    said = encode_inspection(msgspec.structs.replace(FOUND, draft=FOUND)).decode()
    seen = observe_inspection([inspected(owner, mount, said)], owner, model_job.job_name(owner), [])
    model = resolve(owner, [], seen)
    assert isinstance(model, Resolved)
    assert model.found.draft is not None
    assert (model.found.revision, model.found.draft.revision) == (DIGEST, MOVED)

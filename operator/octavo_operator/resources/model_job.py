"""The Job that inspects a model before any server pod is created, and the record of its report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from octavo_operator.api.base import Json
from octavo_operator.api.model_source import MOUNT, ModelSource
from octavo_operator.api.resource import LLMDeployment, digest
from octavo_operator.resources import cache, draft, placement, source
from octavo_operator.resources.common import NO_GPUS, POD_SECURITY, SECURITY, USER, Installation, child, labels
from octavo_protocol import names

COMPONENT = "model"
CONTAINER = "model"
# Annotation of a pod template: the model that it was built for, and the inspection's report on it.
ANNOTATION_MODEL = f"{names.API_GROUP}/model"
# The kubelet restarts the container after 10 s, 20 s … 5 min, as long as the spec names this model. A Job that gave up
# would not notice that a token, a repository or a network was fixed.
_RETRIES = 1_000_000
_PULL_SECRETS = "/pull-secrets"
# The fields that restrict the nodes of a pod; affinity between server pods and their resource claims do not apply.
_PLACED = ("nodeSelector", "tolerations", "affinity", "priorityClassName", "schedulerName")


def identity(owner: LLMDeployment) -> str:
    """Ten hex digits, a hash of the model's URI, revision, credentials Secret and claim."""
    model = owner.spec.model
    secret = model.credentials_secret_ref
    parts = {"uri": model.uri, "revision": model.revision, "secret": secret.name if secret else None}
    if claim := owner.cache_claim:
        parts["claim"] = claim
    return digest(parts)


def job_name(owner: LLMDeployment) -> str:
    """Name of the Job for the model in the spec, and its draft model."""
    model, guessing = identity(owner), draft.identity(owner)
    return f"{owner.name}-model-{digest([model, guessing]) if guessing else model}"


def job_labels(owner: LLMDeployment) -> dict[str, str]:
    """Labels of the Job and its pods; no selector of a Service, disruption budget or Deployment matches them."""
    return labels(owner) | {names.LABEL_COMPONENT: COMPONENT}


def remote_sources(owner: LLMDeployment) -> list[ModelSource]:
    """The sources that the Job reaches over the network."""
    return [each for each in (owner.source, draft.of(owner.spec)) if each is not None and each.remote]


@dataclass(frozen=True, slots=True)
class Pins:
    """The revisions of the model and of the draft model that were resolved earlier; empty strings without."""

    model: str = ""
    draft: str = ""


def job(owner: LLMDeployment, installation: Installation, pins: Pins, pull_secrets: Sequence[str] = ()) -> Json:
    """The Job. It inspects the models at `pins`, which pods may run already.

    It resolves the tag of an image with the credentials in `pull_secrets`, names of Secrets.
    It runs the installation's image even if `spec.engine.image` is set: only that image is known to contain the
    program. So with another image the Job accepts any architecture, and the server has to check it.
    """
    spec, model, guessing = owner.spec, owner.source, draft.of(owner.spec)
    target = source.pinned(spec.model, pins.model or spec.model.revision) if model.downloads else model.path
    command = ["python", "-m", "octavo_inference.inspect_model", target, "--report", "/dev/termination-log"]
    if spec.resources.gpu.count:
        command += ["--transformers"]  # as the image of GPUs has, and the Job's has not
    mounts: list[Json] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - the container's own volume
    volumes: list[Json] = [{"name": "tmp", "emptyDir": {"sizeLimit": "2Gi"}}]
    claim = owner.cache_claim
    if claim:
        command += ["--cache", MOUNT]
    if claim or not model.downloads:
        writes = {} if claim else {"readOnly": True}
        mounts.append({"name": source.VOLUME, "mountPath": MOUNT, **writes})
        volumes.append(cache.volume(owner, read_only=False, revision=pins.model))
    if model.scheme == "oci":
        command += ["--image", source.image(model, pins.model)]
    unresolved = model.tagged and not pins.model
    if guessing is not None:
        command += ["--draft", draft.target(owner, pins.draft)]
        if guessing.scheme == "oci":
            command += ["--draft-image", source.image(guessing, pins.draft)]
        unresolved |= guessing.tagged and not pins.draft
        if not guessing.downloads:
            mounts += draft.mounts(spec)
            volumes += draft.volumes(spec, pins.draft)
    if unresolved and pull_secrets:
        command += ["--pull-secrets", _PULL_SECRETS]
        mounts.append({"name": "pull-secrets", "mountPath": _PULL_SECRETS, "readOnly": True})
        volumes.append({"name": "pull-secrets", "projected": {"sources": list(map(_pull_secret, pull_secrets))}})
    container: Json = {
        "name": CONTAINER,
        "image": installation.server_cpu_image,
        "command": [*command, "--any-architecture"] if spec.engine.image else command,
        "env": [{"name": "HOME", "value": "/tmp"}, NO_GPUS, *source.env_for_all(owner, remote_sources(owner))],  # noqa: S108
        # Two vocabularies of 256,000 tokens take several hundred megabytes while they are compared.
        "resources": {
            "requests": {"cpu": "50m", "memory": "128Mi"},
            "limits": {"memory": "512Mi" if guessing is None else "1536Mi"},
        },
        "securityContext": SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    return job_of(owner, job_name(owner), job_labels(owner), container, volumes, writes_to_claim=bool(claim))


def job_of(
    owner: LLMDeployment,
    name: str,
    labels: Json,
    container: Json,
    volumes: list[Json],
    *,
    writes_to_claim: bool = False,
) -> Json:
    """A Job of one container on a node on which servers may run."""
    # A new volume belongs to root.
    group = {"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"} if writes_to_claim else {}
    pod: Json = {
        "restartPolicy": "OnFailure",
        "serviceAccountName": owner.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 10,
        "securityContext": POD_SECURITY | group,
        "containers": [container],
        "volumes": volumes,
    }
    # The Job's node decides where volumes are bound and images pulled, so it must be one on which servers may run.
    pod |= {name: value for name, value in placement.pod_fields(owner).items() if name in _PLACED}
    if node := pod.get("affinity", {}).get("nodeAffinity"):
        pod["affinity"] = {"nodeAffinity": node}
    else:
        pod.pop("affinity", None)
    body = child(owner, "batch/v1", "Job", name)
    body["metadata"]["labels"] = labels
    body["spec"] = {
        "backoffLimit": _RETRIES,
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return body


def pull_secrets(service_account: Json | None) -> list[str]:
    """Names of the pull secrets that a user gave the pods' ServiceAccount."""
    return [entry["name"] for entry in (service_account or {}).get("imagePullSecrets") or [] if entry.get("name")]


def _pull_secret(name: str) -> Json:
    items = [{"key": ".dockerconfigjson", "path": f"{name}.json"}]
    # The kubelet pulls without a Secret that does not exist, and so does the resolution.
    return {"secret": {"name": name, "items": items, "optional": True}}


def record(owner: LLMDeployment, report: str) -> str:
    """The value of the model annotation: the identities of the models, and the report (JSON, or empty)."""
    noted: Json = {"identity": identity(owner), "report": json.loads(report) if report else None}
    if guessing := draft.identity(owner):
        noted["draft"] = guessing
    return json.dumps(noted, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """What a pod template's annotation says: the report (JSON, or empty), and whether it is about the spec's models.

    `of_draft` is true without a draft model, in the spec and then.
    """

    report: str
    of_model: bool
    of_draft: bool


def recorded(owner: LLMDeployment, template: Json) -> ModelRecord | None:
    """The record in a template's annotation; None if there is none."""
    text = template["metadata"].get("annotations", {}).get(ANNOTATION_MODEL)
    if text is None:
        return None
    noted = json.loads(text)
    return ModelRecord(
        report=json.dumps(noted["report"]) if noted["report"] else "",
        of_model=noted["identity"] == identity(owner),
        of_draft=noted.get("draft", "") == draft.identity(owner),
    )

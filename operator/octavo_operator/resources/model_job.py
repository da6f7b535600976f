"""The Job that inspects a model before any server pod is created, and the record of its report."""

from __future__ import annotations

import json
from collections.abc import Sequence

from octavo_operator.api.base import Json
from octavo_operator.api.model_source import MOUNT
from octavo_operator.api.resource import LLMDeployment, digest
from octavo_operator.resources import cache, placement, source
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
    """Name of the Job for the model in the spec."""
    return f"{owner.name}-model-{identity(owner)}"


def job_labels(owner: LLMDeployment) -> dict[str, str]:
    """Labels of the Job and its pods; no selector of a Service, disruption budget or Deployment matches them."""
    return labels(owner) | {names.LABEL_COMPONENT: COMPONENT}


def job(owner: LLMDeployment, installation: Installation, pinned: str, pull_secrets: Sequence[str] = ()) -> Json:
    """The Job. `pinned` is the model revision resolved earlier, or an empty string.

    It resolves the tag of an image with the credentials in `pull_secrets`, names of Secrets.
    It runs the installation's image even if `spec.engine.image` is set: only that image is known to contain the
    program. So with another image the Job accepts any architecture, and the server has to check it.
    """
    spec, model = owner.spec, owner.source
    target = source.pinned(owner.spec.model, pinned or owner.spec.model.revision) if model.downloads else model.path
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
        volumes.append(cache.volume(owner, read_only=False, revision=pinned))
    if model.scheme == "oci":
        command += ["--image", source.image(model, pinned)]
    if model.tagged and not pinned and pull_secrets:
        command += ["--pull-secrets", _PULL_SECRETS]
        mounts.append({"name": "pull-secrets", "mountPath": _PULL_SECRETS, "readOnly": True})
        volumes.append({"name": "pull-secrets", "projected": {"sources": list(map(_pull_secret, pull_secrets))}})
    container: Json = {
        "name": CONTAINER,
        "image": installation.server_cpu_image,
        "command": [*command, "--any-architecture"] if spec.engine.image else command,
        "env": [{"name": "HOME", "value": "/tmp"}, NO_GPUS, *source.download_env(owner)],  # noqa: S108
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    pod: Json = {
        "restartPolicy": "OnFailure",
        "serviceAccountName": owner.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 10,
        # A new volume belongs to root.
        "securityContext": POD_SECURITY | ({"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"} if claim else {}),
        "containers": [container],
        "volumes": volumes,
    }
    # The Job's node decides where volumes are bound and images pulled, so it must be one on which servers may run.
    pod |= {name: value for name, value in placement.pod_fields(owner).items() if name in _PLACED}
    if node := pod.get("affinity", {}).get("nodeAffinity"):
        pod["affinity"] = {"nodeAffinity": node}
    else:
        pod.pop("affinity", None)
    body = child(owner, "batch/v1", "Job", job_name(owner))
    body["metadata"]["labels"] = job_labels(owner)
    body["spec"] = {
        "backoffLimit": _RETRIES,
        "template": {"metadata": {"labels": job_labels(owner)}, "spec": pod},
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
    """The value of the model annotation: the model's identity and the report (JSON, or empty)."""
    found = json.loads(report) if report else None
    return json.dumps({"identity": identity(owner), "report": found}, sort_keys=True, separators=(",", ":"))


def recorded(owner: LLMDeployment, template: Json) -> str | None:
    """The report in a template's annotation ("" if empty); None if it is about another model or absent."""
    text = template["metadata"].get("annotations", {}).get(ANNOTATION_MODEL)
    if text is None:
        return None
    remembered = json.loads(text)
    if remembered["identity"] != identity(owner):
        return None
    return json.dumps(remembered["report"]) if remembered["report"] else ""

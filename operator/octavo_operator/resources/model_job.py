"""The Job that looks at a model before any pod is made for it, and what is remembered of what it found."""

from __future__ import annotations

import json

from octavo_operator.api.base import Json
from octavo_operator.api.model_source import MOUNT
from octavo_operator.api.resource import LLMDeployment, digest
from octavo_operator.resources import cache, placement, source
from octavo_operator.resources.common import NO_GPUS, POD_SECURITY, SECURITY, USER, Installation, child, labels
from octavo_protocol import names

COMPONENT = "model"
CONTAINER = "model"
# On a pod template: which model it was made for, and what was found of that model then.
ANNOTATION_MODEL = f"{names.API_GROUP}/model"
# The kubelet starts the container again after 10 s, 20 s … 5 min, for as long as the spec asks for this model: a Job
# that gives up would leave nobody to notice that a token, a repository or a network has become right.
_RETRIES = 1_000_000
# What says where pods may run at all; how servers lie beside each other and what they claim is not about it.
_PLACED = ("nodeSelector", "tolerations", "affinity", "priorityClassName", "schedulerName")


def identity(owner: LLMDeployment) -> str:
    """Ten hex digits over what decides which model is meant, who may read it and where it is kept."""
    model = owner.spec.model
    secret = model.credentials_secret_ref
    parts = {"uri": model.uri, "revision": model.revision, "secret": secret.name if secret else None}
    if claim := owner.cache_claim:
        parts["claim"] = claim
    return digest(parts)


def job_name(owner: LLMDeployment) -> str:
    """Name of the Job for the model that the spec means."""
    return f"{owner.name}-model-{identity(owner)}"


def job_labels(owner: LLMDeployment) -> dict[str, str]:
    """Labels of the Job and its pods: no Service, budget or Deployment may take these pods for servers."""
    return labels(owner) | {names.LABEL_COMPONENT: COMPONENT}


def job(owner: LLMDeployment, installation: Installation, pinned: str) -> Json:
    """The Job. `pinned` is the revision that was found before; empty when none was.

    It runs the installation's own image, also where `spec.engine.image` is another: only that one is known to have
    the program. What another image can serve, it must find out itself.
    """
    spec, model = owner.spec, owner.source
    target = source.pinned(owner.spec.model, pinned or owner.spec.model.revision) if model.downloads else model.path
    command = ["python", "-m", "octavo_inference.inspect_model", target, "--report", "/dev/termination-log"]
    mounts: list[Json] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - the container's own volume
    volumes: list[Json] = [{"name": "tmp", "emptyDir": {"sizeLimit": "2Gi"}}]
    claim = owner.cache_claim
    if claim:
        command += ["--cache", MOUNT]
    if claim or not model.downloads:
        writes = {} if claim else {"readOnly": True}
        mounts.append({"name": source.VOLUME, "mountPath": MOUNT, **writes})
        volumes.append(cache.volume(owner, read_only=False))
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
    # Where it runs, volumes are bound and images pulled: that should be where the servers may run.
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


def record(owner: LLMDeployment, report: str) -> str:
    """The annotation that remembers a report (JSON, empty when there was none) on what was made from it."""
    found = json.loads(report) if report else None
    return json.dumps({"identity": identity(owner), "report": found}, sort_keys=True, separators=(",", ":"))


def recorded(owner: LLMDeployment, template: Json) -> str | None:
    """The report that a template was made from, if it was for the model that the spec means; "" when it was empty."""
    text = template["metadata"].get("annotations", {}).get(ANNOTATION_MODEL)
    if text is None:
        return None
    remembered = json.loads(text)
    if remembered["identity"] != identity(owner):
        return None
    return json.dumps(remembered["report"]) if remembered["report"] else ""

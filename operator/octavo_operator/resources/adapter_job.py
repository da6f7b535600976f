"""The Jobs that inspect adapters, one for each source: one that fails holds up no other."""

from __future__ import annotations

from octavo_operator.api.base import Json
from octavo_operator.api.model_source import MOUNT, parse
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.api.v1alpha1_adapters import AdapterSpec
from octavo_operator.resources import adapters, cache, source
from octavo_operator.resources.common import NO_GPUS, SECURITY, Installation, labels
from octavo_operator.resources.model_job import job_of
from octavo_protocol import names

COMPONENT = "adapter"
CONTAINER = "adapter"


def job_name(owner: LLMDeployment, adapter: AdapterSpec) -> str:
    """Name of the Job for the source of an adapter."""
    return f"{owner.name}-lora-{adapters.identity(adapter)}"


def job_labels(owner: LLMDeployment) -> dict[str, str]:
    """Labels of the Jobs and their pods."""
    return labels(owner) | {names.LABEL_COMPONENT: COMPONENT}


def job(owner: LLMDeployment, installation: Installation, adapter: AdapterSpec) -> Json:
    """The Job. It reads the configuration and the headers of the weights, and resolves the revision."""
    found = parse(adapter.uri)
    target = source.pinned(adapter, adapter.revision) if found.downloads else found.path
    program = ["python", "-m", "octavo_inference.inspect_model", target, "--adapter"]
    container: Json = {
        "name": CONTAINER,
        "image": installation.server_cpu_image,
        "command": [*program, "--report", "/dev/termination-log"],
        "env": [{"name": "HOME", "value": "/tmp"}, NO_GPUS, *source.env_for_adapter(owner, found)],  # noqa: S108
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }
    volumes: list[Json] = [{"name": "tmp", "emptyDir": {"sizeLimit": "2Gi"}}]
    if not found.downloads:
        container["volumeMounts"].append({"name": source.VOLUME, "mountPath": MOUNT, "readOnly": True})
        volumes.append(cache.volume(owner, read_only=True))
    return job_of(owner, job_name(owner, adapter), job_labels(owner), container, volumes)

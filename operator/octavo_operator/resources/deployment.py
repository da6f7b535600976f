"""The Deployment and its pod template."""

from __future__ import annotations

import json
import math

from octavo_operator.api.base import Json
from octavo_operator.api.model_source import MOUNT
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.resources import adapters, cache, config, draft, model_job, placement, source
from octavo_operator.resources.common import (
    LABEL_REVISION,
    NO_GPUS,
    POD_SECURITY,
    SECURITY,
    Installation,
    canary_name,
    canary_selector,
    child,
    labels,
    selector,
)
from octavo_protocol import names
from octavo_protocol.model import ModelReport

SERVER = "server"
# The applied pod template. While the revision stays the same, the operator applies this template again. So an upgrade
# of the operator, with other images or another pod layout, restarts no pod.
ANNOTATION_TEMPLATE = f"{names.API_GROUP}/applied-template"
# After propagation and drain: seconds for the process to write its last log lines and exit.
EXIT_SECONDS = 15
# Compiled Triton kernels, some megabytes: a container restarted in its pod need not compile them again.
TRITON_CACHE = "/var/cache/triton"
# NCCL's buffers between ranks whose GPUs have no direct link. A segment takes 9.2 MiB, and a rank may have one for
# each of 32 channels to each neighbour in rings and trees; a container's default is 64 MiB.
# Only used pages are allocated, and they count as memory of the container.
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the path is Linux's
SHARED_MEMORY_MIB = 512
_STARTUP_PERIOD = 2
UNKNOWN = ModelReport()


def deployment(owner: LLMDeployment, template: Json, replicas: int, strategy: Json, deadline: int) -> Json:
    """The Deployment that runs `template`. `deadline` is `progressDeadlineSeconds`."""
    recorded = json.dumps(template, sort_keys=True, separators=(",", ":"))
    body = child(owner, "apps/v1", "Deployment", owner.name, {ANNOTATION_TEMPLATE: recorded})
    revision = template["metadata"]["labels"][LABEL_REVISION]
    body["metadata"]["labels"] |= {LABEL_REVISION: revision, **placement.queue(owner)}
    body["spec"] = {
        "replicas": replicas,
        "revisionHistoryLimit": 1,
        "progressDeadlineSeconds": deadline,
        "strategy": strategy,
        "selector": {"matchLabels": selector(owner)},
        "template": template,
    }
    return body


def canary_deployment(owner: LLMDeployment, template: Json, replicas: int, deadline: int) -> Json:
    """The canary's Deployment: the same pods with an additional track label.

    The selector of the stable Deployment matches these pods, too. That is safe, because a Deployment acts only on pods
    that it owns. And it is wanted: disruption budget, network policy and Service select the pods of both.
    """
    labels = {**template["metadata"]["labels"], names.LABEL_TRACK: names.TRACK_CANARY}
    template = {**template, "metadata": {**template["metadata"], "labels": labels}}
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    body = deployment(owner, template, replicas, strategy, deadline)
    body["metadata"]["name"] = canary_name(owner)
    body["metadata"]["labels"] |= {names.LABEL_TRACK: names.TRACK_CANARY}
    body["spec"]["selector"] = {"matchLabels": canary_selector(owner)}
    return body


def applied_template(live: Json) -> Json | None:
    """The template last applied to a live Deployment; None if it has no record of it."""
    recorded = live["metadata"].get("annotations", {}).get(ANNOTATION_TEMPLATE)
    if recorded is None:
        return None
    template: Json = json.loads(recorded)
    return template


def memory_limit(template: Json) -> str:
    """The memory limit of a template's server container, a quantity."""
    server = next(container for container in template["spec"]["containers"] if container["name"] == SERVER)
    limit: str = server["resources"]["limits"]["memory"]
    return limit


def config_name(template: Json) -> str:
    """Name of the ConfigMap that a template (or pod) mounts; empty if none."""
    volumes = template.get("spec", {}).get("volumes", [])
    return next((volume["configMap"]["name"] for volume in volumes if volume["name"] == "config"), "")


def pod_template(
    owner: LLMDeployment,
    installation: Installation,
    config_map: str,
    *,
    found: ModelReport = UNKNOWN,
    record: str = "",
) -> Json:
    """The pod template of the current spec; it meets the restricted Pod Security standard.

    `found` is the inspection's report on the model; `record` goes into the template's annotation of the model.
    """
    spec = owner.spec
    default_image = installation.server_image if spec.resources.gpu.count else installation.server_cpu_image
    image = spec.engine.image or default_image
    pod: Json = {
        "serviceAccountName": owner.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": spec.drain.propagation_seconds + spec.drain.timeout_seconds + EXIT_SECONDS,
        "securityContext": POD_SECURITY,
        "containers": [_server(owner, image, found.path)],
        "volumes": [
            cache.volume(owner, read_only=True, revision=found.revision),
            {"name": "config", "configMap": {"name": config_map}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "2Gi"}},
            *config.template_volumes(spec),
            *draft.volumes(spec, found.draft.revision if found.draft else ""),
            *adapters.volumes(owner, found),
        ],
    }
    if spec.resources.gpu.count:
        pod["volumes"].append({"name": "triton", "emptyDir": {"sizeLimit": "1Gi"}})
    if (ranks := spec.engine.settings.tensor_parallel_size) > 1:
        size = f"{SHARED_MEMORY_MIB * ranks}Mi"
        pod["volumes"].append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    downloads = source.prefetch(owner, image, found.revision)
    downloads += draft.prefetch(owner, image, found.draft.revision if found.draft else "")
    downloads += adapters.containers(owner, image, found)
    if downloads:
        pod["initContainers"] = downloads
    pod |= placement.pod_fields(owner)
    metadata: Json = {"labels": {**labels(owner), **placement.queue(owner), LABEL_REVISION: owner.revision}}
    if record:
        metadata["annotations"] = {model_job.ANNOTATION_MODEL: record}
    return {"metadata": metadata, "spec": pod}


def _server(owner: LLMDeployment, image: str, path: str) -> Json:
    spec = owner.spec
    gpu = spec.resources.gpu
    limits: Json = {"memory": spec.resources.memory}
    environment = [{"name": "HOME", "value": "/tmp"}]  # noqa: S108 - a volume of the container
    if gpu.count:
        limits[gpu.resource_name] = str(gpu.count)
        environment.append({"name": "TRITON_CACHE_DIR", "value": TRITON_CACHE})
    else:
        environment.append(NO_GPUS)
    given = source.env_entries(spec.engine.env)
    environment = [entry for entry in environment if entry["name"] not in {e["name"] for e in given}]
    requests: Json = {"cpu": spec.resources.cpu, "memory": spec.resources.memory}
    container: Json = {
        "name": SERVER,
        "image": image,
        "command": ["octavo-server", "--config", f"{config.MOUNT}/{config.FILE}", *spec.engine.extra_args],
        "env": [*environment, *given],
        "ports": [
            {"name": names.PORT_NAME_API, "containerPort": names.PORT_API},
            {"name": names.PORT_NAME_ADMIN, "containerPort": names.PORT_ADMIN},
        ],
        "resources": {"requests": requests, "limits": limits, **placement.container_claims(owner)},
        "securityContext": SECURITY,
        "startupProbe": _probe(
            "/startupz",
            period=_STARTUP_PERIOD,
            timeout=2,
            failures=math.ceil(spec.probes.startup_timeout_seconds / _STARTUP_PERIOD),
        ),
        "readinessProbe": _probe("/readyz", period=2, timeout=3, failures=2),
        "livenessProbe": _probe("/livez", period=10, timeout=5, failures=3),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": source.VOLUME, "mountPath": MOUNT, "readOnly": True} | ({"subPath": path} if path else {}),
            {"name": "config", "mountPath": config.MOUNT, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            *config.template_mounts(spec),
            *draft.mounts(spec),
            *adapters.mounts(spec),
            *([{"name": "triton", "mountPath": TRITON_CACHE}] if gpu.count else []),
            *([{"name": "shm", "mountPath": SHARED_MEMORY}] if spec.engine.settings.tensor_parallel_size > 1 else []),
        ],
    }
    if spec.engine.env_from:
        container["envFrom"] = [entry.model_dump(by_alias=True, exclude_none=True) for entry in spec.engine.env_from]
    if spec.drain.propagation_seconds:
        # The terminating pod still serves, until all kube-proxies and gateways removed its endpoint; then it drains.
        container["lifecycle"] = {"preStop": {"sleep": {"seconds": spec.drain.propagation_seconds}}}
    return container


def _probe(path: str, *, period: int, timeout: int, failures: int) -> Json:
    return {
        "httpGet": {"path": path, "port": names.PORT_NAME_API},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }

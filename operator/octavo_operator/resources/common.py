"""The common parts of all children of an LLMDeployment."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_operator.api.base import Json
from octavo_operator.api.profiles import Profiles
from octavo_operator.api.resource import LLMDeployment
from octavo_protocol import names

API_VERSION = f"{names.API_GROUP}/{names.API_VERSION}"
COMPONENT_GATEWAY = "gateway"
COMPONENT_OPERATOR = "operator"

# Label of pods and Deployment: the revision of the spec that they were built from.
LABEL_REVISION = f"{names.API_GROUP}/revision"

# Required by the restricted Pod Security standard, plus a read-only root file system.
USER = 65532
POD_SECURITY: Json = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
SECURITY: Json = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
# If NVIDIA's container runtime is a node's default, containers without a GPU request see all GPUs of the node, unless
# they set this variable. Containers with a GPU request get the variable from the device plugin.
NO_GPUS: Json = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


@dataclass(frozen=True, slots=True)
class Installation:
    """Settings of the operator's installation that apply to every LLMDeployment.

    `namespace` is that of operator and gateways; `gateway_url` is None if clients have no gateway.
    `metrics_peers` are the NetworkPolicyPeers that may scrape the pods' metrics; `profiles` the resource profiles.
    """

    server_image: str
    server_cpu_image: str
    namespace: str
    gateway_url: str | None = None
    metrics_peers: tuple[Json, ...] = ()
    profiles: Profiles = field(default_factory=dict)


def selector(owner: LLMDeployment) -> dict[str, str]:
    """Labels that select the pods. They must never change, as a Deployment's selector is immutable."""
    return {names.LABEL_NAME: owner.name, names.LABEL_COMPONENT: names.COMPONENT_SERVER}


def canary_name(owner: LLMDeployment) -> str:
    """Name of the canary's Deployment and Service."""
    return f"{owner.name}-canary"


def canary_selector(owner: LLMDeployment) -> dict[str, str]:
    """Labels that select only the canary's pods."""
    return {**selector(owner), names.LABEL_TRACK: names.TRACK_CANARY}


def labels(owner: LLMDeployment) -> dict[str, str]:
    """Labels of every child."""
    return {
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        "app.kubernetes.io/part-of": "octavo",
        **selector(owner),
    }


def child(
    owner: LLMDeployment, api_version: str, kind: str, name: str, annotations: dict[str, str] | None = None
) -> Json:
    """A child object without spec: identity, labels and an owner reference for garbage collection."""
    metadata: Json = {
        "name": name,
        "namespace": owner.namespace,
        "labels": labels(owner),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": names.KIND,
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}

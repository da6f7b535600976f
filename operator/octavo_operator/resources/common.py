"""What all children of an LLMDeployment have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_operator.api.base import Json
from octavo_operator.api.profiles import Profiles
from octavo_operator.api.resource import LLMDeployment
from octavo_protocol import names

API_VERSION = f"{names.API_GROUP}/{names.API_VERSION}"
COMPONENT_GATEWAY = "gateway"
COMPONENT_OPERATOR = "operator"

# On pods and Deployment: the revision of the spec they were made from.
LABEL_REVISION = f"{names.API_GROUP}/revision"

# What the restricted Pod Security standard asks of pods and containers, and no file system to write to.
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
# Where NVIDIA's container runtime is a node's default it shows every GPU of the node to a container that asks for none,
# unless its environment says this. A container that asks for one gets the variable from the device plugin.
NO_GPUS: Json = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


@dataclass(frozen=True, slots=True)
class Installation:
    """What one installation of the operator adds to every LLMDeployment.

    `namespace` is where operator and gateways run; `gateway_url` is None when there is no gateway to point clients to.
    `metrics_peers` are the NetworkPolicyPeers that may read the pods' metrics; `profiles` the resource profiles.
    """

    server_image: str
    server_cpu_image: str
    namespace: str
    gateway_url: str | None = None
    metrics_peers: tuple[Json, ...] = ()
    profiles: Profiles = field(default_factory=dict)


def selector(owner: LLMDeployment) -> dict[str, str]:
    """Labels that select the pods. They never change: a Deployment's selector is immutable."""
    return {names.LABEL_NAME: owner.name, names.LABEL_COMPONENT: names.COMPONENT_SERVER}


def canary_name(owner: LLMDeployment) -> str:
    """Name of the Deployment and of the Service of a canary."""
    return f"{owner.name}-canary"


def canary_selector(owner: LLMDeployment) -> dict[str, str]:
    """Labels that select the pods of a canary alone."""
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
    """Head of a child object: identity, labels and the owner that takes it along when it goes."""
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

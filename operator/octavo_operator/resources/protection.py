"""What keeps others from hurting the pods: disruption budget and network policy."""

from __future__ import annotations

from octavo_operator.api.base import Json
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.resources import model_job, source
from octavo_operator.resources.common import COMPONENT_GATEWAY, COMPONENT_OPERATOR, Installation, child, selector
from octavo_protocol import names


def disruption_budget(owner: LLMDeployment) -> Json:
    """Evictions take one replica at a time; also right for a single one, which must not block a node drain."""
    body = child(owner, "policy/v1", "PodDisruptionBudget", owner.name)
    body["spec"] = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector(owner)},
    }
    return body


def network_policy(owner: LLMDeployment, installation: Installation) -> Json:
    """Only those in that need to, and nothing out.

    A policy is about a pod, not about a container: where an init container downloads the weights, the whole pod may
    reach DNS and the source's port.
    """
    namespace = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": installation.namespace}}}
    gateway = {**namespace, "podSelector": {"matchLabels": {names.LABEL_COMPONENT: COMPONENT_GATEWAY}}}
    operator = {**namespace, "podSelector": {"matchLabels": {names.LABEL_COMPONENT: COMPONENT_OPERATOR}}}
    body = child(owner, "networking.k8s.io/v1", "NetworkPolicy", owner.name)
    body["spec"] = {
        "podSelector": {"matchLabels": selector(owner)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {"from": [gateway, {"podSelector": {}}], "ports": [_port(names.PORT_API)]},
            {"from": [gateway, operator, *installation.metrics_peers], "ports": [_port(names.PORT_ADMIN)]},
        ],
        "egress": [] if owner.cache_claim else _way_to_model(owner),
    }
    return body


def inspection_policy_name(owner: LLMDeployment) -> str:
    """Name of the policy for the pods that look at the model."""
    return f"{owner.name}-fetch"


def inspection_policy(owner: LLMDeployment) -> Json:
    """Nobody in; out only where the model is."""
    body = child(owner, "networking.k8s.io/v1", "NetworkPolicy", inspection_policy_name(owner))
    selected = {names.LABEL_NAME: owner.name, names.LABEL_COMPONENT: model_job.COMPONENT}
    body["spec"] = {
        "podSelector": {"matchLabels": selected},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": _way_to_model(owner),
    }
    return body


def _way_to_model(owner: LLMDeployment) -> list[Json]:
    """DNS and the port of the hub or bucket, anywhere but where clouds hand out the credentials of a node."""
    if not owner.source.downloads:
        return []
    anywhere: list[Json] = [
        {"namespaceSelector": {}},
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
        {"ipBlock": {"cidr": "::/0", "except": ["fd00:ec2::254/128", "fe80::/10"]}},
    ]
    port = source.download_port(owner)
    return [
        # Port 53 for name servers outside the cluster's pods; those inside may listen on another one.
        {"ports": [_port(53, "UDP"), _port(53)]},
        {"to": [_CLUSTER_DNS]},
        {"to": anywhere, "ports": [_port(port)]},
    ]


_CLUSTER_DNS: Json = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}


def _port(number: int, protocol: str = "TCP") -> Json:
    return {"protocol": protocol, "port": number}

"""What keeps others from hurting the pods: disruption budget and network policy."""

from __future__ import annotations

from octavo_operator.api.blocks import Json
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.builders import source
from octavo_operator.builders.common import COMPONENT_GATEWAY, COMPONENT_OPERATOR, Installation, child, selector
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
    reach DNS and the hub's port.
    """
    namespace = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": installation.namespace}}}
    gateway = {**namespace, "podSelector": {"matchLabels": {names.LABEL_COMPONENT: COMPONENT_GATEWAY}}}
    operator = {**namespace, "podSelector": {"matchLabels": {names.LABEL_COMPONENT: COMPONENT_OPERATOR}}}
    egress: list[Json] = []
    if source.parse(owner.spec.model).downloads:
        hub = source.download_port(owner.spec.engine.env)
        # Port 53 for name servers outside the cluster's pods; those inside may listen on another one.
        egress = [{"ports": [_port(53, "UDP"), _port(53)]}, {"to": [_CLUSTER_DNS]}, {"ports": [_port(hub)]}]
    body = child(owner, "networking.k8s.io/v1", "NetworkPolicy", owner.name)
    body["spec"] = {
        "podSelector": {"matchLabels": selector(owner)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {"from": [gateway, {"podSelector": {}}], "ports": [_port(names.PORT_API)]},
            {"from": [gateway, operator, *installation.metrics_peers], "ports": [_port(names.PORT_ADMIN)]},
        ],
        "egress": egress,
    }
    return body


_CLUSTER_DNS: Json = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}


def _port(number: int, protocol: str = "TCP") -> Json:
    return {"protocol": protocol, "port": number}

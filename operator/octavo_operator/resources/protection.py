"""Protection of the pods: PodDisruptionBudget and NetworkPolicies."""

from __future__ import annotations

from octavo_operator.api.base import Json
from octavo_operator.api.model_source import ModelSource
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.resources import adapter_job, adapters, draft, model_job, source
from octavo_operator.resources.common import COMPONENT_GATEWAY, COMPONENT_OPERATOR, Installation, child, selector
from octavo_protocol import names


def disruption_budget(owner: LLMDeployment) -> Json:
    """At most one replica is evicted at a time. A single replica can be evicted, so it does not block a node drain."""
    body = child(owner, "policy/v1", "PodDisruptionBudget", owner.name)
    body["spec"] = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector(owner)},
    }
    return body


def network_policy(owner: LLMDeployment, installation: Installation) -> Json:
    """Ingress from gateways, operator, metrics peers and the own namespace; no egress.

    A policy applies to whole pods. If an init container downloads the weights, the pod may reach DNS and the port of
    the model source.
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
        "egress": _egress_to(owner, _downloads(owner)),
    }
    return body


def _downloads(owner: LLMDeployment) -> list[ModelSource]:
    """The sources from which a server's pod downloads."""
    models = [] if owner.cache_claim else [owner.source]
    guessing = draft.of(owner.spec)
    models += [] if guessing is None else [guessing]
    return [each for each in (*models, *adapters.sources(owner)) if each.downloads]


def inspection_policy_name(owner: LLMDeployment) -> str:
    """Name of the NetworkPolicy for the pods of the inspection Jobs."""
    return f"{owner.name}-fetch"


def inspection_policy(owner: LLMDeployment) -> Json:
    """No ingress; egress only to the sources of models and adapters, or to the registry that resolves a tag."""
    body = child(owner, "networking.k8s.io/v1", "NetworkPolicy", inspection_policy_name(owner))
    components = [model_job.COMPONENT, *([adapter_job.COMPONENT] if owner.spec.model.adapters else [])]
    inspections = {"key": names.LABEL_COMPONENT, "operator": "In", "values": components}
    body["spec"] = {
        "podSelector": {"matchLabels": {names.LABEL_NAME: owner.name}, "matchExpressions": [inspections]},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": _egress_to(owner, [*model_job.remote_sources(owner), *adapters.sources(owner)]),
    }
    return body


def _egress_to(owner: LLMDeployment, sources: list[ModelSource]) -> list[Json]:
    """DNS, and the ports of the sources on any address except clouds' metadata services, which hold credentials."""
    if not sources:
        return []
    anywhere: list[Json] = [
        {"namespaceSelector": {}},
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
        {"ipBlock": {"cidr": "::/0", "except": ["fd00:ec2::254/128", "fe80::/10"]}},
    ]
    ports = [_port(port) for port in source.download_ports(owner, sources)]
    return [
        # Port 53 for name servers outside the cluster; cluster DNS pods may listen on another port.
        {"ports": [_port(53, "UDP"), _port(53)]},
        {"to": [_CLUSTER_DNS]},
        {"to": anywhere, "ports": ports},
    ]


_CLUSTER_DNS: Json = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}


def _port(number: int, protocol: str = "TCP") -> Json:
    return {"protocol": protocol, "port": number}

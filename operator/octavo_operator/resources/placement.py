"""Placement and resource claims of pods: the pod fields for `spec.scheduling` and `spec.resources.claims`."""

from __future__ import annotations

import math

from octavo_operator.api.base import ApiBlock, Json
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.api.v1alpha1 import Gpu
from octavo_operator.api.v1alpha1_scheduling import Affinity, PodAffinity
from octavo_operator.resources.common import selector
from octavo_operator.resources.config import quantity

LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
# Node labels of NVIDIA's GPU feature discovery; the memory of one GPU in MiB.
LABEL_GPU_PRODUCT = "nvidia.com/gpu.product"
LABEL_GPU_MEMORY = "nvidia.com/gpu.memory"
LABEL_GPU_COMPUTE_MAJOR = "nvidia.com/gpu.compute.major"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod_fields(owner: LLMDeployment) -> Json:
    """Fields of a pod's spec, without empty ones."""
    scheduling, claims = owner.spec.scheduling, owner.spec.resources.claims
    fields: Json = {
        "nodeSelector": scheduling.node_selector,
        "tolerations": _tolerations(owner),
        "affinity": _affinity(owner, scheduling.affinity or Affinity()),
        "topologySpreadConstraints": [
            _about_own_pods(owner, _plain(spread)) for spread in scheduling.topology_spread_constraints
        ],
        "priorityClassName": scheduling.priority_class_name,
        "runtimeClassName": scheduling.runtime_class_name,
        "schedulerName": scheduling.scheduler_name,
        "resourceClaims": [_plain(claim) for claim in claims],
    }
    return {name: value for name, value in fields.items() if value}


def container_claims(owner: LLMDeployment) -> Json:
    """`resources.claims` of the server container, which gives it access to the pod's claims."""
    claims = [{"name": claim.name} for claim in owner.spec.resources.claims]
    return {"claims": claims} if claims else {}


def queue(owner: LLMDeployment) -> dict[str, str]:
    """Kueue's queue label, for both Deployment and pods: Kueue manages either."""
    name = owner.spec.scheduling.queue_name
    return {LABEL_QUEUE: name} if name else {}


def _plain(block: ApiBlock) -> Json:
    """A block as JSON of the pod API, without default values."""
    return block.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _tolerations(owner: LLMDeployment) -> list[Json]:
    """The tolerations of the spec, plus that for nodes reserved for GPU pods.

    The usual taint of such nodes has the resource's name as its key. Kubernetes' admission plugin
    ExtendedResourceToleration adds the same toleration, but many clusters do not enable it.
    """
    found = [_plain(toleration) for toleration in owner.spec.scheduling.tolerations]
    gpu = owner.spec.resources.gpu
    ours: Json = {"key": gpu.resource_name, "operator": "Exists", "effect": "NoSchedule"}
    return [*found, ours] if gpu.count and ours not in found else found


def _gpu_requirements(gpu: Gpu) -> list[Json]:
    """Node label requirements for the GPU product and memory."""
    found: list[Json] = []
    if gpu.product is not None:
        found.append({"key": LABEL_GPU_PRODUCT, "operator": "In", "values": [gpu.product]})
    if gpu.min_memory is not None:
        found.append({"key": LABEL_GPU_MEMORY, "operator": "Gt", "values": [str(least_mib(gpu) - 1)]})
    return found


def least_mib(gpu: Gpu) -> int:
    """`minMemory` in MiB, the unit of the label; 0 if unset."""
    return math.ceil(quantity(gpu.min_memory) / (1 << 20)) if gpu.min_memory else 0


def _on_gpu_nodes(node: Json, requirements: list[Json]) -> Json:
    """The node affinity with `requirements` added to each term, because the scheduler ORs the terms."""
    needed = node.get(_REQUIRED, {"nodeSelectorTerms": [{"matchExpressions": []}]})
    terms = [{"matchExpressions": [*term["matchExpressions"], *requirements]} for term in needed["nodeSelectorTerms"]]
    return {**node, _REQUIRED: {"nodeSelectorTerms": terms}}


def _affinity(owner: LLMDeployment, affinity: Affinity) -> Json:
    fields = _plain(affinity)
    if requirements := _gpu_requirements(owner.spec.resources.gpu):
        fields["nodeAffinity"] = _on_gpu_nodes(fields.get("nodeAffinity", {}), requirements)
    for name, terms in (("podAffinity", affinity.pod_affinity), ("podAntiAffinity", affinity.pod_anti_affinity)):
        if terms is not None:
            fields[name] = _pod_terms(owner, terms)
    return fields


def _pod_terms(owner: LLMDeployment, affinity: PodAffinity) -> Json:
    required = [
        _about_own_pods(owner, _plain(term)) for term in affinity.required_during_scheduling_ignored_during_execution
    ]
    preferred = [
        {"weight": one.weight, "podAffinityTerm": _about_own_pods(owner, _plain(one.pod_affinity_term))}
        for one in affinity.preferred_during_scheduling_ignored_during_execution
    ]
    fields = {
        "requiredDuringSchedulingIgnoredDuringExecution": required,
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }
    return {name: terms for name, terms in fields.items() if terms}


def _about_own_pods(owner: LLMDeployment, term: Json) -> Json:
    """The term with a selector of the resource's own pods, unless it has one: without, it would match no pod."""
    return {"labelSelector": {"matchLabels": selector(owner)}, **term}

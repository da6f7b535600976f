"""Where pods may run, and what they claim: the fields of a pod that follow from `scheduling` and `resources.claims`."""

from __future__ import annotations

from octavo_operator.api.blocks import Block, Json
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.api.v1alpha1_scheduling import Affinity, PodAffinity
from octavo_operator.builders.common import selector

LABEL_QUEUE = "kueue.x-k8s.io/queue-name"


def pod_fields(owner: LLMDeployment) -> Json:
    """Fields of a pod's spec; what is not given is left out."""
    scheduling, claims = owner.spec.scheduling, owner.spec.resources.claims
    fields: Json = {
        "nodeSelector": scheduling.node_selector,
        "tolerations": [_plain(toleration) for toleration in scheduling.tolerations],
        "affinity": _affinity(owner, scheduling.affinity) if scheduling.affinity else None,
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
    """The part of the server container's `resources` that lets it use the pod's claims."""
    claims = [{"name": claim.name} for claim in owner.spec.resources.claims]
    return {"claims": claims} if claims else {}


def queue(owner: LLMDeployment) -> dict[str, str]:
    """The label by which Kueue knows the queue, of the Deployment and of the pods: it looks at either."""
    name = owner.spec.scheduling.queue_name
    return {LABEL_QUEUE: name} if name else {}


def _plain(block: Block) -> Json:
    """A block as a pod spells it, without what was not given."""
    return block.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _affinity(owner: LLMDeployment, affinity: Affinity) -> Json:
    fields = _plain(affinity)
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
    """A term without a selector would be about no pod at all: here it is about the resource's own."""
    return {"labelSelector": {"matchLabels": selector(owner)}, **term}

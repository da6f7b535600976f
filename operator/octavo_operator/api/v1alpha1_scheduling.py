"""Scheduling of LLMDeployment v1alpha1: the fields of a pod that say where it may run.

They have the names and the meaning they have in a pod, and are spelt out here: what is not a field here cannot reach a
pod. Terms about other pods are about pods of the same namespace.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octavo_operator.api.base import ApiBlock, LabelKey, LabelValue, ObjectName, Rule

_Values = Annotated[tuple[LabelValue, ...], Field(max_length=64)]
_SET = "self.operator in ['In', 'NotIn']"
_NUMBER = "self.operator in ['Gt', 'Lt']"


class Toleration(ApiBlock):
    """A taint that the pods accept."""

    RULES = (
        Rule(
            rule="!has(self.operator) || self.operator != 'Exists' || !has(self.value)",
            message="a toleration with operator Exists has no value: leave value out, or set operator to Equal",
        ),
        Rule(
            rule="has(self.key) || (has(self.operator) && self.operator == 'Exists')",
            message="a toleration without key needs operator Exists: it is for every taint",
        ),
        Rule(
            rule="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            message="tolerationSeconds needs effect NoExecute",
        ),
    )

    key: LabelKey | None = Field(default=None, description="Name of the taint; every taint when not given.")
    operator: Literal["Exists", "Equal"] | None = Field(
        default=None, description="`Exists`: whatever the taint's value; `Equal` when not given."
    )
    value: LabelValue | None = Field(default=None, description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; every effect when not given."
    )
    toleration_seconds: int | None = Field(
        default=None, ge=0, le=604800, description="How long a pod stays on a node that gets the taint."
    )


class LabelRequirement(ApiBlock):
    """What must be true of one label."""

    RULES = (
        Rule(
            rule=f"({_SET}) == (has(self.values) && size(self.values) > 0)",
            message="operators In and NotIn need values; Exists and DoesNotExist have none",
        ),
    )

    key: LabelKey = Field(description="Name of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="How it is compared.")
    values: _Values = Field(default=(), description="The values of In and NotIn.")


class LabelSelector(ApiBlock):
    """Objects by their labels; all that is given must be true."""

    match_labels: Annotated[dict[str, LabelValue], Field(max_length=32)] = Field(
        default={}, description="Labels and their values."
    )
    match_expressions: tuple[LabelRequirement, ...] = Field(
        default=(), max_length=16, description="Requirements on labels."
    )


class NodeRequirement(ApiBlock):
    """What must be true of one label of a node."""

    RULES = (
        Rule(
            rule=f"({_SET} || {_NUMBER}) == (has(self.values) && size(self.values) > 0)",
            message="operators In, NotIn, Gt and Lt need values; Exists and DoesNotExist have none",
        ),
        Rule(
            rule=f"!({_NUMBER}) || (has(self.values) && size(self.values) == 1 && self.values[0].matches('^[0-9]+$'))",
            message="operators Gt and Lt need exactly one value, a whole number",
        ),
    )

    key: LabelKey = Field(description="Name of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(description="How it is compared.")
    values: _Values = Field(default=(), description="The values of In and NotIn; one number for Gt and Lt.")


class NodeTerm(ApiBlock):
    """Nodes by their labels; all requirements must be true."""

    match_expressions: tuple[NodeRequirement, ...] = Field(
        min_length=1, max_length=16, description="Requirements on labels of the node."
    )


class NodeSelector(ApiBlock):
    """Nodes that fit one of the terms."""

    node_selector_terms: tuple[NodeTerm, ...] = Field(
        min_length=1, max_length=16, description="Terms; one must be true."
    )


class PreferredNodes(ApiBlock):
    """Nodes that are better than others."""

    weight: int = Field(ge=1, le=100, description="How much better.")
    preference: NodeTerm = Field(description="The nodes.")


class NodeAffinity(ApiBlock):
    """Nodes that pods need or prefer."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = Field(
        default=None, description="Nodes that pods need."
    )
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredNodes, ...] = Field(
        default=(), max_length=16, description="Nodes that pods prefer."
    )


class PodTerm(ApiBlock):
    """Pods of the same namespace, and how near they are meant."""

    label_selector: LabelSelector | None = Field(
        default=None, description="The other pods; those of this resource when not given."
    )
    topology_key: LabelKey = Field(
        description="Label of nodes: pods on nodes with the same value are in the same place."
    )


class PreferredPods(ApiBlock):
    """Pods that are better company than others."""

    weight: int = Field(ge=1, le=100, description="How much better.")
    pod_affinity_term: PodTerm = Field(description="The pods.")


class PodAffinity(ApiBlock):
    """Pods that the pods must or should be near to (or away from)."""

    required_during_scheduling_ignored_during_execution: tuple[PodTerm, ...] = Field(
        default=(), max_length=16, description="What must be."
    )
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredPods, ...] = Field(
        default=(), max_length=16, description="What should be."
    )


class Affinity(ApiBlock):
    """Nodes and pods that the pods are drawn to, or kept away from."""

    node_affinity: NodeAffinity | None = Field(default=None, description="Nodes that pods need or prefer.")
    pod_affinity: PodAffinity | None = Field(default=None, description="Pods to be near to.")
    pod_anti_affinity: PodAffinity | None = Field(default=None, description="Pods to be away from.")


class TopologySpread(ApiBlock):
    """How evenly the pods are spread over places."""

    RULES = (
        Rule(
            rule="!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
            message="minDomains needs whenUnsatisfiable DoNotSchedule",
        ),
    )

    max_skew: int = Field(ge=1, le=1000, description="Most pods that one place may have more than another.")
    topology_key: LabelKey = Field(
        description="Label of nodes: nodes with the same value are one place, such as `topology.kubernetes.io/zone`."
    )
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        description="What happens to a pod that no place can take."
    )
    label_selector: LabelSelector | None = Field(
        default=None, description="The pods that are counted; those of this resource when not given."
    )
    min_domains: int | None = Field(default=None, ge=1, le=1000, description="Fewest places that count.")
    match_label_keys: Annotated[tuple[LabelKey, ...], Field(max_length=8)] = Field(
        default=(),
        description="Labels whose value a pod has in common with those counted, such as `pod-template-hash`.",
    )
    node_affinity_policy: Literal["Honor", "Ignore"] | None = Field(
        default=None, description="Whether nodes that affinity and nodeSelector exclude count; `Honor` when not given."
    )
    node_taints_policy: Literal["Honor", "Ignore"] | None = Field(
        default=None, description="Whether taints that pods do not tolerate exclude nodes; `Ignore` when not given."
    )


class Scheduling(ApiBlock):
    """Where pods may run; the fields have the meaning they have in a pod."""

    RULES = (
        Rule(
            rule="!has(self.nodeSelector) || self.nodeSelector.all(k, !format.qualifiedName().validate(k).hasValue())",
            message="scheduling.nodeSelector: a key is not the name of a label",
            found="'scheduling.nodeSelector: ' + self.nodeSelector.map(k, k).filter(k, "
            "format.qualifiedName().validate(k).hasValue())[0] + ' is not the name of a label'",
        ),
        Rule(
            rule="!has(self.topologySpreadConstraints) || self.topologySpreadConstraints.all(a, "
            "self.topologySpreadConstraints.exists_one(b, a.topologyKey == b.topologyKey && "
            "a.whenUnsatisfiable == b.whenUnsatisfiable))",
            message="scheduling.topologySpreadConstraints: two have the same topologyKey and whenUnsatisfiable; keep "
            "one of them",
        ),
    )

    node_selector: Annotated[dict[str, LabelValue], Field(max_length=32)] = Field(
        default={}, description="Labels that a node must have."
    )
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=32, description="Taints that the pods accept.")
    affinity: Affinity | None = Field(default=None, description="Nodes and pods to be near to or away from.")
    topology_spread_constraints: tuple[TopologySpread, ...] = Field(
        default=(), max_length=8, description="How evenly the pods are spread."
    )
    priority_class_name: ObjectName | None = Field(default=None, description="Priority class of the pods.")
    runtime_class_name: ObjectName | None = Field(default=None, description="Runtime class of the pods.")
    scheduler_name: ObjectName | None = Field(
        default=None, description="Scheduler that places the pods; the cluster's own when not given."
    )
    queue_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="Local queue of Kueue that admits the pods (label `kueue.x-k8s.io/queue-name`).",
    )

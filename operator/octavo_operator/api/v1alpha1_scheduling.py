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
    """Toleration allows the pods to run on nodes with a matching taint."""

    RULES = (
        Rule(
            rule="!has(self.operator) || self.operator != 'Exists' || !has(self.value)",
            message="scheduling.tolerations[].value must be unset if operator is Exists: leave value out, or set "
            "operator to Equal",
        ),
        Rule(
            rule="has(self.key) || (has(self.operator) && self.operator == 'Exists')",
            message="scheduling.tolerations[] without key requires operator Exists: it matches all keys",
        ),
        Rule(
            rule="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            message="scheduling.tolerations[].tolerationSeconds requires effect NoExecute; set it, or leave "
            "tolerationSeconds out",
        ),
    )

    key: LabelKey | None = Field(
        default=None,
        description="key is the key of the tolerated taint. If unset, all keys match, and operator must be Exists.",
    )
    operator: Literal["Exists", "Equal"] | None = Field(
        default=None,
        description="operator is the relation between value and the value of the taint. Exists matches every value. "
        "Equal matches a taint with the same value. Defaults to Equal.",
    )
    value: LabelValue | None = Field(
        default=None,
        description="value is the value of the tolerated taint. It must be unset if operator is Exists. If unset with "
        "operator Equal, it matches an empty value.",
    )
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None,
        description="effect is the effect of the tolerated taint. NoSchedule keeps new pods off the node. "
        "PreferNoSchedule does so if possible. NoExecute also evicts running pods. If unset, all effects match.",
    )
    toleration_seconds: int | None = Field(
        default=None,
        ge=0,
        le=604800,
        description="tolerationSeconds is the time in seconds for which a pod stays on a node after the taint was "
        "added. Requires effect NoExecute. If 0, the pod is evicted immediately. If unset, the pod is not evicted. "
        "Must be between 0 and 604800.",
    )


class LabelRequirement(ApiBlock):
    """LabelRequirement is a requirement on one label: a key, an operator and values."""

    RULES = (
        Rule(
            rule=f"({_SET}) == (has(self.values) && size(self.values) > 0)",
            message="values must not be empty for the operators In and NotIn, and must be empty for Exists and "
            "DoesNotExist",
        ),
    )

    key: LabelKey = Field(description="key is the key of the label that the requirement applies to.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="operator is the relation between the label and values. In requires that the label has one of the "
        "values. NotIn requires that it has none of them. Exists requires that the label is present. DoesNotExist "
        "requires that it is absent."
    )
    values: _Values = Field(
        default=(),
        description="values are the values for the operators In and NotIn, which require at least one. Must be empty "
        "for Exists and DoesNotExist.",
    )


class LabelSelector(ApiBlock):
    """LabelSelector selects objects by their labels. An object must meet all requirements."""

    match_labels: Annotated[dict[str, LabelValue], Field(max_length=32)] = Field(
        default={},
        description="matchLabels is a map of labels that an object must have. If empty, it excludes no object.",
    )
    match_expressions: tuple[LabelRequirement, ...] = Field(
        default=(),
        max_length=16,
        description="matchExpressions are requirements on the labels of an object. All of them must be met. If empty, "
        "they exclude no object.",
    )


class NodeRequirement(ApiBlock):
    """NodeRequirement is a requirement on one label of a node: a key, an operator and values."""

    RULES = (
        Rule(
            rule=f"({_SET} || {_NUMBER}) == (has(self.values) && size(self.values) > 0)",
            message="values must not be empty for the operators In, NotIn, Gt and Lt, and must be empty for Exists "
            "and DoesNotExist",
        ),
        Rule(
            rule=f"!({_NUMBER}) || (has(self.values) && size(self.values) == 1 && self.values[0].matches('^[0-9]+$'))",
            message="values must have exactly one element for the operators Gt and Lt, a whole number",
        ),
    )

    key: LabelKey = Field(description="key is the key of the node label that the requirement applies to.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(
        description="operator is the relation between the node label and values. In requires that the label has one "
        "of the values. NotIn requires that it has none of them. Exists requires that the label is present. "
        "DoesNotExist requires that it is absent. Gt and Lt require that it is an integer greater or less than the "
        "value."
    )
    values: _Values = Field(
        default=(),
        description="values are the values for the operators In, NotIn, Gt and Lt. In and NotIn require at least one. "
        "Gt and Lt require exactly one, a whole number. Must be empty for Exists and DoesNotExist.",
    )


class NodeTerm(ApiBlock):
    """NodeTerm selects nodes by their labels. A node must meet all requirements."""

    match_expressions: tuple[NodeRequirement, ...] = Field(
        min_length=1,
        max_length=16,
        description="matchExpressions are requirements on the labels of a node. All of them must be met.",
    )


class NodeSelector(ApiBlock):
    """NodeSelector selects the nodes that match at least one of its terms."""

    node_selector_terms: tuple[NodeTerm, ...] = Field(
        min_length=1,
        max_length=16,
        description="nodeSelectorTerms are the terms of the selector. A node is selected if it matches at least one "
        "of them.",
    )


class PreferredNodes(ApiBlock):
    """PreferredNodes is a term for nodes that the scheduler prefers, and its weight."""

    weight: int = Field(
        ge=1,
        le=100,
        description="weight is the score that a node receives if it matches preference. The scheduler prefers nodes "
        "with a higher sum of weights. Must be between 1 and 100.",
    )
    preference: NodeTerm = Field(description="preference is the term that selects the preferred nodes.")


class NodeAffinity(ApiBlock):
    """NodeAffinity defines the nodes on which the pods must or should run."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = Field(
        default=None,
        description="requiredDuringSchedulingIgnoredDuringExecution selects the nodes on which the pods can be "
        "scheduled. A later change of a node's labels does not evict running pods. If unset, all nodes are allowed.",
    )
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredNodes, ...] = Field(
        default=(),
        max_length=16,
        description="preferredDuringSchedulingIgnoredDuringExecution are the nodes on which the pods should be "
        "scheduled if possible, with weights. The scheduler prefers nodes with a higher sum of weights. If empty, no "
        "node is preferred.",
    )


class PodTerm(ApiBlock):
    """PodTerm selects pods in the same namespace, and the topology domain that is compared."""

    label_selector: LabelSelector | None = Field(
        default=None,
        description="labelSelector selects the pods that the term refers to. If unset, the pods of this LLMDeployment "
        "are selected.",
    )
    topology_key: LabelKey = Field(
        description="topologyKey is the key of the node label that defines a topology domain. Nodes with the same "
        "value of this label are in the same domain."
    )


class PreferredPods(ApiBlock):
    """PreferredPods is a term for pods that the scheduler takes into account if possible, and its weight."""

    weight: int = Field(
        ge=1,
        le=100,
        description="weight is added to the score of a node that meets podAffinityTerm, or subtracted from it in "
        "podAntiAffinity. The scheduler prefers nodes with a higher score. Must be between 1 and 100.",
    )
    pod_affinity_term: PodTerm = Field(
        description="podAffinityTerm selects the pods and the topology domain that the weight applies to."
    )


class PodAffinity(ApiBlock):
    """PodAffinity defines other pods whose topology domain the pods must or should share, or avoid."""

    required_during_scheduling_ignored_during_execution: tuple[PodTerm, ...] = Field(
        default=(),
        max_length=16,
        description="requiredDuringSchedulingIgnoredDuringExecution are the terms that a node must meet for the pods "
        "to be scheduled on it. All terms must be met. A later change of labels does not evict running pods. If "
        "empty, all nodes are allowed.",
    )
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredPods, ...] = Field(
        default=(),
        max_length=16,
        description="preferredDuringSchedulingIgnoredDuringExecution are the terms that a node should meet if "
        "possible, with weights. The scheduler prefers nodes with a higher sum of weights. If empty, no node is "
        "preferred.",
    )


class Affinity(ApiBlock):
    """Affinity is a group of scheduling rules for the pods, by nodes and by other pods."""

    node_affinity: NodeAffinity | None = Field(
        default=None,
        description="nodeAffinity defines the nodes on which the pods must or should run. If unset, node labels are "
        "not considered.",
    )
    pod_affinity: PodAffinity | None = Field(
        default=None,
        description="podAffinity defines other pods with which the pods must or should share a topology domain. If "
        "unset, there are none.",
    )
    pod_anti_affinity: PodAffinity | None = Field(
        default=None,
        description="podAntiAffinity defines other pods with which the pods must not or should not share a topology "
        "domain. If unset, there are none.",
    )


class TopologySpread(ApiBlock):
    """TopologySpread defines how evenly the pods are spread over topology domains."""

    RULES = (
        Rule(
            rule="!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
            message="minDomains requires whenUnsatisfiable DoNotSchedule; set it, or leave minDomains out",
        ),
    )

    max_skew: int = Field(
        ge=1,
        le=1000,
        description="maxSkew is the maximum number of pods that a topology domain can have more than the domain with "
        "the fewest pods. Must be between 1 and 1000.",
    )
    topology_key: LabelKey = Field(
        description="topologyKey is the key of the node label that defines a topology domain, for example "
        "`topology.kubernetes.io/zone`. Nodes with the same value of this label are in the same domain."
    )
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        description="whenUnsatisfiable is the action for a pod that would exceed maxSkew on every node. DoNotSchedule "
        "leaves the pod unscheduled. ScheduleAnyway schedules it, and prefers nodes that reduce the skew."
    )
    label_selector: LabelSelector | None = Field(
        default=None,
        description="labelSelector selects the pods that are counted in each topology domain. If unset, the pods of "
        "this LLMDeployment are counted.",
    )
    min_domains: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="minDomains is the minimum number of topology domains. If there are fewer, the domain with the "
        "fewest pods counts as empty. Requires whenUnsatisfiable DoNotSchedule. Must be between 1 and 1000. Defaults "
        "to 1.",
    )
    match_label_keys: Annotated[tuple[LabelKey, ...], Field(max_length=8)] = Field(
        default=(),
        description="matchLabelKeys are keys of pod labels, for example `pod-template-hash`. Only pods that have the "
        "same values for these keys as the new pod are counted. If empty, labelSelector alone selects the pods.",
    )
    node_affinity_policy: Literal["Honor", "Ignore"] | None = Field(
        default=None,
        description="nodeAffinityPolicy is the treatment of nodes that do not match the affinity and nodeSelector of "
        "the pods. Honor excludes these nodes from the domains. Ignore includes them. Defaults to Honor.",
    )
    node_taints_policy: Literal["Honor", "Ignore"] | None = Field(
        default=None,
        description="nodeTaintsPolicy is the treatment of nodes with taints that the pods do not tolerate. Honor "
        "excludes these nodes from the domains. Ignore includes them. Defaults to Ignore.",
    )


class Scheduling(ApiBlock):
    """Scheduling defines the nodes on which the pods can run. The fields have the same meaning as in a pod."""

    RULES = (
        Rule(
            rule="!has(self.nodeSelector) || self.nodeSelector.all(k, !format.qualifiedName().validate(k).hasValue())",
            message="scheduling.nodeSelector has a key that is not a label key",
            found="'scheduling.nodeSelector: ' + self.nodeSelector.map(k, k).filter(k, "
            "format.qualifiedName().validate(k).hasValue())[0] + ' is not a label key'",
        ),
        Rule(
            rule="!has(self.topologySpreadConstraints) || self.topologySpreadConstraints.all(a, "
            "self.topologySpreadConstraints.exists_one(b, a.topologyKey == b.topologyKey && "
            "a.whenUnsatisfiable == b.whenUnsatisfiable))",
            message="scheduling.topologySpreadConstraints must not contain two with the same topologyKey and "
            "whenUnsatisfiable; remove one of them",
        ),
    )

    node_selector: Annotated[dict[str, LabelValue], Field(max_length=32)] = Field(
        default={},
        description="nodeSelector is a map of labels that a node must have for the pods to be scheduled on it. If "
        "empty, all nodes are allowed.",
    )
    tolerations: tuple[Toleration, ...] = Field(
        default=(),
        max_length=32,
        description="tolerations are the taints that the pods tolerate. Pods with GPUs also tolerate the taint "
        "NoSchedule whose key is resources.gpu.resourceName. If empty, no other taint is tolerated.",
    )
    affinity: Affinity | None = Field(
        default=None,
        description="affinity is a group of scheduling rules for the pods, by nodes and by other pods. If unset, "
        "there are none.",
    )
    topology_spread_constraints: tuple[TopologySpread, ...] = Field(
        default=(),
        max_length=8,
        description="topologySpreadConstraints define how the pods are spread over topology domains. All constraints "
        "are combined. If empty, the default constraints of the scheduler apply.",
    )
    priority_class_name: ObjectName | None = Field(
        default=None,
        description="priorityClassName is the name of the PriorityClass of the pods. If unset, the class of the "
        "resource profile is used, or the default priority of the cluster.",
    )
    runtime_class_name: ObjectName | None = Field(
        default=None,
        description="runtimeClassName is the name of the RuntimeClass of the pods. If unset, the class of the "
        "resource profile is used, or the default runtime of the node.",
    )
    scheduler_name: ObjectName | None = Field(
        default=None,
        description="schedulerName is the name of the scheduler that places the pods. If unset, the default scheduler "
        "of the cluster is used.",
    )
    queue_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="queueName is the name of the Kueue LocalQueue that admits the pods. It becomes the label "
        "`kueue.x-k8s.io/queue-name` of the Deployment and its pods. If unset, the pods are not queued.",
    )

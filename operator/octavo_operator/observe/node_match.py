"""Whether a pod may run on a node: its selector, required affinity and tolerations, as the scheduler compares them."""

from __future__ import annotations

from collections.abc import Mapping

from octavo_operator.api.base import Json

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})
# Taints that Kubernetes sets for a node's current state (not ready, cordoned, out of memory) and removes itself.
_STATE = "node.kubernetes.io/"


def may_run_on(pod: Json, node: Json) -> bool:
    """True if `pod`, fields of a pod's spec, allows this node in general: its current state is not compared."""
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    taints = [taint for taint in (node.get("spec") or {}).get("taints") or [] if _lasts(taint)]
    selector: Mapping[str, str] = pod.get("nodeSelector") or {}
    required = pod.get("affinity", {}).get("nodeAffinity", {}).get(_REQUIRED)
    return (
        all(labels.get(key) == value for key, value in selector.items())
        and (required is None or any(_meets(term, labels) for term in required["nodeSelectorTerms"]))
        and all(_tolerated(taint, pod.get("tolerations") or []) for taint in taints)
    )


def _lasts(taint: Json) -> bool:
    return taint["effect"] in _KEEPS_AWAY and not taint["key"].startswith(_STATE)


def _meets(term: Json, labels: Mapping[str, str]) -> bool:
    return all(_fulfilled(requirement, labels) for requirement in term["matchExpressions"])


def _fulfilled(requirement: Json, labels: Mapping[str, str]) -> bool:
    found, values = labels.get(requirement["key"]), list(requirement.get("values", ()))
    match requirement["operator"]:
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case operator:
            if found is None or not found.isdecimal():
                return False
            return int(found) > int(values[0]) if operator == "Gt" else int(found) < int(values[0])


def _tolerated(taint: Json, tolerations: list[Json]) -> bool:
    return any(
        toleration.get("effect", taint["effect"]) == taint["effect"]
        and toleration.get("key", taint["key"]) == taint["key"]
        and (toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""))
        for toleration in tolerations
    )

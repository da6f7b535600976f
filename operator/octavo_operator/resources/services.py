"""How pods are reached, and as whom they run."""

from __future__ import annotations

from octavo_operator.api.base import Json
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.resources.common import canary_name, canary_selector, child, selector
from octavo_protocol import names


def service(owner: LLMDeployment, cold_start: int | None, percent: int = 0, step: str = "", stuck: str = "") -> Json:
    """The stable address of the ready pods; its annotations are all the gateway knows of the resource.

    `cold_start`: seconds from the creation of a pod to its readiness, None when never measured. `percent` of the
    requests go to the canary, and what comes of them is counted under `step`; empty when there is none. `stuck`: the
    reason for which no replica can start, empty while one may.
    """
    annotations = {
        names.ANNOTATION_MODELS: ",".join(owner.model_names),
        names.ANNOTATION_HOLD: "true" if _holds(owner) else "false",
    }
    annotations |= _routing(owner)
    if owner.spec.suspend:
        annotations[names.ANNOTATION_SUSPENDED] = "true"
    if stuck:
        annotations[names.ANNOTATION_STUCK] = stuck
    if cold_start is not None:
        annotations[names.ANNOTATION_COLD_START] = str(cold_start)
    if step:
        annotations |= {names.ANNOTATION_CANARY_PERCENT: str(percent), names.ANNOTATION_CANARY_STEP: step}
    body = child(owner, "v1", "Service", owner.name, annotations)
    body["spec"] = {"type": "ClusterIP", "selector": selector(owner), "ports": [_API]}
    return body


def _routing(owner: LLMDeployment) -> dict[str, str]:
    """What differs from the gateways' defaults."""
    routing = owner.spec.routing
    found: dict[str, str] = {}
    if routing.strategy != "PrefixAware":
        found[names.ANNOTATION_STRATEGY] = routing.strategy
    if routing.max_load_percent_of_mean is not None:
        found[names.ANNOTATION_MAX_LOAD] = str(routing.max_load_percent_of_mean)
    if routing.session_header is not None:
        found[names.ANNOTATION_SESSION_HEADER] = routing.session_header
    return found


def _holds(owner: LLMDeployment) -> bool:
    """Whether waiting makes sense: not where nobody will start a replica."""
    nobody = owner.spec.autoscaling.mode == "Manual" and owner.spec.replicas == 0
    return not (owner.spec.suspend or nobody)


def headless_service(owner: LLMDeployment) -> Json:
    """DNS names and endpoints of every pod, ready or not."""
    body = child(owner, "v1", "Service", f"{owner.name}-pods")
    body["spec"] = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(owner),
        "ports": [_API, _ADMIN],
    }
    return body


def canary_service(owner: LLMDeployment) -> Json:
    """Tells gateways which of the pods are the canary's."""
    body = child(owner, "v1", "Service", canary_name(owner))
    body["metadata"]["labels"] |= {names.LABEL_TRACK: names.TRACK_CANARY}
    body["spec"] = {"type": "ClusterIP", "selector": canary_selector(owner), "ports": [_API]}
    return body


def service_account(owner: LLMDeployment) -> Json:
    """The pods' identity: one without rights and without a token."""
    return {**child(owner, "v1", "ServiceAccount", owner.name), "automountServiceAccountToken": False}


def address(owner: LLMDeployment, gateway_url: str | None) -> str:
    """OpenAI base address for clients inside the cluster: the gateway's, or the Service's own."""
    base = gateway_url or f"http://{owner.name}.{owner.namespace}.svc:{names.PORT_API}"
    return f"{base.rstrip('/')}/v1"


_API: Json = {
    "name": names.PORT_NAME_API,
    "port": names.PORT_API,
    "targetPort": names.PORT_NAME_API,
    "protocol": "TCP",
    "appProtocol": "http",
}
_ADMIN: Json = {
    "name": names.PORT_NAME_ADMIN,
    "port": names.PORT_ADMIN,
    "targetPort": names.PORT_NAME_ADMIN,
    "protocol": "TCP",
    "appProtocol": "http",
}

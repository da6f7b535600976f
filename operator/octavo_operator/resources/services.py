"""Services and the ServiceAccount of the pods."""

from __future__ import annotations

from octavo_operator.api.base import Json
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.resources.common import canary_name, canary_selector, child, selector
from octavo_protocol import names


def service(owner: LLMDeployment, cold_start: int | None, percent: int = 0, step: str = "", stuck: str = "") -> Json:
    """The stable address of the ready pods; through its annotations the gateway learns about the resource.

    `cold_start`: seconds from the creation of a pod to its readiness, None if never measured. `percent` of the
    requests go to the canary; their results are counted under `step`, empty without a canary. `stuck`: the reason why
    no replica can start, empty while one may.
    """
    annotations = {
        names.ANNOTATION_MODELS: ",".join(owner.model_names),
        names.ANNOTATION_HOLD: "true" if _holds(owner) else "false",
    }
    if owner.spec.model.adapters:
        annotations[names.ANNOTATION_ADAPTERS] = ",".join(adapter.name for adapter in owner.spec.model.adapters)
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
    """Annotations for routing fields that differ from the gateways' defaults."""
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
    """True if the gateway should hold requests: false where no controller will start a replica."""
    manual_zero = owner.spec.autoscaling.mode == "Manual" and owner.spec.replicas == 0
    return not (owner.spec.suspend or manual_zero)


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
    """The Service by which gateways identify the canary's pods."""
    body = child(owner, "v1", "Service", canary_name(owner))
    body["metadata"]["labels"] |= {names.LABEL_TRACK: names.TRACK_CANARY}
    body["spec"] = {"type": "ClusterIP", "selector": canary_selector(owner), "ports": [_API]}
    return body


def service_account(owner: LLMDeployment) -> Json:
    """The pods' ServiceAccount, without permissions and without a token."""
    return {**child(owner, "v1", "ServiceAccount", owner.name), "automountServiceAccountToken": False}


def address(owner: LLMDeployment, gateway_url: str | None) -> str:
    """OpenAI base URL for clients inside the cluster: that of the gateway, else of the Service."""
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

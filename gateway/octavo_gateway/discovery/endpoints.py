"""Builds the table of models and their pods from Services and EndpointSlices. Pure: objects in, table out.

Objects are decoded JSON as the API server sends it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from octavo_gateway.routing.candidate import STRATEGIES, Policy
from octavo_protocol import names
from octavo_protocol.adapters import MAX_ADAPTERS, is_adapter_name

Object = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace and name of an LLMDeployment."""

DEFAULT_COLD_START = 30.0
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}\Z")
DEFAULT_SESSION_HEADER = "x-session-id"
DEFAULT_POLICY = Policy()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One pod's addresses. `admin_url` is empty if the pod has no second port: its load is not polled."""

    name: str
    url: str
    admin_url: str = ""
    ready: bool = True
    canary: bool = False


@dataclass(frozen=True, slots=True)
class Deployment:
    """The gateway's view of one LLMDeployment. `models`: served name first, then aliases. `cold_start` in seconds.

    `canary_percent` of the requests go to the pods of a canary. `canary_step` names the step that requests are counted
    for, empty without a canary. `stuck`: the reason why no replica can start, empty while one can. `adapters`: names of
    its LoRA adapters, as far as they are configured; replicas may report more.
    """

    namespace: str
    name: str
    models: tuple[str, ...]
    hold: bool = False
    cold_start: float = DEFAULT_COLD_START
    created: int = 0
    endpoints: tuple[Endpoint, ...] = ()
    canary_percent: int = 0
    canary_step: str = ""
    suspended: bool = False
    stuck: str = ""
    policy: Policy = DEFAULT_POLICY
    session_header: str = DEFAULT_SESSION_HEADER
    adapters: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a request may use for it, without those of its adapters."""
        return (*self.models, f"{self.namespace}/{self.name}")

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class ModelTable:
    """All LLMDeployments by key, and the key of each model name."""

    deployments: dict[Key, Deployment] = field(default_factory=dict)
    models: dict[str, Key] = field(default_factory=dict)
    conflicts: tuple[str, ...] = ()

    def find(self, model: str) -> Deployment | None:
        """The LLMDeployment that serves `model`: a served name, an alias, or `namespace/name`."""
        key = self.models.get(model)
        if key is None:
            namespace, _, name = model.partition("/")
            key = (namespace, name)
        return self.deployments.get(key)


def table(deployments: Iterable[Deployment]) -> ModelTable:
    """Index deployments. A model name claimed twice belongs to the first by namespace and name, and is reported."""
    ordered = sorted(deployments, key=lambda deployment: deployment.key)
    models: dict[str, Key] = {}
    conflicts: list[str] = []
    for deployment in ordered:
        for model in deployment.models:
            owner = models.setdefault(model, deployment.key)
            if owner != deployment.key:
                conflicts.append(f"{model}: {'/'.join(owner)} and {'/'.join(deployment.key)}")
    return ModelTable({deployment.key: deployment for deployment in ordered}, models, tuple(conflicts))


def build(services: Iterable[Object], slices: Iterable[Object]) -> ModelTable:
    """Build the table from the objects of all watched namespaces."""
    endpoints: dict[Key, dict[str, Endpoint]] = defaultdict(dict)
    for item in slices:
        key = _key(item)
        if key is not None:
            for endpoint in _endpoints(item):
                known = endpoints[key].get(endpoint.url, endpoint)
                endpoints[key][endpoint.url] = _merged(known, endpoint)
    found: dict[Key, Deployment] = {}
    for item in services:
        key = _key(item)
        annotations = item["metadata"].get("annotations") or {}
        if key is not None and names.ANNOTATION_MODELS in annotations:
            found[key] = _deployment(key, item, annotations, tuple(endpoints[key].values()))
    return table(found.values())


def _key(item: Object) -> Key | None:
    metadata = item["metadata"]
    name = (metadata.get("labels") or {}).get(names.LABEL_NAME)
    return (metadata["namespace"], name) if name else None


def _merged(one: Endpoint, other: Endpoint) -> Endpoint:
    """Merge a pod that several Services list, each with its own ports: ready only if it is ready in all of them."""
    return replace(
        one,
        admin_url=one.admin_url or other.admin_url,
        ready=one.ready and other.ready,
        canary=one.canary or other.canary,
    )


def _deployment(key: Key, service: Object, annotations: Mapping[str, str], pods: tuple[Endpoint, ...]) -> Deployment:
    models = tuple(model.strip() for model in annotations[names.ANNOTATION_MODELS].split(",") if model.strip())
    try:
        cold_start = float(annotations.get(names.ANNOTATION_COLD_START, DEFAULT_COLD_START))
    except ValueError:
        cold_start = DEFAULT_COLD_START
    created = service["metadata"].get("creationTimestamp")
    return Deployment(
        namespace=key[0],
        name=key[1],
        models=models or (key[1],),
        hold=annotations.get(names.ANNOTATION_HOLD) == "true",
        suspended=annotations.get(names.ANNOTATION_SUSPENDED) == "true",
        stuck=_reason(annotations.get(names.ANNOTATION_STUCK, "")),
        cold_start=cold_start if 0 < cold_start < float("inf") else DEFAULT_COLD_START,
        created=int(datetime.fromisoformat(created).timestamp()) if created else 0,
        endpoints=pods,
        canary_percent=_percent(annotations.get(names.ANNOTATION_CANARY_PERCENT, "")),
        canary_step=annotations.get(names.ANNOTATION_CANARY_STEP, ""),
        policy=_policy(annotations),
        session_header=annotations.get(names.ANNOTATION_SESSION_HEADER) or DEFAULT_SESSION_HEADER,
        adapters=_adapters(annotations.get(names.ANNOTATION_ADAPTERS, "")),
    )


def _adapters(text: str) -> tuple[str, ...]:
    """The names of adapters, without invalid ones."""
    found = dict.fromkeys(name.strip() for name in text.split(","))
    return tuple(name for name in found if is_adapter_name(name))[:MAX_ADAPTERS]


def _policy(annotations: Mapping[str, str]) -> Policy:
    """The routing policy; an invalid value counts as the default."""
    strategy = annotations.get(names.ANNOTATION_STRATEGY, "")
    percent = annotations.get(names.ANNOTATION_MAX_LOAD, "")
    return Policy(
        strategy if strategy in STRATEGIES else DEFAULT_POLICY.strategy,
        int(percent) / 100 if percent.isdecimal() and 100 < int(percent) <= 1000 else DEFAULT_POLICY.max_load,
    )


def _reason(text: str) -> str:
    """A reason in the syntax of Kubernetes; any other text becomes Unknown, because clients receive the reason."""
    return text if _REASON.match(text) else "Unknown" if text else ""


def _percent(text: str) -> int:
    """A percentage of the requests; a value outside 0 to 100 counts as 0."""
    return int(text) if text.isdecimal() and int(text) <= 100 else 0


def _endpoints(item: Object) -> Iterable[Endpoint]:
    ports = {port.get("name"): port["port"] for port in item.get("ports") or () if port.get("port")}
    api, admin = ports.get(names.PORT_NAME_API), ports.get(names.PORT_NAME_ADMIN)
    if not api:
        return
    canary = (item["metadata"].get("labels") or {}).get(names.LABEL_TRACK) == names.TRACK_CANARY
    for endpoint in item.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        # `serving` is the pod's readiness; `ready` is always true for a Service with publishNotReadyAddresses. An
        # absent value means unknown, which the API defines to count as true. A terminating pod gets no new request.
        serving = conditions.get("serving", conditions.get("ready"))
        ready = serving is not False and not conditions.get("terminating")
        for address in endpoint.get("addresses") or ():
            host = f"[{address}]" if ":" in address else address
            yield Endpoint(
                name=(endpoint.get("targetRef") or {}).get("name") or address,
                url=f"http://{host}:{api}",
                admin_url=f"http://{host}:{admin}" if admin else "",
                ready=ready,
                canary=canary,
            )

"""The decision of one pass: from the wanted and the observed state to actions and a status. No I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_operator.api.blocks import QUANTITY, Json
from octavo_operator.api.resource import LLMDeployment, digest
from octavo_operator.builders import config, protection, services
from octavo_operator.builders import deployment as deployments
from octavo_operator.builders.common import Installation
from octavo_operator.builders.config import quantity
from octavo_operator.reconcile.pods import Pod
from octavo_operator.reconcile.scale import Mark, Scale, scale, wanted
from octavo_operator.reconcile.status import next_status
from octavo_operator.reconcile.view import Load, Scaling, View
from octavo_protocol import names

# Hash of a child as it was last applied: tells what we no longer want, which a look at the live object cannot.
ANNOTATION_APPLIED = f"{names.API_GROUP}/applied"
ChildId = tuple[str, str]
EVENTS_SECONDS = 15.0
_LIST_KEYS = ("name", "mountPath", "uid")
_QUANTITY = re.compile(QUANTITY)


@dataclass(frozen=True, slots=True)
class Observed:
    """What was read: children by (kind, name), pods, and what the sampling loop knows.

    `refused`: what the API server answered to the actions of this very state, when it refused them.
    """

    children: Mapping[ChildId, Json] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    load: Load | None = None
    scaling: Scaling | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a child."""

    body: Json


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletion of exactly this child."""

    kind: str
    name: str
    uid: str


Action = Apply | Delete | Mark


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in order, the status to write (if it differs), and seconds until time itself asks for another pass.

    `replicas` is the Deployment's number once the actions are done.
    """

    actions: tuple[Action, ...]
    status: Json
    replicas: int
    requeue_after: float | None = None


def child_ids(owner: LLMDeployment) -> tuple[ChildId, ...]:
    """Children with fixed names: those a pass reads one by one, so that it sees a stranger of the same name."""
    return (
        ("ServiceAccount", owner.name),
        ("NetworkPolicy", owner.name),
        ("PodDisruptionBudget", owner.name),
        ("Service", owner.name),
        ("Service", f"{owner.name}-pods"),
        ("Deployment", owner.name),
    )


def plan(owner: LLMDeployment, installation: Installation, observed: Observed, now: float) -> Plan:
    """What to do for `owner`. Without a difference between wanted and observed state: nothing."""
    live = observed.children.get(("Deployment", owner.name))
    current = None if live is None else live.get("spec", {}).get("replicas", 1)
    recommended = observed.scaling.desired if observed.scaling else None
    target = wanted(owner.spec, current, recommended)
    settings = config.config_map(owner)
    view = View(
        owner=owner,
        pods=observed.pods,
        target=target,
        url=services.address(owner, installation.gateway_url),
        deployment=live,
        load=observed.load,
        scaling=observed.scaling,
        conflict=_strangers(owner, settings, observed.children),
        refused=observed.refused,
    )
    status = next_status(view, now)
    if view.conflict:
        return Plan((), status, current or 0)
    work = observed.load.work if observed.load else {}
    step = scale(current, target, observed.pods, owner.revision, work, now)
    actions = _actions(owner, installation, observed, settings, step, status)
    return Plan(tuple(actions), status, step.replicas, _soonest(step.wait, _patience(observed.pods)))


def _soonest(*delays: float | None) -> float | None:
    return min((delay for delay in delays if delay is not None), default=None)


def _patience(pods: Sequence[Pod]) -> float | None:
    """Why a volume cannot be mounted stands in events alone, which nobody watches: look again while a pod waits."""
    return EVENTS_SECONDS if any(pod.active and not pod.loaded for pod in pods) else None


def _actions(
    owner: LLMDeployment, installation: Installation, observed: Observed, settings: Json, step: Scale, status: Json
) -> list[Action]:
    live = observed.children.get(("Deployment", owner.name))
    template = deployments.applied_template(live, owner.revision)
    if template is not None and not _has_config(template, settings, observed.children):
        template = None
    if template is None:
        template = deployments.pod_template(owner, installation, settings["metadata"]["name"])
    cold_start = status.get("capacity", {}).get("coldStartSeconds")
    bodies = [services.service_account(owner)]
    if deployments.config_name(template) == settings["metadata"]["name"]:
        bodies.append(settings)
    if owner.spec.availability.network_policy:
        bodies.append(protection.network_policy(owner, installation))
    if owner.spec.availability.pod_disruption_budget:
        bodies.append(protection.disruption_budget(owner))
    bodies += [
        services.service(owner, cold_start),
        services.headless_service(owner),
        deployments.deployment(owner, template, step.replicas),
    ]
    applies: list[Action] = []
    for body in map(_stamped, bodies):
        present = observed.children.get((body["kind"], body["metadata"]["name"]))
        if present is None or not _covers(present, body):
            applies.append(Apply(body))
    # The marks go first: they must be on the pods before the Deployment's number moves.
    return [*step.marks, *applies, *_deletions(owner, observed, {_id(body) for body in bodies}, template)]


def _has_config(template: Json, settings: Json, children: Mapping[ChildId, Json]) -> bool:
    """Whether the settings a pinned template mounts are there, or can be made again."""
    name = deployments.config_name(template)
    return name == settings["metadata"]["name"] or ("ConfigMap", name) in children


def _deletions(owner: LLMDeployment, observed: Observed, kept: set[ChildId], template: Json) -> list[Action]:
    """Children no longer wanted: protections switched off, and settings that no pod uses any more."""
    in_use = {deployments.config_name(template), *(pod.config for pod in observed.pods)}
    gone: list[Action] = []
    for (kind, name), body in observed.children.items():
        unused = name not in in_use if kind == "ConfigMap" else (kind, name) not in kept
        if unused and _is_ours(owner, body):
            gone.append(Delete(kind, name, body["metadata"]["uid"]))
    return gone


def _strangers(owner: LLMDeployment, settings: Json, children: Mapping[ChildId, Json]) -> str:
    """Objects that have a child's name and are not ours, as a message; empty when there are none."""
    needed = (*child_ids(owner), _id(settings))
    found = [(name, children[name]) for name in needed if name in children and not _is_ours(owner, children[name])]
    if not found:
        return ""
    listed = ", ".join(f"{kind} {name}" for (kind, name), _ in found)
    if all(ref.get("kind") == names.KIND for _, body in found for ref in body["metadata"].get("ownerReferences", [{}])):
        return f"metadata.name: {listed} belongs to a deleted LLMDeployment of this name and is not gone yet"
    return (
        f"metadata.name: {listed} exists and does not belong to this LLMDeployment; "
        "delete or rename it, or use another name"
    )


def _is_ours(owner: LLMDeployment, body: Json) -> bool:
    return any(ref.get("uid") == owner.uid for ref in body["metadata"].get("ownerReferences", []))


def _id(body: Json) -> ChildId:
    return body["kind"], body["metadata"]["name"]


def _stamped(body: Json) -> Json:
    """The body with its own hash among its annotations."""
    metadata = body["metadata"]
    annotations = {**metadata.get("annotations", {}), ANNOTATION_APPLIED: digest(body)}
    return {**body, "metadata": {**metadata, "annotations": annotations}}


def _covers(live: Any, part: Any) -> bool:
    """Whether `live` has everything of `part`; what the API server added or spells differently does not matter.

    Together with the stamp, which is another one when the body no longer has a field, this is "nothing to apply".
    """
    if part in ({}, []) and live is None:
        return True
    if isinstance(part, dict):
        return isinstance(live, dict) and all(_covers(live.get(key), value) for key, value in part.items())
    if isinstance(part, list):
        return isinstance(live, list) and _covers_list(live, part)
    return bool(live == part) or _same_quantity(live, part)


def _covers_list(live: list[Any], part: list[Any]) -> bool:
    """Entries with a key may stand beside those of others (an injected container); other lists are ours as a whole."""
    if part and all(isinstance(entry, dict) and any(key in entry for key in _LIST_KEYS) for entry in part):
        return all(any(_covers(one, entry) for one in live) for entry in part)
    return len(live) == len(part) and all(_covers(one, entry) for one, entry in zip(live, part, strict=True))


def _same_quantity(live: Any, part: Any) -> bool:
    """The API server writes `1000m` as `1`."""
    both = isinstance(live, str) and isinstance(part, str)
    return both and all(_QUANTITY.match(text) for text in (live, part)) and quantity(live) == quantity(part)

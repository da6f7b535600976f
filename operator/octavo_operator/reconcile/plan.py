"""Plans one pass: from the desired and the observed state to actions and a status. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_operator.api.base import QUANTITY, Json
from octavo_operator.api.resource import LLMDeployment, digest
from octavo_operator.observe.adapters import InspectedAdapter, inspected_adapters, pinned, wanted_list
from octavo_operator.observe.diagnosis import HOPELESS
from octavo_operator.observe.fit import MemoryFit, expected, refusal
from octavo_operator.observe.gpu_fit import Card
from octavo_operator.observe.inspection import (
    Inspection,
    InspectionFailed,
    Model,
    Resolved,
    recorded_pins,
    resolve,
    waiting,
)
from octavo_operator.observe.pods import Pod, Problem
from octavo_operator.resources import (
    adapter_job,
    adapters,
    cache,
    config,
    draft,
    model_job,
    protection,
    revision,
    services,
)
from octavo_operator.resources import deployment as deployments
from octavo_operator.resources.common import LABEL_REVISION, Installation, canary_name
from octavo_operator.resources.config import quantity
from octavo_operator.resources.revision import Revision
from octavo_operator.rollout.plan import RolloutInput, RolloutPlan, deadline, plan_rollout
from octavo_operator.rollout.replicas import PodAnnotations, Scale, scale, wanted
from octavo_operator.status.input import Load, Scaling, StatusInput
from octavo_operator.status.status import next_status
from octavo_protocol import names
from octavo_protocol.adapters import AdapterInspection

# Hash of a child as last applied. It shows fields that were removed since, which the live object alone cannot.
ANNOTATION_APPLIED = f"{names.API_GROUP}/applied"
ChildId = tuple[str, str]
EVENTS_SECONDS = 15.0
CARDS_SECONDS = 60.0
# Inspections of adapters that run at the same time.
_ADAPTER_JOBS = 4
_LIST_KEYS = ("name", "mountPath", "uid")
_QUANTITY = re.compile(QUANTITY)


@dataclass(frozen=True, slots=True)
class Observed:
    """Observed state: children by (kind, name), pods, and the autoscaler's latest load and decision.

    `adapter_inspections`: those of adapters, by the name of their Job. `versions`: resource versions of all objects
    that were read, by uid. `inspection_problems`: why the model inspection
    Job has no pod. `refused`: the API server's message when it refused the actions planned for this state. `cards`:
    GPUs of the nodes on which the pods may run; None if they are unknown.
    """

    children: Mapping[ChildId, Json] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    inspection: Inspection | None = None
    adapter_inspections: Mapping[str, Inspection] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    inspection_problems: tuple[Problem, ...] = ()
    claim_events: Sequence[Json] = ()
    load: Load | None = None
    scaling: Scaling | None = None
    refused: str = ""
    cards: tuple[Card, ...] | None = None


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply a child (server-side apply)."""

    body: Json


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete this child, by uid."""

    kind: str
    name: str
    uid: str


Action = Apply | Delete | PodAnnotations


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in order, the status to write if it differs, and seconds until the next pass is due without an event.

    `replicas`: replicas of the Deployment after the actions.
    """

    actions: tuple[Action, ...]
    status: Json
    replicas: int
    requeue_after: float | None = None


def child_ids(owner: LLMDeployment, revisions: Iterable[Json]) -> tuple[ChildId, ...]:
    """Children with fixed names. A pass gets them by name, to find foreign objects of the same name, too.

    A canary's children are included if the spec has a canary or a revision's annotations record one.
    """
    canary = canary_name(owner)
    noted = any(revision.ANNOTATION_CANARY in body["metadata"].get("annotations", {}) for body in revisions)
    canary_children = (("Deployment", canary), ("Service", canary))
    claim = owner.cache_claim
    return (
        *(((cache.KIND, claim),) if claim else ()),
        *(canary_children if noted or owner.spec.rollout.strategy == "Canary" else ()),
        ("ServiceAccount", owner.name),
        ("NetworkPolicy", owner.name),
        ("NetworkPolicy", protection.inspection_policy_name(owner)),
        ("PodDisruptionBudget", owner.name),
        ("Service", owner.name),
        ("Service", f"{owner.name}-pods"),
        ("Deployment", owner.name),
    )


def plan(owner: LLMDeployment, installation: Installation, observed: Observed, now: float) -> Plan:
    """The actions and status for `owner`; no actions if the observed state equals the desired one."""
    live = observed.children.get(("Deployment", owner.name))
    current = None if live is None else live.get("spec", {}).get("replicas", 1)
    recommended = observed.scaling.desired if observed.scaling else None
    target = wanted(owner.spec, current, recommended)
    settings = config.config_map(owner)
    revisions = _recorded(owner, observed.children)
    inspected = inspected_adapters(owner, _recorded_adapters(owner, observed), observed.adapter_inspections)
    model = _model(owner, revisions, observed)
    fit, unfit = MemoryFit(), None
    if isinstance(model, Resolved):
        update = revisions.get(owner.revision) or _new_revision(owner, installation, settings, revisions, model)
        fit = expected(owner.spec, deployments.memory_limit(update.template), model.found, observed.cards)
        unfit = None if owner.revision in revisions else refusal(owner.spec, model.found, fit)
        # A recorded revision keeps running even if the spec is refused; a new revision is not created then.
        if owner.revision in revisions or not (unfit or owner.refusal):
            revisions[owner.revision] = update
    inputs = RolloutInput(
        wanted=owner.revision,
        revisions=revisions,
        deployment=live,
        canary=observed.children.get(("Deployment", canary_name(owner))),
        pods=observed.pods,
        target=target,
        evidence=observed.load.evidence if observed.load else {},
    )
    rollout = plan_rollout(owner.spec, inputs, now)
    view = StatusInput(
        owner=owner,
        pods=observed.pods,
        target=target,
        url=services.address(owner, installation.gateway_url),
        deployment=live,
        load=observed.load,
        scaling=observed.scaling,
        progress=rollout.progress,
        current_revision=_newest_served(rollout.revisions.values()),
        inspection=observed.inspection,
        model=model,
        adapters=inspected,
        fit=fit,
        unfit=unfit,
        conflict=_conflicts(owner, rollout, observed.children),
        refused=observed.refused,
    )
    status = next_status(view, now)
    if view.conflict:
        return Plan((), status, current or 0)
    work = observed.load.work if observed.load else {}
    rolls_to = rollout.stable.name if rollout.stable else owner.revision
    step = scale(current, rollout.replicas, inputs.stable_pods, rolls_to, work, now)
    canary_scale = _scale_canary(rollout, inputs, work, now)
    actions = _actions(
        owner, installation, observed, rollout, (step, canary_scale), inspected, status, unfit=unfit is not None
    )
    # Nodes are not watched, and another GPU may make room.
    another_card = CARDS_SECONDS if unfit and fit.gpu else None
    wait = _soonest(step.wait, canary_scale.wait, rollout.wait, _patience(observed), another_card)
    # In mode Builtin the canary's replicas are part of the autoscaler's number: it must not replace them.
    return Plan(tuple(actions), status, step.replicas + target - rollout.replicas, wait)


def _scale_canary(rollout: RolloutPlan, inputs: RolloutInput, work: Mapping[str, int], now: float) -> Scale:
    if rollout.canary is None:
        return Scale(0)
    current = None if inputs.canary is None else inputs.canary["spec"].get("replicas", 1)
    return scale(current, rollout.canary.replicas, inputs.canary_pods, rollout.canary.revision.name, work, now)


def _newest_served(revisions: Iterable[Revision]) -> str | None:
    served = [known for known in revisions if known.served and not known.failed]
    return max(served, key=lambda known: known.number).name if served else None


def _recorded(owner: LLMDeployment, children: Mapping[ChildId, Json]) -> dict[str, Revision]:
    """The recorded revisions, and that of the running Deployment if it is not recorded yet."""
    ours = [body for (kind, _), body in children.items() if kind == revision.KIND and _is_ours(owner, body)]
    known = {found.name: found for found in map(revision.recorded, ours)}
    live = children.get(("Deployment", owner.name))
    running = None if live is None else live["metadata"].get("labels", {}).get(LABEL_REVISION)
    template = None if live is None else deployments.applied_template(live)
    if live is not None and template is not None and running not in known:
        # From an operator without history, or deleted by someone: record it, so that running pods are not restarted.
        mounted, current = deployments.config_name(template), config.config_map(owner)
        # A lost ConfigMap of the current spec is identified by its name, which is a hash of its content.
        lost = current["data"] if mounted == current["metadata"]["name"] else None
        data = children.get(("ConfigMap", mounted), {}).get("data", lost)
        if data is not None and running:
            known[running] = Revision(running, _newest(known) + 1, template, data)
    return known


def _newest(known: Mapping[str, Revision]) -> int:
    return max((found.number for found in known.values()), default=0)


def _model(owner: LLMDeployment, known: Mapping[str, Revision], observed: Observed) -> Model | None:
    """The model's inspection result; None for pods from before model inspection existed: they keep running."""
    model = resolve(
        owner,
        _templates(known),
        observed.inspection,
        observed.inspection_problems,
        is_recorded=owner.revision in known,
    )
    unready = observed.inspection is None or not observed.inspection.pod.loaded
    if unready and not isinstance(model, Resolved):
        claim = observed.children.get((cache.KIND, owner.cache_claim))
        reason = waiting(owner, claim, observed.claim_events)
        model = reason if isinstance(reason, InspectionFailed) else model
    return None if owner.revision in known and not isinstance(model, Resolved) else model


def _templates(known: Mapping[str, Revision]) -> list[Json]:
    """The pod templates of the revisions, newest first."""
    return [found.template for found in sorted(known.values(), key=lambda found: found.number, reverse=True)]


def _new_revision(
    owner: LLMDeployment, installation: Installation, settings: Json, known: Mapping[str, Revision], model: Resolved
) -> Revision:
    """The revision of the spec, built once its model is resolved."""
    template = deployments.pod_template(
        owner,
        installation,
        settings["metadata"]["name"],
        found=model.found,
        record=model_job.record(owner, model.report),
    )
    return Revision(owner.revision, _newest(known) + 1, template, settings["data"])


def _pinned(owner: LLMDeployment, known: Mapping[str, Revision]) -> model_job.Pins:
    """The revisions resolved earlier for these sources, so that re-creating a child does not update a model."""
    model = owner.status.get("model", {})
    guessing, recorded = model.get("draft", {}), recorded_pins(owner, _templates(known))
    same = model.get("identity") == model_job.identity(owner)
    same_draft = guessing.get("identity") == draft.identity(owner)
    return model_job.Pins(
        str(model.get("resolvedRevision", "") if same else "") or recorded.model,
        str(guessing.get("resolvedRevision", "") if same_draft else "") or recorded.draft,
    )


def _soonest(*delays: float | None) -> float | None:
    return min((delay for delay in delays if delay is not None), default=None)


def _patience(observed: Observed) -> float | None:
    """Seconds until the next pass while a pod waits: mount failures appear only in events, which are not watched."""
    pods = observed.pods if observed.inspection is None else (*observed.pods, observed.inspection.pod)
    pods += tuple(inspection.pod for inspection in observed.adapter_inspections.values())
    jobs = {name for kind, name in observed.children if kind == "Job"} - observed.adapter_inspections.keys()
    inspection_problems = observed.inspection is None and bool(jobs)
    return EVENTS_SECONDS if inspection_problems or any(pod.active and not pod.loaded for pod in pods) else None


def _actions(
    owner: LLMDeployment,
    installation: Installation,
    observed: Observed,
    rollout: RolloutPlan,
    steps: tuple[Scale, Scale],
    inspected: tuple[InspectedAdapter, ...],
    status: Json,
    *,
    unfit: bool,
) -> list[Action]:
    """`steps`: scaling of the Deployment and of the canary. `unfit`: the model and the spec do not fit, so no pods."""
    cold_start = status.get("capacity", {}).get("coldStartSeconds")
    # ControllerRevisions first: after an interruption the next pass continues from what they record.
    bodies = [revision.controller_revision(owner, known) for known in rollout.revisions.values()]
    bodies.append(services.service_account(owner))
    bodies += _settings(owner, rollout)
    if owner.spec.availability.network_policy:
        bodies += [protection.network_policy(owner, installation), protection.inspection_policy(owner)]
    if owner.spec.availability.pod_disruption_budget:
        bodies.append(protection.disruption_budget(owner))
    wanted_now = not (unfit or owner.refusal)
    if owner.revision not in rollout.revisions and (observed.inspection or wanted_now):
        secrets = model_job.pull_secrets(observed.children.get(("ServiceAccount", owner.name)))
        bodies.append(model_job.job(owner, installation, _pinned(owner, rollout.revisions), secrets))
    if claim := cache.claim(owner):
        bodies.append(claim)
    followed = _adapter_list(owner, inspected, observed)
    bodies += followed
    if not owner.refusal:
        bodies += _adapter_jobs(owner, installation, observed, inspected)
    bodies += _serving(owner, observed, rollout, steps, cold_start, stuck(status, observed.pods))
    bodies = [_stamped(body) for body in bodies]
    applies: list[Action] = []
    for body in bodies:
        present = observed.children.get(_id(body))
        if present is None or (body["kind"] != "Job" and not _covers(present, body)):
            applies.append(Apply(body))
    kept = {_id(body) for body in bodies if body["kind"] != "Job" or not _outdated(owner, body, observed)}
    # Drain annotations first: they must be on the pods before `replicas` changes.
    drains = [drain for step in steps for drain in step.drains]
    # After the list, which the kubelet reads when the pod changes.
    noted = [note for body in followed for note in _noted(observed.pods, adapters.list_digest(body))]
    return [*drains, *applies, *noted, *_deletions(owner, observed, kept)]


def _recorded_adapters(owner: LLMDeployment, observed: Observed) -> dict[str, AdapterInspection]:
    """The inspections of adapters by identity: of the list, and of the status if the list was deleted or damaged."""
    return pinned(owner) | adapters.recorded(observed.children.get(("ConfigMap", adapters.list_name(owner))))


def _adapter_list(owner: LLMDeployment, inspected: tuple[InspectedAdapter, ...], observed: Observed) -> list[Json]:
    """The list of adapters for the pods, if they take any."""
    if not adapters.slots(owner.spec):
        return []
    found = {each.identity: each.found for each in inspected if each.found is not None}
    before = adapters.listed(observed.children.get(("ConfigMap", adapters.list_name(owner))))
    return [adapters.config_map(owner, wanted_list(inspected, before), found)]


def _adapter_jobs(
    owner: LLMDeployment, installation: Installation, observed: Observed, inspected: tuple[InspectedAdapter, ...]
) -> list[Json]:
    """The Jobs of adapters without a record: those that exist, and more up to a number. Those that fail go on."""
    recorded = _recorded_adapters(owner, observed)
    open_ = {each.identity: each for each in inspected if each.identity not in recorded}
    made = [adapter_job.job(owner, installation, each.spec) for each in open_.values()]
    failing = {adapter_job.job_name(owner, each.spec) for each in open_.values() if each.failure}
    live = [body for body in made if _id(body) in observed.children]
    room = _ADAPTER_JOBS - sum(body["metadata"]["name"] not in failing for body in live)
    return [*live, *[body for body in made if body not in live][: max(0, room)]]


def _noted(pods: Sequence[Pod], digest: str) -> list[PodAnnotations]:
    """The pods whose objects do not have the list yet."""
    return [
        PodAnnotations(pod.name, {adapters.ANNOTATION_LIST: digest})
        for pod in pods
        if pod.active and pod.adapter_list != digest
    ]


def _outdated(owner: LLMDeployment, job: Json, observed: Observed) -> bool:
    """True if the live Job must be replaced by `job`, because a Job's pod template is immutable.

    A completed Job is kept for its result, unless its pod, which holds the result, is gone.
    """
    live = observed.children.get(_id(job))
    if live is None:
        return False
    ended = any(c["type"] == "Complete" and c["status"] == "True" for c in live.get("status", {}).get("conditions", []))
    if ended:
        result = observed.adapter_inspections.get(job["metadata"]["name"])
        return observed.inspection is None if job["metadata"]["name"] == model_job.job_name(owner) else result is None
    before, now = (body["metadata"].get("annotations", {}).get(ANNOTATION_APPLIED) for body in (live, job))
    return bool(before != now)


def _settings(owner: LLMDeployment, rollout: RolloutPlan) -> list[Json]:
    """ConfigMaps of the running revisions, from their records: they may be lost or belong to an earlier spec."""
    running = [rollout.stable, rollout.canary and rollout.canary.revision]
    found = {deployments.config_name(known.template): known.settings for known in running if known}
    return [config.recorded(owner, name, data) for name, data in found.items() if name]


def _serving(
    owner: LLMDeployment,
    observed: Observed,
    rollout: RolloutPlan,
    steps: tuple[Scale, Scale],
    cold_start: int | None,
    reason: str,
) -> list[Json]:
    """Services, then Deployments. `reason`: why no replica can start, empty if one can."""
    canary, limit = rollout.canary, deadline(owner.spec)
    percent, name = (canary.percent, canary.step) if canary else (0, "")
    bodies = [services.service(owner, cold_start, percent, name, reason), services.headless_service(owner)]
    if canary or any(pod.canary for pod in observed.pods):
        # Kept until the canary's last pod is gone: without it gateways would count that pod as stable.
        bodies.append(services.canary_service(owner))
    if canary:
        bodies.append(deployments.canary_deployment(owner, canary.revision.template, steps[1].replicas, limit))
    if rollout.stable:
        bodies.append(
            deployments.deployment(owner, rollout.stable.template, steps[0].replicas, rollout.strategy, limit)
        )
    return bodies


def stuck(status: Json, pods: Sequence[Pod]) -> str:
    """The reason why no replica can start; empty while one is ready or may still become ready."""
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    ready, valid = conditions.get("Ready", {}), conditions.get("SpecValid", {})
    if ready.get("status") != "False" or any(pod.ready for pod in pods):
        return ""
    hopeless = ready["reason"] in HOPELESS or valid.get("status") == "False"
    return str(ready["reason"]) if hopeless else ""


def _deletions(owner: LLMDeployment, observed: Observed, kept: set[ChildId]) -> list[Action]:
    """Deletions of unused children: disabled policies, a finished canary or inspection, ConfigMaps without pods."""
    in_use = {("ConfigMap", pod.config) for pod in observed.pods}
    # The serving Deployment is deleted only together with the LLMDeployment.
    serving = {("Deployment", owner.name)}
    gone: list[Action] = []
    for (kind, name), body in observed.children.items():
        unused = kind != cache.KIND and (kind, name) not in kept | in_use | serving
        if unused and _is_ours(owner, body):
            gone.append(Delete(kind, name, body["metadata"]["uid"]))
    return gone


def _conflicts(owner: LLMDeployment, rollout: RolloutPlan, children: Mapping[ChildId, Json]) -> str:
    """A message about foreign objects that have a child's name; empty when there are none."""
    made = [
        *_settings(owner, rollout),
        *(revision.controller_revision(owner, known) for known in rollout.revisions.values()),
    ]
    listed = [("ConfigMap", adapters.list_name(owner))] if adapters.slots(owner.spec) else []
    needed = (*child_ids(owner, made), *map(_id, made), *listed)
    found = [(name, children[name]) for name in needed if name in children and not _is_ours(owner, children[name])]
    if not found:
        return ""
    others = ", ".join(f"{kind} {name}" for (kind, name), _ in found)
    references = [ref for _, body in found for ref in body["metadata"].get("ownerReferences", [{}])]
    if all((ref.get("kind"), ref.get("name")) == (names.KIND, owner.name) for ref in references):
        return f"metadata.name: {others} belongs to a deleted LLMDeployment of this name and still exists"
    return (
        f"metadata.name: {others} exists and does not belong to this LLMDeployment; "
        "delete or rename it, or use another name"
    )


def _is_ours(owner: LLMDeployment, body: Json) -> bool:
    if body["kind"] == cache.KIND:
        return cache.is_ours(owner, body) or body["metadata"]["name"] == owner.spec.cache.claim_name
    return any(ref.get("uid") == owner.uid for ref in body["metadata"].get("ownerReferences", []))


def _id(body: Json) -> ChildId:
    return body["kind"], body["metadata"]["name"]


def _stamped(body: Json) -> Json:
    """The body with the annotation of its own hash."""
    metadata = body["metadata"]
    annotations = {**metadata.get("annotations", {}), ANNOTATION_APPLIED: digest(body)}
    return {**body, "metadata": {**metadata, "annotations": annotations}}


def _covers(live: Any, part: Any) -> bool:
    """True if `live` contains all of `part`; fields that the API server defaults or normalizes are ignored.

    Together with an unchanged hash annotation, which shows removed fields, this means that there is nothing to apply.
    """
    if part in ({}, []) and live is None:
        return True
    if isinstance(part, dict):
        return isinstance(live, dict) and all(_covers(live.get(key), value) for key, value in part.items())
    if isinstance(part, list):
        return isinstance(live, list) and _covers_list(live, part)
    return bool(live == part) or _same_quantity(live, part)


def _covers_list(live: list[Any], part: list[Any]) -> bool:
    """Keyed lists may contain foreign entries (an injected container); other lists must be equal."""
    if part and all(isinstance(entry, dict) and any(key in entry for key in _LIST_KEYS) for entry in part):
        return all(any(_covers(one, entry) for one in live) for entry in part)
    return len(live) == len(part) and all(_covers(one, entry) for one, entry in zip(live, part, strict=True))


def _same_quantity(live: Any, part: Any) -> bool:
    """True for equal quantities: the API server normalizes `1000m` to `1`."""
    both = isinstance(live, str) and isinstance(part, str)
    return both and all(_QUANTITY.match(text) for text in (live, part)) and quantity(live) == quantity(part)

"""The decision of one pass: from the wanted and the observed state to actions and a status. No I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_operator.api.base import QUANTITY, Json
from octavo_operator.api.resource import LLMDeployment, digest
from octavo_operator.observe import memory_estimate
from octavo_operator.observe.diagnosis import HOPELESS
from octavo_operator.observe.inspection import Inspection, InspectionFailed, Model, Resolved, resolve, waiting
from octavo_operator.observe.pods import Pod, Problem
from octavo_operator.resources import cache, config, model_job, protection, revision, services
from octavo_operator.resources import deployment as deployments
from octavo_operator.resources.common import LABEL_REVISION, Installation, canary_name
from octavo_operator.resources.config import quantity
from octavo_operator.resources.revision import Revision
from octavo_operator.rollout.plan import RolloutInput, RolloutPlan, course, deadline
from octavo_operator.rollout.replicas import Mark, Scale, scale, wanted
from octavo_operator.status.input import Load, Scaling, StatusInput
from octavo_operator.status.status import next_status
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

    `versions` of all objects that were read, by uid. `unseen`: why the Job that looks at the model has no pod.
    `refused`: what the API server answered to the actions of this very state, when it refused them.
    """

    children: Mapping[ChildId, Json] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    look: Inspection | None = None
    versions: Mapping[str, int] = field(default_factory=dict)
    unseen: tuple[Problem, ...] = ()
    claim_events: Sequence[Json] = ()
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


def child_ids(owner: LLMDeployment, revisions: Iterable[Json]) -> tuple[ChildId, ...]:
    """Children with fixed names: those a pass reads one by one, so that it sees a stranger of the same name.

    Those of a canary are looked for where the spec asks for one, or a revision is noted to have one.
    """
    canary = canary_name(owner)
    noted = any(revision.ANNOTATION_CANARY in body["metadata"].get("annotations", {}) for body in revisions)
    beside = (("Deployment", canary), ("Service", canary))
    claim = owner.cache_claim
    return (
        *(((cache.KIND, claim),) if claim else ()),
        *(beside if noted or owner.spec.rollout.strategy == "Canary" else ()),
        ("ServiceAccount", owner.name),
        ("NetworkPolicy", owner.name),
        ("NetworkPolicy", protection.look_policy_name(owner)),
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
    revisions = _recorded(owner, observed.children)
    model = _model(owner, revisions, observed)
    estimate, too_large = None, ""
    if isinstance(model, Resolved):
        update = revisions.get(owner.revision) or _new_revision(owner, installation, settings, revisions, model)
        estimate = memory_estimate.estimate(owner.spec, deployments.memory_limit(update.template), model.found)
        too_large = (
            memory_estimate.refusal(owner.spec, estimate) if estimate and owner.revision not in revisions else ""
        )
        # What is recorded goes on whatever is refused; what would have to be made now might be the wrong thing.
        if owner.revision in revisions or not (too_large or owner.refusal):
            revisions[owner.revision] = update
    seen = RolloutInput(
        wanted=owner.revision,
        revisions=revisions,
        deployment=live,
        canary=observed.children.get(("Deployment", canary_name(owner))),
        pods=observed.pods,
        target=target,
        evidence=observed.load.evidence if observed.load else {},
    )
    way = course(owner.spec, seen, now)
    view = StatusInput(
        owner=owner,
        pods=observed.pods,
        target=target,
        url=services.address(owner, installation.gateway_url),
        deployment=live,
        load=observed.load,
        scaling=observed.scaling,
        progress=way.progress,
        current_revision=_newest_served(way.revisions.values()),
        look=observed.look,
        model=model,
        estimate=estimate,
        too_large=too_large,
        conflict=_strangers(owner, way, observed.children),
        refused=observed.refused,
    )
    status = next_status(view, now)
    if view.conflict:
        return Plan((), status, current or 0)
    work = observed.load.work if observed.load else {}
    rolls_to = way.stable.name if way.stable else owner.revision
    step = scale(current, way.replicas, seen.stable_pods, rolls_to, work, now)
    beside = _scale_canary(way, seen, work, now)
    actions = _actions(owner, installation, observed, way, (step, beside), status, too_large=bool(too_large))
    wait = _soonest(step.wait, beside.wait, way.wait, _patience(observed))
    # What a canary takes from the replicas of mode Builtin is not the autoscaler's to make up for.
    return Plan(tuple(actions), status, step.replicas + target - way.replicas, wait)


def _scale_canary(way: RolloutPlan, seen: RolloutInput, work: Mapping[str, int], now: float) -> Scale:
    if way.canary is None:
        return Scale(0)
    current = None if seen.canary is None else seen.canary["spec"].get("replicas", 1)
    return scale(current, way.canary.replicas, seen.canary_pods, way.canary.revision.name, work, now)


def _newest_served(revisions: Iterable[Revision]) -> str | None:
    served = [known for known in revisions if known.served and not known.failed]
    return max(served, key=lambda known: known.number).name if served else None


def _recorded(owner: LLMDeployment, children: Mapping[ChildId, Json]) -> dict[str, Revision]:
    """What is recorded, with the revision of the running Deployment where it is not yet."""
    ours = [body for (kind, _), body in children.items() if kind == revision.KIND and _is_ours(owner, body)]
    known = {found.name: found for found in map(revision.recorded, ours)}
    live = children.get(("Deployment", owner.name))
    running = None if live is None else live["metadata"].get("labels", {}).get(LABEL_REVISION)
    template = None if live is None else deployments.applied_template(live)
    if live is not None and template is not None and running not in known:
        # Made by an operator that kept no history, or deleted by someone: what runs is not to be restarted for that.
        mounted, current = deployments.config_name(template), config.config_map(owner)
        # A lost ConfigMap of the present spec is known by its name, which is made from its content.
        lost = current["data"] if mounted == current["metadata"]["name"] else None
        data = children.get(("ConfigMap", mounted), {}).get("data", lost)
        if data is not None and running:
            known[running] = Revision(running, _newest(known) + 1, template, data)
    return known


def _newest(known: Mapping[str, Revision]) -> int:
    return max((found.number for found in known.values()), default=0)


def _model(owner: LLMDeployment, known: Mapping[str, Revision], observed: Observed) -> Model | None:
    """What is known of the model; None for pods from before there were looks: what runs is right."""
    newest_first = sorted(known.values(), key=lambda found: found.number, reverse=True)
    model = resolve(owner, [found.template for found in newest_first], observed.look, observed.unseen)
    unready = observed.look is None or not observed.look.pod.loaded
    if unready and not isinstance(model, Resolved):
        claim = observed.children.get((cache.KIND, owner.cache_claim))
        reason = waiting(owner, claim, observed.claim_events)
        model = reason if isinstance(reason, InspectionFailed) else model
    return None if owner.revision in known and not isinstance(model, Resolved) else model


def _new_revision(
    owner: LLMDeployment, installation: Installation, settings: Json, known: Mapping[str, Revision], model: Resolved
) -> Revision:
    """The revision of the spec, made once its model is known."""
    template = deployments.pod_template(
        owner,
        installation,
        settings["metadata"]["name"],
        found=model.found,
        record=model_job.record(owner, model.report),
    )
    return Revision(owner.revision, _newest(known) + 1, template, settings["data"])


def _pinned(owner: LLMDeployment) -> str:
    """The revision that was resolved for this very model before, so that a lost child does not bring a newer one."""
    known = owner.status.get("model", {})
    same = known.get("identity") == model_job.identity(owner)
    return str(known.get("resolvedRevision", "")) if same else ""


def _soonest(*delays: float | None) -> float | None:
    return min((delay for delay in delays if delay is not None), default=None)


def _patience(observed: Observed) -> float | None:
    """Why a volume cannot be mounted stands in events alone, which nobody watches: look again while a pod waits."""
    pods = observed.pods if observed.look is None else (*observed.pods, observed.look.pod)
    unseen = observed.look is None and any(kind == "Job" for kind, _ in observed.children)
    return EVENTS_SECONDS if unseen or any(pod.active and not pod.loaded for pod in pods) else None


def _actions(
    owner: LLMDeployment,
    installation: Installation,
    observed: Observed,
    way: RolloutPlan,
    steps: tuple[Scale, Scale],
    status: Json,
    *,
    too_large: bool,
) -> list[Action]:
    """`steps`: those of the Deployment and of the canary. `too_large`: the model is known and gets no pod."""
    cold_start = status.get("capacity", {}).get("coldStartSeconds")
    # Notes first: killed after them, the next pass knows what this one was about to do.
    bodies = [revision.controller_revision(owner, known) for known in way.revisions.values()]
    bodies.append(services.service_account(owner))
    bodies += _settings(owner, way)
    if owner.spec.availability.network_policy:
        bodies += [protection.network_policy(owner, installation), protection.look_policy(owner)]
    if owner.spec.availability.pod_disruption_budget:
        bodies.append(protection.disruption_budget(owner))
    wanted_now = not (too_large or owner.refusal)
    if owner.revision not in way.revisions and (observed.look or wanted_now):
        bodies.append(model_job.job(owner, installation, _pinned(owner)))
    if claim := cache.claim(owner):
        bodies.append(claim)
    bodies += _serving(owner, observed, way, steps, cold_start, stuck(status, observed.pods))
    bodies = [_stamped(body) for body in bodies]
    applies: list[Action] = []
    for body in bodies:
        present = observed.children.get(_id(body))
        if present is None or (body["kind"] != "Job" and not _covers(present, body)):
            applies.append(Apply(body))
    kept = {_id(body) for body in bodies if body["kind"] != "Job" or not _outdated(body, observed)}
    # The marks go first: they must be on the pods before the Deployment's number moves.
    marks = [mark for step in steps for mark in step.marks]
    return [*marks, *applies, *_deletions(owner, observed, kept)]


def _outdated(job: Json, observed: Observed) -> bool:
    """Whether the Job must make room for `job`: what its pods are made from cannot be changed.

    One that ended is read, however it was made; unless its pod, which has the result, is gone.
    """
    live = observed.children.get(_id(job))
    if live is None:
        return False
    ended = any(c["type"] == "Complete" and c["status"] == "True" for c in live.get("status", {}).get("conditions", []))
    if ended:
        return observed.look is None
    before, now = (body["metadata"].get("annotations", {}).get(ANNOTATION_APPLIED) for body in (live, job))
    return bool(before != now)


def _settings(owner: LLMDeployment, way: RolloutPlan) -> list[Json]:
    """ConfigMaps of what runs, from the record: they can be lost, and be those of an earlier spec."""
    running = [way.stable, way.canary and way.canary.revision]
    found = {deployments.config_name(known.template): known.settings for known in running if known}
    return [config.recorded(owner, name, data) for name, data in found.items() if name]


def _serving(
    owner: LLMDeployment,
    observed: Observed,
    way: RolloutPlan,
    steps: tuple[Scale, Scale],
    cold_start: int | None,
    reason: str,
) -> list[Json]:
    """Services and Deployments: the pods' addresses before the pods. `reason` is why no replica can start, if so."""
    canary, limit = way.canary, deadline(owner.spec)
    percent, name = (canary.percent, canary.step) if canary else (0, "")
    bodies = [services.service(owner, cold_start, percent, name, reason), services.headless_service(owner)]
    if canary or any(pod.canary for pod in observed.pods):
        # To its last pod: gateways would take that one for a stable one.
        bodies.append(services.canary_service(owner))
    if canary:
        bodies.append(deployments.canary_deployment(owner, canary.revision.template, steps[1].replicas, limit))
    if way.stable:
        bodies.append(deployments.deployment(owner, way.stable.template, steps[0].replicas, way.strategy, limit))
    return bodies


def stuck(status: Json, pods: Sequence[Pod]) -> str:
    """The reason for which no replica can start; empty while one is ready, or may become so by waiting."""
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    ready, valid = conditions.get("Ready", {}), conditions.get("SpecValid", {})
    if ready.get("status") != "False" or any(pod.ready for pod in pods):
        return ""
    hopeless = ready["reason"] in HOPELESS or valid.get("status") == "False"
    return str(ready["reason"]) if hopeless else ""


def _deletions(owner: LLMDeployment, observed: Observed, kept: set[ChildId]) -> list[Action]:
    """Children no longer wanted: protections switched off, an ended canary or look, settings no pod uses any more."""
    in_use = {("ConfigMap", pod.config) for pod in observed.pods}
    # Whatever is not known of what serves: only the resource's own end is a reason to take it away.
    serving = {("Deployment", owner.name)}
    gone: list[Action] = []
    for (kind, name), body in observed.children.items():
        unused = kind != cache.KIND and (kind, name) not in kept | in_use | serving
        if unused and _is_ours(owner, body):
            gone.append(Delete(kind, name, body["metadata"]["uid"]))
    return gone


def _strangers(owner: LLMDeployment, way: RolloutPlan, children: Mapping[ChildId, Json]) -> str:
    """Objects that have a child's name and are not ours, as a message; empty when there are none."""
    made = [*_settings(owner, way), *(revision.controller_revision(owner, known) for known in way.revisions.values())]
    needed = (*child_ids(owner, made), *map(_id, made))
    found = [(name, children[name]) for name in needed if name in children and not _is_ours(owner, children[name])]
    if not found:
        return ""
    listed = ", ".join(f"{kind} {name}" for (kind, name), _ in found)
    references = [ref for _, body in found for ref in body["metadata"].get("ownerReferences", [{}])]
    if all((ref.get("kind"), ref.get("name")) == (names.KIND, owner.name) for ref in references):
        return f"metadata.name: {listed} belongs to a deleted LLMDeployment of this name and is not gone yet"
    return (
        f"metadata.name: {listed} exists and does not belong to this LLMDeployment; "
        "delete or rename it, or use another name"
    )


def _is_ours(owner: LLMDeployment, body: Json) -> bool:
    if body["kind"] == cache.KIND:
        return cache.is_ours(owner, body) or body["metadata"]["name"] == owner.spec.cache.claim_name
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

"""The conditions: each computed afresh from what is observed; only the time of the last change is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from octavo_operator.api.times import rfc3339
from octavo_operator.api.v1alpha1_status import Condition
from octavo_operator.observe.diagnosis import Problem
from octavo_operator.observe.inspection import Failed, Pending
from octavo_operator.resources import cache, source
from octavo_operator.rollout.plan import Progress
from octavo_operator.status.input import View
from octavo_protocol.model import ModelReport

# A claim that the scheduler waits for keeps a pod from a node, too.
_HOMELESS = ("Unschedulable", "ModelVolumeUnavailable")
# What a rollout may end with other than the spec carried out.
_UNMET = frozenset({"RolledBack", "CanaryFailed"})


# The built-in autoscaler decides nothing, or nothing that could be carried out.
_CANNOT_SCALE = frozenset({"MetricsUnavailable", "StartsFail"})


class Verdict(NamedTuple):
    """State of one aspect."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


def conditions(view: View, previous: Sequence[Condition], now: float) -> tuple[Condition, ...]:
    """All conditions, in a fixed order. `lastTransitionTime` moves only when `status` does."""
    before = {condition.type: condition for condition in previous}
    verdicts = {
        "Ready": _ready(view),
        "Available": _available(view),
        "Progressing": _progressing(view),
        "Degraded": _degraded(view),
        "SpecValid": _spec_valid(view),
        "ModelResolved": _model_resolved(view, before.get("ModelResolved")),
        "CacheReady": _cache_ready(view),
        "Scheduled": _scheduled(view),
        "ScalingActive": _scaling_active(view),
    }
    return tuple(
        _condition(name, verdict, before.get(name), view.owner.generation, now) for name, verdict in verdicts.items()
    )


def unreadable(problem: str, previous: Sequence[Condition], generation: int, now: float) -> tuple[Condition, ...]:
    """The conditions of a spec that does not fit the API's types: all stay but those that are about the spec."""
    verdict = Verdict("False", "InvalidSpec", f"{problem}; what runs goes on as it is")
    before = {condition.type: condition for condition in previous}
    changed = {name: _condition(name, verdict, before.get(name), generation, now) for name in ("Ready", "SpecValid")}
    return tuple((before | changed).values())


def _condition(name: str, verdict: Verdict, before: Condition | None, generation: int, now: float) -> Condition:
    same = before is not None and before.status == verdict.status
    return Condition(
        type=name,
        status=verdict.status,
        reason=verdict.reason,
        message=verdict.message[:4096],
        last_transition_time=before.last_transition_time if same and before else rfc3339(now),
        observed_generation=generation,
    )


def _counts(view: View) -> tuple[int, int, int]:
    """Ready, updated and all active pods."""
    active = view.active
    return (
        sum(pod.ready for pod in active),
        sum(pod.revision == view.owner.revision for pod in active),
        len(active),
    )


def _ready(view: View) -> Verdict:
    return _ready_without_pods(view) or _ready_with_pods(view)


def _ready_without_pods(view: View) -> Verdict | None:
    """What decides whatever the pods do; None when they decide."""
    invalid = _spec_valid(view)
    if invalid.status == "False":
        return Verdict("False", invalid.reason, f"{invalid.message}{_goes_on(view)}")
    if view.owner.spec.suspend:
        return Verdict("False", "Suspended", "spec.suspend is true: no replica runs and no request is held")
    if isinstance(view.model, Failed):
        return Verdict("False", view.model.reason, f"{view.model.message}{_goes_on(view)}")
    if view.target == 0:
        return _ready_at_zero(view)
    if isinstance(view.model, Pending):
        return Verdict("False", "ResolvingModel", f"{_looking(view)}{_goes_on(view)}")
    return None


def _ready_with_pods(view: View) -> Verdict:
    if view.progress is not None and view.progress.reason == "RolledBack":
        return _said(view.progress)
    ready, updated, active = _counts(view)
    if ready and updated == active:
        if ready >= view.target:
            return Verdict("True", "AllReplicasReady", f"{ready} of {view.target} replicas are ready")
        return Verdict("True", "PartiallyReady", f"{ready} of {view.target} replicas are ready{_because(view)}")
    if problem := next(iter(view.problems), None):
        return Verdict("False", problem.reason, _told(problem))
    rolling = ready and active > updated
    text = f"{updated} of {active} replicas have the newest spec" if rolling else _starting(view)
    return Verdict("False", "RollingOut" if rolling else "Starting", text)


def _said(progress: Progress) -> Verdict:
    return Verdict(progress.status, progress.reason, progress.message)


def _goes_on(view: View) -> str:
    ready = sum(pod.ready for pod in view.active)
    return f"; {ready} replicas of the spec before go on serving" if ready else ""


def _looking(view: View) -> str:
    return f"a Job looks at {view.owner.spec.model.uri} before pods are made for it"


def _ready_at_zero(view: View) -> Verdict:
    if view.owner.spec.autoscaling.mode == "Builtin":
        return Verdict("True", "Idle", "no replica runs; the gateway holds the next request while one starts")
    return Verdict("False", "ScaledToZero", "spec.replicas is 0")


def _because(view: View) -> str:
    problem = next(iter(view.problems), None)
    return f"; {_told(problem)}" if problem else ""


def _told(problem: Problem) -> str:
    return f"pod {problem.pod}: {problem.message}" if problem.pod else problem.message


def _starting(view: View) -> str:
    active = view.active
    if not active:
        return f"no pod yet, {view.target} wanted"
    if not any(pod.scheduled for pod in active):
        return "waiting for a node"
    if not any(pod.loaded for pod in active):
        return f"waiting for the weights of {view.owner.spec.model.uri}"
    return "the server loads the weights and computes its first token"


def _available(view: View) -> Verdict:
    ready, _, _ = _counts(view)
    if ready:
        return Verdict("True", "MinimumReplicas", "at least one replica serves")
    return Verdict("False", "NoReadyReplicas", "no replica serves")


def _progressing(view: View) -> Verdict:
    if view.progress is not None:
        return _said(view.progress)
    ready, updated, active = _counts(view)
    if updated == active == ready == view.target:
        return Verdict("False", "RolloutComplete", "all replicas have the newest spec and are ready")
    deployment = view.deployment or {}
    for condition in deployment.get("status", {}).get("conditions", []):
        if condition["type"] == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
            return Verdict("False", "ProgressDeadlineExceeded", f"no progress for too long{_because(view)}")
    if active > updated:
        return Verdict("True", "NewRevision", f"{updated} of {active} replicas have the newest spec")
    if active > view.target:
        return Verdict("True", "Scaling", f"{active - view.target} of {active} replicas are to go")
    return Verdict("True", "Scaling", f"{ready} of {view.target} replicas are ready")


def _degraded(view: View) -> Verdict:
    problem = next(iter(view.problems), None)
    if problem:
        return Verdict("True", problem.reason, _told(problem))
    if view.progress is not None and view.progress.reason in _UNMET:
        return Verdict("True", view.progress.reason, view.progress.message)
    return Verdict("False", "AsExpected", "no pod reports a failure")


def _spec_valid(view: View) -> Verdict:
    if view.conflict:
        return Verdict("False", "NameConflict", view.conflict)
    if refusal := view.owner.refusal:
        return Verdict("False", refusal.reason, f"{refusal.message}; what runs goes on")
    if view.refused:
        return Verdict("False", "ApplyRefused", f"the API server refuses what the spec asks for: {view.refused}")
    if view.too_large:
        return Verdict("False", "ModelTooLarge", view.too_large)
    return Verdict("True", "Valid", "the spec can be carried out")


def _model_resolved(view: View, before: Condition | None) -> Verdict:
    failed = next((p for p in view.problems if p.reason in ("ModelPullFailed", "ModelVolumeUnavailable")), None)
    if failed:
        return Verdict("False", failed.reason, failed.message)
    if isinstance(view.model, Failed):
        return Verdict("False", view.model.reason, view.model.message)
    if isinstance(view.model, Pending):
        return Verdict("Unknown", "ResolvingModel", _looking(view))
    if view.model is not None and view.model.found.architecture:
        return Verdict("True", "Resolved", _found(view.owner.spec.model.uri, view.model.found))
    current = [pod for pod in view.active if pod.revision == view.owner.revision]
    if any(pod.loaded for pod in current):
        return Verdict("True", "Loaded", f"{view.owner.spec.model.uri} is on the node of a replica")
    if not current and before is not None:
        return Verdict(before.status, before.reason, before.message)
    return Verdict("Unknown", "Pending", f"no replica has {view.owner.spec.model.uri} yet")


def _cache_ready(view: View) -> Verdict:
    model, name = source.parse(view.owner.spec.model), cache.claim_name(view.owner)
    if model.scheme == "oci":
        return Verdict("True", "ImageVolume", "each node keeps the model as an image")
    if not model.downloads:
        return Verdict("True", "Volume", f"the model is on PersistentVolumeClaim {model.reference!r}")
    if not name:
        return Verdict("True", "PerPod", "every pod downloads its own copy (spec.cache)")
    if isinstance(view.model, Failed):
        return Verdict("False", view.model.reason, view.model.message)
    if isinstance(view.model, Pending):
        return Verdict(
            "False", "Downloading", f"a Job downloads into PersistentVolumeClaim {name!r}; its log has figures"
        )
    return Verdict("True", "Complete", f"the model is on PersistentVolumeClaim {name!r}")


def _found(uri: str, found: ModelReport) -> str:
    commit = f" at {found.revision}" if found.revision else ""
    size = f", {found.parameters / 1e6:,.0f} million parameters" if found.parameters else ""
    return f"{uri}{commit} is a {found.architecture} model{size}"


def _scheduled(view: View) -> Verdict:
    homeless = next((p for p in view.problems if p.reason in _HOMELESS or not p.pod), None)
    if homeless:
        return Verdict("False", homeless.reason, _told(homeless))
    if not view.active:
        return Verdict("Unknown", "NoPods", "there is no pod to schedule")
    if all(pod.scheduled for pod in view.active):
        return Verdict("True", "AllPodsScheduled", "all pods have a node")
    return Verdict("Unknown", "Pending", "the scheduler has not looked at every pod yet")


def _scaling_active(view: View) -> Verdict:
    spec = view.owner.spec
    if spec.suspend:
        return Verdict("False", "Suspended", "spec.suspend is true")
    if spec.autoscaling.mode == "Manual":
        return Verdict("False", "Manual", "spec.replicas decides")
    if spec.autoscaling.mode == "External":
        return Verdict("True", "ExternalController", "spec.replicas decides, written through /scale")
    if view.scaling is None:
        return Verdict("Unknown", "NoDecision", "the autoscaler has not looked at this resource yet")
    most = spec.autoscaling.max_replicas
    if view.scaling.notice:
        reason, message = view.scaling.notice
        return Verdict("False" if reason in _CANNOT_SCALE else "True", reason, message)
    # What it thinks from one look to the next stands in status.autoscaling: a condition is a state that lasts.
    return Verdict("True", "Deciding", f"between {spec.autoscaling.min_replicas} and {most} replicas")

"""The conditions. Computed from the observed state alone, but for `lastTransitionTime`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from octavo_operator.api.times import rfc3339
from octavo_operator.api.v1alpha1_status import AdapterStatus, Condition
from octavo_operator.observe.diagnosis import Problem
from octavo_operator.observe.inspection import InspectionFailed, Pending
from octavo_operator.rollout.plan import Progress
from octavo_operator.status.input import StatusInput
from octavo_protocol.model import ModelReport

# Problems that keep a pod from being scheduled; an unbound claim does, too.
_UNSCHEDULED = ("Unschedulable", "ModelVolumeUnavailable")
# Ends of a rollout without the new spec.
_UNMET = frozenset({"RolledBack", "CanaryFailed"})
# Reasons for which the built-in autoscaler cannot change the number of replicas.
_CANNOT_SCALE = frozenset({"MetricsUnavailable", "StartsFail"})


class ConditionState(NamedTuple):
    """Status, reason and message of one condition."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


def conditions(
    view: StatusInput, adapters: Sequence[AdapterStatus], previous: Sequence[Condition], now: float
) -> tuple[Condition, ...]:
    """All conditions, in a fixed order; one of adapters only if there are any.

    `lastTransitionTime` changes only with `status`.
    """
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
    if adapters:
        verdicts["AdaptersReady"] = _adapters_ready(adapters)
    return tuple(
        _condition(name, verdict, before.get(name), view.owner.generation, now) for name, verdict in verdicts.items()
    )


def _adapters_ready(adapters: Sequence[AdapterStatus]) -> ConditionState:
    failed = [adapter for adapter in adapters if adapter.state == "Failed"]
    if failed:
        more = f"; {len(failed) - 1} others failed, too" if len(failed) > 1 else ""
        return ConditionState("False", "AdapterFailed", f"adapter {failed[0].name}: {failed[0].message}{more}")
    waiting = [adapter.name for adapter in adapters if adapter.state != "Ready"]
    if waiting:
        return ConditionState("Unknown", "AdaptersPending", f"no replica can use {', '.join(waiting[:5])} yet")
    return ConditionState("True", "AllAdaptersReady", f"replicas can use all {len(adapters)} adapters")


def unreadable(problem: str, previous: Sequence[Condition], generation: int, now: float) -> tuple[Condition, ...]:
    """The conditions for a spec that does not match the API types: only `Ready` and `SpecValid` change."""
    verdict = ConditionState("False", "InvalidSpec", f"{problem}; existing replicas keep running")
    before = {condition.type: condition for condition in previous}
    changed = {name: _condition(name, verdict, before.get(name), generation, now) for name in ("Ready", "SpecValid")}
    return tuple((before | changed).values())


def _condition(name: str, verdict: ConditionState, before: Condition | None, generation: int, now: float) -> Condition:
    same = before is not None and before.status == verdict.status
    return Condition(
        type=name,
        status=verdict.status,
        reason=verdict.reason,
        message=verdict.message[:4096],
        last_transition_time=before.last_transition_time if same and before else rfc3339(now),
        observed_generation=generation,
    )


def _counts(view: StatusInput) -> tuple[int, int, int]:
    """The number of ready, of updated and of all active pods."""
    active = view.active
    return (
        sum(pod.ready for pod in active),
        sum(pod.revision == view.owner.revision for pod in active),
        len(active),
    )


def _ready(view: StatusInput) -> ConditionState:
    return _ready_without_pods(view) or _ready_with_pods(view)


def _ready_without_pods(view: StatusInput) -> ConditionState | None:
    """The state of `Ready` where it does not depend on pods; None where it does."""
    invalid = _spec_valid(view)
    if invalid.status == "False":
        return ConditionState("False", invalid.reason, f"{invalid.message}{_still_serving(view)}")
    if view.owner.spec.suspend:
        return ConditionState(
            "False", "Suspended", "spec.suspend is true: no replica runs and the gateway holds no request"
        )
    if isinstance(view.model, InspectionFailed):
        return ConditionState("False", view.model.reason, f"{view.model.message}{_still_serving(view)}")
    if view.target == 0:
        return _ready_at_zero(view)
    if isinstance(view.model, Pending):
        return ConditionState("False", "ResolvingModel", f"{_inspecting(view)}{_still_serving(view)}")
    return None


def _ready_with_pods(view: StatusInput) -> ConditionState:
    if view.progress is not None and view.progress.reason == "RolledBack":
        return _from_rollout(view.progress)
    ready, updated, active = _counts(view)
    if ready and updated == active:
        if ready >= view.target:
            return ConditionState("True", "AllReplicasReady", f"{ready} of {view.target} replicas are ready")
        return ConditionState(
            "True", "PartiallyReady", f"{ready} of {view.target} replicas are ready{_worst_problem(view)}"
        )
    if problem := next(iter(view.problems), None):
        return ConditionState("False", problem.reason, _text(problem))
    rolling = ready and active > updated
    text = f"{updated} of {active} replicas run the newest spec" if rolling else _starting(view)
    return ConditionState("False", "RollingOut" if rolling else "Starting", text)


def _from_rollout(progress: Progress) -> ConditionState:
    return ConditionState(progress.status, progress.reason, progress.message)


def _still_serving(view: StatusInput) -> str:
    ready = sum(pod.ready for pod in view.active)
    return f"; {ready} replicas of the previous spec keep serving" if ready else ""


def _inspecting(view: StatusInput) -> str:
    return f"a Job inspects {view.owner.spec.model.uri} before pods are created for it"


def _ready_at_zero(view: StatusInput) -> ConditionState:
    if view.owner.spec.autoscaling.mode == "Builtin":
        return ConditionState("True", "Idle", "no replica runs; the gateway holds the next request while one starts")
    return ConditionState("False", "ScaledToZero", "spec.replicas is 0")


def _worst_problem(view: StatusInput) -> str:
    problem = next(iter(view.problems), None)
    return f"; {_text(problem)}" if problem else ""


def _text(problem: Problem) -> str:
    return f"pod {problem.pod}: {problem.message}" if problem.pod else problem.message


def _starting(view: StatusInput) -> str:
    active = view.active
    if not active:
        return f"no pod exists yet, {view.target} replicas are desired"
    if not any(pod.scheduled for pod in active):
        return "waiting for a node"
    if not any(pod.loaded for pod in active):
        return f"waiting for the weights of {view.owner.spec.model.uri}"
    return "the server loads the weights and computes its first token"


def _available(view: StatusInput) -> ConditionState:
    ready, _, _ = _counts(view)
    if ready:
        return ConditionState("True", "MinimumReplicas", "at least one replica serves")
    return ConditionState("False", "NoReadyReplicas", "no replica serves")


def _progressing(view: StatusInput) -> ConditionState:
    if view.progress is not None:
        return _from_rollout(view.progress)
    ready, updated, active = _counts(view)
    if updated == active == ready == view.target:
        return ConditionState("False", "RolloutComplete", "all replicas run the newest spec and are ready")
    deployment = view.deployment or {}
    for condition in deployment.get("status", {}).get("conditions", []):
        if condition["type"] == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
            text = f"no progress within rollout.progressDeadlineSeconds{_worst_problem(view)}"
            return ConditionState("False", "ProgressDeadlineExceeded", text)
    if active > updated:
        return ConditionState("True", "NewRevision", f"{updated} of {active} replicas run the newest spec")
    if active > view.target:
        return ConditionState("True", "Scaling", f"{active - view.target} of {active} replicas are surplus")
    return ConditionState("True", "Scaling", f"{ready} of {view.target} replicas are ready")


def _degraded(view: StatusInput) -> ConditionState:
    problem = next(iter(view.problems), None)
    if problem:
        return ConditionState("True", problem.reason, _text(problem))
    if view.progress is not None and view.progress.reason in _UNMET:
        return ConditionState("True", view.progress.reason, view.progress.message)
    return ConditionState("False", "AsExpected", "no pod reports a failure")


def _spec_valid(view: StatusInput) -> ConditionState:
    if view.conflict:
        return ConditionState("False", "NameConflict", view.conflict)
    if refusal := view.owner.refusal:
        return ConditionState("False", refusal.reason, f"{refusal.message}; existing replicas keep running")
    if view.refused:
        return ConditionState("False", "ApplyRefused", f"the API server rejects an object of the spec: {view.refused}")
    if view.unfit:
        return ConditionState("False", view.unfit.reason, view.unfit.message)
    return ConditionState("True", "Valid", "the spec is valid")


def _model_resolved(view: StatusInput, before: Condition | None) -> ConditionState:
    failed = next((p for p in view.problems if p.reason in ("ModelPullFailed", "ModelVolumeUnavailable")), None)
    if failed:
        return ConditionState("False", failed.reason, failed.message)
    if isinstance(view.model, InspectionFailed):
        return ConditionState("False", view.model.reason, view.model.message)
    if isinstance(view.model, Pending):
        return ConditionState("Unknown", "ResolvingModel", _inspecting(view))
    if view.model is not None and view.model.found.architecture:
        text = _resolved(view.owner.spec.model.uri, view.model.found)
        if cause := view.model.found.unresolved:
            return ConditionState(
                "True",
                "TagUnresolved",
                f"{text}; its tag has no digest, so replicas may load different images: {cause}; use a reference with "
                "a digest (NAME@sha256:…), or give the ServiceAccount with the resource's name imagePullSecrets and "
                "change the spec: each new revision asks the registry again",
            )
        return ConditionState("True", "Resolved", text)
    current = [pod for pod in view.active if pod.revision == view.owner.revision]
    if any(pod.loaded for pod in current):
        return ConditionState("True", "Loaded", f"{view.owner.spec.model.uri} is on the node of a replica")
    if not current and before is not None:
        return ConditionState(before.status, before.reason, before.message)
    return ConditionState("Unknown", "Pending", f"no replica has loaded {view.owner.spec.model.uri} yet")


def _cache_ready(view: StatusInput) -> ConditionState:
    model, name = view.owner.source, view.owner.cache_claim
    if model.scheme == "oci":
        return ConditionState("True", "ImageVolume", "each node stores the model as an OCI image")
    if not model.downloads:
        return ConditionState("True", "Volume", f"the model is on PersistentVolumeClaim {model.reference!r}")
    if not name:
        return ConditionState("True", "PerPod", "every pod downloads its own copy (spec.cache)")
    if isinstance(view.model, InspectionFailed):
        return ConditionState("False", view.model.reason, view.model.message)
    if isinstance(view.model, Pending):
        return ConditionState(
            "False", "Downloading", f"a Job downloads into PersistentVolumeClaim {name!r}; its log shows the progress"
        )
    return ConditionState("True", "Complete", f"the model is on PersistentVolumeClaim {name!r}")


def _resolved(uri: str, found: ModelReport) -> str:
    commit = f" at {found.revision}" if found.revision else ""
    size = f", {found.parameters / 1e6:,.0f} million parameters" if found.parameters else ""
    return f"{uri}{commit} is a {found.architecture} model{size}"


def _scheduled(view: StatusInput) -> ConditionState:
    problem = next((p for p in view.problems if p.reason in _UNSCHEDULED or not p.pod), None)
    if problem:
        return ConditionState("False", problem.reason, _text(problem))
    if not view.active:
        return ConditionState("Unknown", "NoPods", "there is no pod to schedule")
    if all(pod.scheduled for pod in view.active):
        return ConditionState("True", "AllPodsScheduled", "all pods are scheduled")
    return ConditionState("Unknown", "Pending", "the scheduler has not placed every pod yet")


def _scaling_active(view: StatusInput) -> ConditionState:
    spec = view.owner.spec
    if spec.suspend:
        return ConditionState("False", "Suspended", "spec.suspend is true")
    if spec.autoscaling.mode == "Manual":
        return ConditionState("False", "Manual", "spec.replicas sets the number of replicas")
    if spec.autoscaling.mode == "External":
        return ConditionState("True", "ExternalController", "an external controller sets spec.replicas through /scale")
    if view.scaling is None:
        return ConditionState("Unknown", "NoDecision", "the autoscaler has made no decision for this resource yet")
    most = spec.autoscaling.max_replicas
    if view.scaling.notice:
        reason, message = view.scaling.notice
        return ConditionState("False" if reason in _CANNOT_SCALE else "True", reason, message)
    # A condition is a lasting state: the reason of each single decision is in status.autoscaling instead.
    return ConditionState("True", "Deciding", f"between {spec.autoscaling.min_replicas} and {most} replicas")

"""The status: counts, conditions, load, capacity and the autoscaler's history."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_operator.api.base import Json
from octavo_operator.api.times import rfc3339, seconds
from octavo_operator.api.v1alpha1_status import (
    AutoscalingStatus,
    CapacityStatus,
    DraftModelStatus,
    LLMDeploymentStatus,
    LoadStatus,
    ModelStatus,
    PodFailure,
    ScalingEvent,
)
from octavo_operator.observe import gpu_memory, memory_estimate
from octavo_operator.observe.diagnosis import Problem
from octavo_operator.observe.fit import MemoryFit
from octavo_operator.observe.inspection import Resolved
from octavo_operator.observe.messages import short
from octavo_operator.resources import draft, model_job
from octavo_operator.resources.common import selector
from octavo_operator.status.adapters import adapter_states
from octavo_operator.status.conditions import conditions, unreadable
from octavo_operator.status.input import Load, StatusInput
from octavo_protocol.engine_settings import EngineSettings
from octavo_protocol.model import ModelReport

# Status updates are the most common load of operators on the API server. So the load is written at most every
# LOAD_SECONDS, and only when it changed (KV occupancy by LOAD_POINTS percentage points).
LOAD_SECONDS = 30.0
LOAD_POINTS = 5
HISTORY = 10
FAILURES = 10
COUNT_SECONDS = 60.0
MESSAGE = 1024


def next_status(view: StatusInput, now: float) -> Json:
    """The new status; equal to the previous one if no change justifies a write."""
    owner, active = view.owner, view.active
    previous = _previous(owner.status)
    states = adapter_states(view, previous.adapters)
    status = LLMDeploymentStatus(
        observed_generation=owner.generation,
        replicas=len(active),
        ready_replicas=sum(pod.ready for pod in active),
        updated_replicas=sum(pod.revision == owner.revision for pod in active),
        draining_replicas=sum(pod.terminating and not pod.finished for pod in view.pods),
        desired_replicas=view.target,
        current_revision=view.current_revision,
        update_revision=owner.revision,
        selector=",".join(f"{name}={value}" for name, value in selector(owner).items()),
        url=view.url,
        load=_load(previous.load, view.load, now),
        model=_model(previous.model, view),
        capacity=_capacity(previous.capacity, view.load, view.fit),
        autoscaling=_autoscaling(previous.autoscaling, view),
        failures=_failures(previous.failures, view.problems[:FAILURES]),
        adapters=states,
        conditions=conditions(view, states, previous.conditions, now),
    )
    return _shown(status)


def unreadable_status(body: Json, problem: str, now: float) -> Json:
    """The status for a spec that does not match the API types, for example from before a change of the CRD."""
    previous = _previous(body.get("status") or {})
    generation = body["metadata"].get("generation", 0)
    found = unreadable(problem, previous.conditions, generation, now)
    return _shown(previous.model_copy(update={"observed_generation": generation, "conditions": found}))


def _previous(status: Json) -> LLMDeploymentStatus:
    return LLMDeploymentStatus.model_validate({"observedGeneration": 0, "selector": "", "url": ""} | status)


def _shown(status: LLMDeploymentStatus) -> Json:
    shown = status.model_dump(by_alias=True, exclude_none=True)
    return {name: _listed(value) for name, value in shown.items() if value != ()}


def _listed(value: object) -> object:
    """The value with tuples as lists, as in an API object."""
    if isinstance(value, (list, tuple)):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {name: _listed(item) for name, item in value.items() if item != ()}
    return value


def _failures(previous: tuple[PodFailure, ...], problems: Sequence[Problem]) -> tuple[PodFailure, ...]:
    """The current failures. A change of counts alone is written at most once a minute, as a crash loop adds many."""
    fresh = tuple(map(_failure, problems))
    if [_identity(failure) for failure in fresh] != [_identity(failure) for failure in previous]:
        return fresh
    newest = max((problem.last for problem in problems), default=0.0)
    shown = max((seconds(failure.last_time) or 0.0 for failure in previous), default=0.0)
    return fresh if newest - shown >= COUNT_SECONDS else previous


def _identity(failure: PodFailure) -> tuple[str | None, str | None, str, str]:
    return failure.pod, failure.container, failure.reason, failure.message


def _failure(problem: Problem) -> PodFailure:
    return PodFailure(
        pod=problem.pod or None,
        container=problem.container or None,
        reason=problem.reason[:128],
        message=short(problem.message, MESSAGE),
        count=problem.count,
        last_time=rfc3339(problem.last) if problem.last else None,
    )


def _load(previous: LoadStatus | None, load: Load | None, now: float) -> LoadStatus | None:
    if load is None:
        return previous
    percent = None if load.kv_occupancy is None else round(100 * load.kv_occupancy)
    fresh = LoadStatus(
        kv_occupancy=None if percent is None else f"{percent}%",
        running_requests=load.running,
        queued_requests=load.queued,
        held_requests=load.held,
        updated_at=rfc3339(now),
    )
    if previous is None:
        return fresh
    before = int(previous.kv_occupancy.rstrip("%")) if previous.kv_occupancy else None
    moved = (
        (before is None) != (percent is None)
        or abs((before or 0) - (percent or 0)) >= LOAD_POINTS
        or (percent == 0) != (before == 0)
        or previous.running_requests != load.running
        or previous.queued_requests != load.queued
        or previous.held_requests != load.held
    )
    due = now - (seconds(previous.updated_at) or 0.0) >= LOAD_SECONDS
    return fresh if moved and due else previous


def _capacity(previous: CapacityStatus | None, load: Load | None, fit: MemoryFit) -> CapacityStatus | None:
    """The latest measured capacity, else that of the previous status; plus the estimate."""
    before, now = previous or CapacityStatus(), load or Load()
    capacity = CapacityStatus(
        estimated_kv_tokens_per_replica=fit.kv_tokens,
        estimated_memory_bytes=fit.memory.total if fit.memory else None,
        estimated_gpu_memory_bytes=fit.gpu.total if fit.gpu else None,
        cold_start_seconds=before.cold_start_seconds if now.cold_start is None else now.cold_start,
        kv_tokens_per_replica=before.kv_tokens_per_replica if now.kv_tokens is None else now.kv_tokens,
    )
    return None if capacity == CapacityStatus() else capacity


def _model(previous: ModelStatus | None, view: StatusInput) -> ModelStatus | None:
    """The status of the model in the spec; that of an earlier model is dropped."""
    identity = model_job.identity(view.owner)
    guessing = draft.identity(view.owner)
    if not isinstance(view.model, Resolved):
        if previous is None or previous.identity != identity:
            return None
        same = previous.draft is not None and previous.draft.identity == guessing
        return previous if same else previous.model_copy(update={"draft": None})
    found, engine = view.model.found, view.owner.spec.engine.settings
    where = gpu_memory if view.owner.spec.resources.gpu.count else memory_estimate
    return ModelStatus(
        identity=identity,
        resolved_revision=found.revision or None,
        architecture=found.architecture or None,
        parameters=found.parameters or None,
        format=found.format or None,
        file_bytes=found.file_bytes or None,
        weights_bytes=where.weight_bytes(engine, found),
        kv_bytes_per_token=where.kv_bytes(engine, found),
        context_length=found.max_length or None,
        draft=_draft(guessing, found.draft or ModelReport(), engine) if guessing else None,
    )


def _draft(identity: str, found: ModelReport, engine: EngineSettings) -> DraftModelStatus:
    """The status of the draft model, which computes on CPUs."""
    return DraftModelStatus(
        identity=identity,
        resolved_revision=found.revision or None,
        architecture=found.architecture or None,
        parameters=found.parameters or None,
        format=found.format or None,
        weights_bytes=found.weights.get(engine.dtype),
        kv_bytes_per_token=memory_estimate.kv_bytes(engine, found),
    )


def _autoscaling(previous: AutoscalingStatus | None, view: StatusInput) -> AutoscalingStatus | None:
    if view.owner.spec.autoscaling.mode != "Builtin":
        return None
    scaling = view.scaling
    if scaling is None:
        return previous
    history = previous.history if previous else ()
    newest = max((seconds(event.time) or 0.0 for event in history), default=0.0)
    history += tuple(
        ScalingEvent.model_validate(
            {
                "time": rfc3339(change.time),
                "from": change.before,
                "to": change.after,
                "reason": change.reason,
                "inputs": change.inputs[:1024],
            }
        )
        for change in scaling.changes
        if int(change.time) > newest
    )
    history = history[-HISTORY:]
    # The message contains figures that change with every decision: it is written only together with reason or number.
    same = previous and previous.reason == scaling.reason and previous.recommended == scaling.desired
    return AutoscalingStatus(
        reason=scaling.reason,
        message=previous.message if same and previous else scaling.message[:1024],
        recommended=scaling.desired,
        last_scale_time=history[-1].time if history else None,
        history=history,
    )

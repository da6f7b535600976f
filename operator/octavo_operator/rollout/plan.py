"""Plans the next step of a rollout, canary or rollback: which revision runs with how many replicas. Pure.

The state lives in the cluster, so that a restarted operator continues: annotations of the ControllerRevisions (has the
revision served, why did it fail, how far is its canary), the Deployment's revision, and the Deployment's progress.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from octavo_operator.api.base import Json
from octavo_operator.api.v1alpha1 import Canary, Rollout, Spec
from octavo_operator.observe import gpu_fit
from octavo_operator.observe.canary_analysis import AnalysisSample, analyze
from octavo_operator.observe.pods import Pod, rfc3339
from octavo_operator.resources.common import LABEL_REVISION
from octavo_operator.resources.revision import CanaryState, Revision

ANALYSIS_SECONDS = 5.0
# A canary step restarts when one of its pods loses readiness, because it must hold without a gap; so often at most.
MAX_READINESS_LOSSES = 3
# The scheduler's reasons that deleting another replica can resolve. Where not even an empty node would do, the
# scheduler says that preemption is "not helpful".
_ROOM = ("Insufficient", "anti-affinity", "free ports", "cannot allocate")
_NO_VICTIMS = "No preemption victims"
_HOPELESS = "not helpful for scheduling"


@dataclass(frozen=True, slots=True)
class RolloutInput:
    """Input of `plan_rollout`. `evidence`: request counts of the gateways, by canary step (`step_name`)."""

    wanted: str
    revisions: Mapping[str, Revision]
    deployment: Json | None
    canary: Json | None
    pods: Sequence[Pod]
    target: int
    evidence: Mapping[str, AnalysisSample] = field(default_factory=dict)

    @property
    def live(self) -> str | None:
        """Revision the Deployment runs or rolls to."""
        return None if self.deployment is None else _revision(self.deployment)

    @property
    def stable_pods(self) -> list[Pod]:
        """Active pods of the stable Deployment."""
        return [pod for pod in self.pods if pod.active and not pod.canary]

    @property
    def canary_pods(self) -> list[Pod]:
        """Active pods of the canary Deployment."""
        return [pod for pod in self.pods if pod.active and pod.canary]


@dataclass(frozen=True, slots=True)
class Progress:
    """The condition Progressing."""

    status: Literal["True", "False"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class CanaryRun:
    """The canary Deployment. It gets `percent` of the requests, counted under the name `step` (empty: none yet)."""

    revision: Revision
    replicas: int
    percent: int
    step: str


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """The planned state. `stable` is None when there is nothing to run yet.

    `revisions` are the ones to keep, with their annotations; `wait`: seconds until the plan changes by time alone.
    """

    stable: Revision | None
    replicas: int
    strategy: Json
    revisions: Mapping[str, Revision]
    canary: CanaryRun | None = None
    progress: Progress | None = None
    wait: float | None = None


def step_name(revision: str, step: int, begun: float) -> str:
    """Name under which gateways count requests of one canary step; a restarted step gets a new name."""
    return f"{revision}-{step}-{int(begun)}"


def plan_rollout(spec: Spec, inputs: RolloutInput, now: float) -> RolloutPlan:
    """The next step towards `inputs.wanted`, the revision of the spec; it waits until that revision is recorded."""
    late = _readiness_deadline(spec, inputs)
    inputs = replace(
        inputs,
        revisions=_update_records(spec.rollout, inputs, late=_timed_out(inputs) or (late is not None and now >= late)),
    )
    update, old = inputs.revisions.get(inputs.wanted), _rollback_target(inputs)
    limits = spec.rollout.canary if spec.rollout.strategy == "Canary" else None
    if update is None:
        found = _steady(spec, inputs, inputs.revisions.get(inputs.live or ""), now)
    elif update.failed and old is not None:
        found = replace(_steady(spec, inputs, old, now), progress=_rolled_back(update, old))
    elif limits is not None and old is not None and inputs.live != update.name:
        found = _canary(spec, limits, inputs, old, update, now)
    else:
        found = _steady(spec, inputs, update, now)
    if late is not None and now < late:
        found = replace(found, wait=min(found.wait or math.inf, late - now))
    return replace(found, revisions=_retained(spec.rollout, inputs, found))


def deadline(spec: Spec) -> int:
    """Seconds without progress after which a rollout counts as failed."""
    return spec.rollout.progress_deadline_seconds or spec.probes.startup_timeout_seconds + 60


def complete(pods: Sequence[Pod], revision: str, replicas: int) -> bool:
    """True if there are exactly `replicas` pods, all ready and of `revision`."""
    return len(pods) == replicas and all(pod.ready and pod.revision == revision for pod in pods)


def _update_records(rollout: Rollout, inputs: RolloutInput, *, late: bool) -> dict[str, Revision]:
    """The revisions with updated annotations. `late`: the wanted revision missed its deadline without serving."""
    newest = max((revision.number for revision in inputs.revisions.values()), default=0)
    pods = inputs.stable_pods
    out: dict[str, Revision] = {}
    for name, revision in inputs.revisions.items():
        wanted = name == inputs.wanted
        all_run_it = name == inputs.live and bool(pods) and complete(pods, name, len(pods))
        out[name] = replace(
            revision,
            number=newest + 1 if wanted and revision.number < newest else revision.number,
            served=revision.served or (all_run_it and not revision.failed),
            # Forget the failure once the spec has changed or autoRollback is off.
            failed=revision.failed if wanted and rollout.auto_rollback else "",
        )
    update, back = out.get(inputs.wanted), _last_good(replace(inputs, revisions=out))
    if update and back and rollout.auto_rollback and inputs.live == update.name and late:
        out[update.name] = replace(
            update, served=False, failed=update.failed or _failure_reason(inputs.pods, update.name)
        )
    return out


def _last_good(inputs: RolloutInput) -> Revision | None:
    """The newest revision that has served, other than the wanted one."""
    found = [r for r in inputs.revisions.values() if r.served and not r.failed and r.name != inputs.wanted]
    return max(found, key=lambda revision: revision.number, default=None)


def _rollback_target(inputs: RolloutInput) -> Revision | None:
    """The revision to roll back to and to compare a canary with: the live one if it has served, else the last good."""
    live = inputs.revisions.get(inputs.live or "")
    return live if live and live.served and live.name != inputs.wanted else _last_good(inputs)


def _timed_out(inputs: RolloutInput) -> bool:
    """True if the Deployment's current generation exceeded its progressDeadlineSeconds."""
    deployment = inputs.deployment or {}
    status = deployment.get("status", {})
    if status.get("observedGeneration", 0) < deployment.get("metadata", {}).get("generation", 0):
        return False
    return any(
        c["type"] == "Progressing" and c.get("reason") == "ProgressDeadlineExceeded"
        for c in status.get("conditions", [])
    )


def _readiness_deadline(spec: Spec, inputs: RolloutInput) -> float | None:
    """When a revision that never became ready counts as failed, in Unix seconds; None if it does not apply.

    The Deployment's own deadline misses a revision that was rolled out at zero replicas: that rollout was complete at
    once.
    """
    update = inputs.revisions.get(inputs.wanted)
    pods = [pod for pod in inputs.stable_pods if pod.revision == inputs.wanted]
    if update is None or update.served or inputs.live != inputs.wanted or not pods or any(pod.ready for pod in pods):
        return None
    return min(pod.created for pod in pods) + deadline(spec)


def _failure_reason(pods: Sequence[Pod], revision: str) -> str:
    """The first problem of a revision's pods."""
    problems = [p for pod in pods if pod.revision == revision and not pod.terminating for p in pod.problems]
    if not problems:
        return "no pod became ready in time"
    return f"{problems[0].reason}: pod {problems[0].pod}: {problems[0].message}"[:1000]


def _rolled_back(update: Revision, good: Revision) -> Progress:
    return Progress(
        "False",
        "RolledBack",
        f"revision {update.name} failed and was rolled back to {good.name}: {update.failed}. It is not retried "
        "until the spec changes (or its ControllerRevision is deleted)",
    )


def _steady(spec: Spec, inputs: RolloutInput, stable: Revision | None, now: float) -> RolloutPlan:
    """All replicas run `stable` or are being replaced by it."""
    if stable is None:
        return RolloutPlan(None, inputs.target, {}, inputs.revisions)
    pods, canary = inputs.stable_pods, None
    done = complete(pods, stable.name, inputs.target)
    canary_remains = inputs.canary is not None and _revision(inputs.canary) == stable.name
    if canary_remains and not done and stable.canary is not None and stable.canary.step >= 0:
        # Promoted: the canary's pods keep serving until all replicas have been replaced.
        canary = _canary_run(spec, inputs, stable, stable.canary)
    strategy, progress, wait = _strategy(spec, inputs, stable.name, done=done, now=now)
    return RolloutPlan(stable, inputs.target, strategy, inputs.revisions, canary, progress, wait)


def _strategy(
    spec: Spec, inputs: RolloutInput, revision: str, *, done: bool, now: float
) -> tuple[Json, Progress | None, float | None]:
    """The Deployment's strategy, its progress condition if any, and seconds until it may change."""
    rollout = spec.rollout
    if rollout.strategy == "Recreate":
        return {"type": "Recreate"}, None, None
    if rollout.strategy == "Rolling":
        surge, missing = rollout.max_surge, rollout.max_unavailable
        return _rolling(1 if surge is None else surge, missing or 0), None, None
    live = (inputs.deployment or {}).get("spec", {}).get("strategy")
    old = [pod for pod in inputs.stable_pods if pod.revision != revision]
    if not done and live == _rolling(0, 1):
        return live, _in_place(spec), None
    homeless = [pod.created for pod in inputs.stable_pods if pod.revision == revision and _waits_for_room(pod)]
    if not old or not homeless:
        return _rolling(1, 0), None, None
    left = min(homeless) + rollout.surge_schedule_timeout_seconds - now
    if left > 0:
        return _rolling(1, 0), None, left
    return _rolling(0, 1), _in_place(spec), None


def _rolling(surge: int, missing: int) -> Json:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": missing}}


def _in_place(spec: Spec) -> Progress:
    gpu = spec.resources.gpu
    pod = f"pod with {gpu_fit.request_text(gpu)}" if gpu.count else "pod"
    return Progress(
        "True",
        "SurgeUnschedulable",
        f"no node had room for an additional {pod} within {spec.rollout.surge_schedule_timeout_seconds} s: replicas "
        "are replaced in place one at a time, with one fewer during the rollout",
    )


def _waits_for_room(pod: Pod) -> bool:
    """True if a pod is unschedulable for a reason that deleting another replica resolves."""
    reasons = [problem.message for problem in pod.problems if problem.reason == "Unschedulable"]
    return not pod.scheduled and any(
        any(sign in reason for sign in _ROOM) and (_NO_VICTIMS in reason or _HOPELESS not in reason)
        for reason in reasons
    )


def _canary(
    spec: Spec, limits: Canary, inputs: RolloutInput, old: Revision, update: Revision, now: float
) -> RolloutPlan:
    """The old revision serves; the new one gets the current step's share of requests."""
    state = _resumed(update.canary, inputs, len(limits.steps), now)
    run = _canary_run(spec, inputs, update, state)
    ready = inputs.target > 0 and complete(inputs.canary_pods, update.name, run.replicas)
    if ready and state.held is None:
        state = replace(state, held=now)
        run = _canary_run(spec, inputs, update, state)
    step = limits.steps[state.step]
    until = None if state.held is None else state.held + step.hold_seconds
    over = until is not None and now >= until
    analysis = analyze(inputs.evidence.get(run.step, AnalysisSample()), limits, run.percent, held=over)
    failed = analysis.message if analysis.outcome == "fail" else _not_ready(spec, inputs, update, state, now)
    if failed and spec.rollout.auto_rollback:
        given_up = replace(update, served=False, failed=failed)
        inputs = replace(inputs, revisions={**inputs.revisions, update.name: given_up})
        return replace(_steady(spec, inputs, old, now), progress=_rolled_back(given_up, old))
    wait = ANALYSIS_SECONDS if inputs.target else None
    if over and ready and not failed and analysis.outcome == "pass":
        if state.step == len(limits.steps) - 1:
            return _promoted(spec, inputs, replace(update, canary=state), now)
        state, until, over, wait = CanaryState(state.step + 1, now), None, False, 0.0
    update = replace(update, canary=state)
    run = _canary_run(spec, inputs, update, state)
    replicas = _stable_replicas(spec, inputs.target, run.replicas)
    done = complete(inputs.stable_pods, old.name, replicas)
    strategy, _, _ = _strategy(spec, inputs, old.name, done=done, now=now)
    if failed:
        progress = Progress("False", "CanaryFailed", f"{failed}; no rollback, because rollout.autoRollback is false")
    else:
        hold = "waiting for its pods" if until is None else f"held until {rfc3339(until)}"
        share = f"step {state.step + 1} of {len(limits.steps)}, {limits.steps[state.step].percent} % of the requests"
        progress = Progress("True", "Canary", f"{share}: {analysis.message if over else hold}")
    return RolloutPlan(old, replicas, strategy, {**inputs.revisions, update.name: update}, run, progress, wait)


def _resumed(state: CanaryState | None, inputs: RolloutInput, steps: int, now: float) -> CanaryState:
    """The canary's state, reset where it no longer applies.

    At zero replicas its times are 0. The step restarts when a pod that was ready is not ready any more.
    """
    if state is None or state.step < 0:
        state = CanaryState(0, 0.0)
    state = replace(state, step=min(state.step, steps - 1))
    if not inputs.target:
        return CanaryState(state.step, 0.0)
    fell = state.held is not None and any(pod.created < state.held for pod in inputs.canary_pods if not pod.ready)
    return CanaryState(state.step, now, None, state.falls + fell) if fell or not state.begun else state


def _not_ready(spec: Spec, inputs: RolloutInput, update: Revision, state: CanaryState, now: float) -> str:
    """Why the canary failed to become ready in time; empty before the deadline.

    Pods that are added during a step have the same time as the first ones.
    """
    if state.falls >= MAX_READINESS_LOSSES:
        return f"canary became unready {state.falls} times: {_failure_reason(inputs.pods, update.name)}"
    waiting = [pod.created for pod in inputs.canary_pods if not pod.ready]
    since = state.begun if state.held is None else min(waiting, default=now)
    if not inputs.target or now < since + deadline(spec):
        return ""
    return f"canary was not ready within {deadline(spec)} s: {_failure_reason(inputs.pods, update.name)}"


def _promoted(spec: Spec, inputs: RolloutInput, update: Revision, now: float) -> RolloutPlan:
    inputs = replace(inputs, revisions={**inputs.revisions, update.name: update})
    text = "the canary answered as well as the old revision: all replicas follow"
    return replace(_steady(spec, inputs, update, now), progress=Progress("True", "CanaryPromoted", text))


def _canary_run(spec: Spec, inputs: RolloutInput, revision: Revision, state: CanaryState) -> CanaryRun:
    """The canary Deployment at its step. Its share of requests rises only once the pods for it are ready."""
    steps = spec.rollout.canary.steps if spec.rollout.canary else ()
    if not steps:
        return CanaryRun(revision, len(inputs.canary_pods), 0, "")
    index = min(max(state.step, 0), len(steps) - 1)
    given = index if state.held is not None else index - 1
    replicas = math.ceil(steps[index].percent * inputs.target / 100)
    if spec.autoscaling.mode == "Builtin":
        replicas = min(replicas, max(1, spec.autoscaling.max_replicas - 1))
    if given < 0 or not replicas:
        return CanaryRun(revision, replicas, 0, "")
    return CanaryRun(revision, replicas, steps[given].percent, step_name(revision.name, given, state.begun))


def _stable_replicas(spec: Spec, target: int, canary: int) -> int:
    """Replicas of the old revision: all, except in mode Builtin, where both Deployments together obey maxReplicas.

    (The API refuses a canary where maxReplicas is 1.)
    """
    if spec.autoscaling.mode != "Builtin" or not target:
        return target
    return max(1, min(target, spec.autoscaling.max_replicas - canary))


def _retained(rollout: Rollout, inputs: RolloutInput, found: RolloutPlan) -> dict[str, Revision]:
    """The revisions to keep: those in use or needed for a rollback, and the newest of the rest."""
    running = found.canary.revision.name if found.canary else ""
    left = inputs.canary is not None or bool([pod for pod in inputs.pods if pod.canary])
    notes = {
        name: revision if name == running else replace(revision, canary=_ended_canary(revision.canary, left=left))
        for name, revision in found.revisions.items()
    }
    good = _last_good(replace(inputs, revisions=notes))
    used = {inputs.wanted, inputs.live, running, found.stable and found.stable.name, good and good.name}
    used |= {pod.revision for pod in inputs.pods} | {name for name, r in notes.items() if r.canary is not None}
    spare = sorted((r for r in notes.values() if r.name not in used), key=lambda r: -r.number)
    kept = used | {revision.name for revision in spare[: rollout.revision_history_limit]}
    return {name: revision for name, revision in notes.items() if name in kept}


def _ended_canary(canary: CanaryState | None, *, left: bool) -> CanaryState | None:
    """The state of a finished canary stays recorded while its objects exist: it makes the next pass read them."""
    return CanaryState(-1, 0.0) if canary is not None and left else None


def _revision(deployment: Json) -> str | None:
    found: str | None = deployment["metadata"].get("labels", {}).get(LABEL_REVISION)
    return found

"""Which revision runs where: the next step of a rollout, a canary or a rollback. Values in, values out; no clock.

All that must survive the operator is in the cluster: the notes on the ControllerRevisions (has it served, why was it
given up, where is its canary), the revision of the Deployment, and the Deployment's own progress.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from octavo_operator.api.base import Json
from octavo_operator.api.v1alpha1 import Canary, Rollout, Spec
from octavo_operator.observe import gpu_fit
from octavo_operator.observe.canary_analysis import AnalysisSample, judge
from octavo_operator.observe.pods import Pod, rfc3339
from octavo_operator.resources.common import LABEL_REVISION
from octavo_operator.resources.revision import CanaryState, Revision

LOOK_SECONDS = 5.0
# A canary's pods that stop being ready begin their step anew, so that it is held without a gap; not for ever.
FALLS = 3
# Of the scheduler's reasons, those that a replica which goes can help. One that no free node could help either is
# marked by the scheduler: its preemption is "not helpful".
_ROOM = ("Insufficient", "anti-affinity", "free ports", "cannot allocate")
_NO_VICTIMS = "No preemption victims"
_HOPELESS = "not helpful for scheduling"


@dataclass(frozen=True, slots=True)
class RolloutInput:
    """What a decision is made from. `evidence`: what gateways counted, by canary step (`step_name`)."""

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
        """Replicas of the Deployment proper."""
        return [pod for pod in self.pods if pod.active and not pod.canary]

    @property
    def canary_pods(self) -> list[Pod]:
        """Replicas of the canary's Deployment."""
        return [pod for pod in self.pods if pod.active and pod.canary]


@dataclass(frozen=True, slots=True)
class Progress:
    """What the condition Progressing says."""

    status: Literal["True", "False"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class CanaryRun:
    """The second Deployment. `percent` of the requests go to it, counted under the name `step` (empty: none yet)."""

    revision: Revision
    replicas: int
    percent: int
    step: str


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """Where things are going. `stable` is None when there is nothing to run yet.

    `revisions` are those to keep, with their notes; `wait`: seconds until time alone changes something.
    """

    stable: Revision | None
    replicas: int
    strategy: Json
    revisions: Mapping[str, Revision]
    canary: CanaryRun | None = None
    progress: Progress | None = None
    wait: float | None = None


def step_name(revision: str, step: int, begun: float) -> str:
    """Name under which gateways count what the tracks answer at one step; one begun anew is counted anew."""
    return f"{revision}-{step}-{int(begun)}"


def course(spec: Spec, seen: RolloutInput, now: float) -> RolloutPlan:
    """The next step towards `seen.wanted`, the revision of the spec. One whose template is not known yet waits."""
    late = _never_ready(spec, seen)
    seen = replace(
        seen, revisions=_noted(spec.rollout, seen, late=_timed_out(seen) or (late is not None and now >= late))
    )
    update, old = seen.revisions.get(seen.wanted), _served(seen)
    limits = spec.rollout.canary if spec.rollout.strategy == "Canary" else None
    if update is None:
        found = _at_rest(spec, seen, seen.revisions.get(seen.live or ""), now)
    elif update.failed and old is not None:
        found = replace(_at_rest(spec, seen, old, now), progress=_rolled_back(update, old))
    elif limits is not None and old is not None and seen.live != update.name:
        found = _canary(spec, limits, seen, old, update, now)
    else:
        found = _at_rest(spec, seen, update, now)
    if late is not None and now < late:
        found = replace(found, wait=min(found.wait or math.inf, late - now))
    return replace(found, revisions=_kept(spec.rollout, seen, found))


def deadline(spec: Spec) -> int:
    """Seconds without progress after which a rollout counts as failed."""
    return spec.rollout.progress_deadline_seconds or spec.probes.startup_timeout_seconds + 60


def complete(pods: Sequence[Pod], revision: str, replicas: int) -> bool:
    """Whether all of `replicas` pods are ready and of `revision`, and no others are left."""
    return len(pods) == replicas and all(pod.ready and pod.revision == revision for pod in pods)


def _noted(rollout: Rollout, seen: RolloutInput, *, late: bool) -> dict[str, Revision]:
    """The revisions with what is to be noted of them now. `late`: the wanted one had its time and did not serve."""
    newest = max((revision.number for revision in seen.revisions.values()), default=0)
    pods = seen.stable_pods
    out: dict[str, Revision] = {}
    for name, revision in seen.revisions.items():
        wanted = name == seen.wanted
        all_run_it = name == seen.live and bool(pods) and complete(pods, name, len(pods))
        out[name] = replace(
            revision,
            number=newest + 1 if wanted and revision.number < newest else revision.number,
            served=revision.served or (all_run_it and not revision.failed),
            # Where the spec has moved on, or whoever runs it wants no way back, a failure is no reason any more.
            failed=revision.failed if wanted and rollout.auto_rollback else "",
        )
    update, back = out.get(seen.wanted), _good(replace(seen, revisions=out))
    if update and back and rollout.auto_rollback and seen.live == update.name and late:
        out[update.name] = replace(update, served=False, failed=update.failed or _why(seen.pods, update.name))
    return out


def _good(seen: RolloutInput) -> Revision | None:
    """The newest revision that served and is not the wanted one."""
    found = [r for r in seen.revisions.values() if r.served and not r.failed and r.name != seen.wanted]
    return max(found, key=lambda revision: revision.number, default=None)


def _served(seen: RolloutInput) -> Revision | None:
    """The way back, and what a canary is compared with: what runs if that ever served, else what last did."""
    live = seen.revisions.get(seen.live or "")
    return live if live and live.served and live.name != seen.wanted else _good(seen)


def _timed_out(seen: RolloutInput) -> bool:
    """Whether the Deployment made no progress for too long, said of what it was last given."""
    deployment = seen.deployment or {}
    status = deployment.get("status", {})
    if status.get("observedGeneration", 0) < deployment.get("metadata", {}).get("generation", 0):
        return False
    return any(
        c["type"] == "Progressing" and c.get("reason") == "ProgressDeadlineExceeded"
        for c in status.get("conditions", [])
    )


def _never_ready(spec: Spec, seen: RolloutInput) -> float | None:
    """When a revision that never served counts as failed; None where nothing speaks against it.

    The Deployment's own deadline does not see a revision that came while there were no replicas: to the Deployment that
    rollout was complete at once.
    """
    update = seen.revisions.get(seen.wanted)
    pods = [pod for pod in seen.stable_pods if pod.revision == seen.wanted]
    if update is None or update.served or seen.live != seen.wanted or not pods or any(pod.ready for pod in pods):
        return None
    return min(pod.created for pod in pods) + deadline(spec)


def _why(pods: Sequence[Pod], revision: str) -> str:
    """What the pods of a revision say is wrong."""
    problems = [p for pod in pods if pod.revision == revision and not pod.terminating for p in pod.problems]
    if not problems:
        return "no pod became ready in time"
    return f"{problems[0].reason}: pod {problems[0].pod}: {problems[0].message}"[:1000]


def _rolled_back(update: Revision, good: Revision) -> Progress:
    return Progress(
        "False",
        "RolledBack",
        f"revision {update.name} failed and was rolled back to {good.name}: {update.failed}. It is not tried again "
        "until the spec changes (or its ControllerRevision is deleted)",
    )


def _at_rest(spec: Spec, seen: RolloutInput, stable: Revision | None, now: float) -> RolloutPlan:
    """All replicas run one revision, or are on their way to it."""
    if stable is None:
        return RolloutPlan(None, seen.target, {}, seen.revisions)
    pods, canary = seen.stable_pods, None
    done = complete(pods, stable.name, seen.target)
    beside = seen.canary is not None and _revision(seen.canary) == stable.name
    if beside and not done and stable.canary is not None and stable.canary.step >= 0:
        # Promoted: its pods serve on until all replicas have followed.
        canary = _run(spec, seen, stable, stable.canary)
    strategy, progress, wait = _strategy(spec, seen, stable.name, done=done, now=now)
    return RolloutPlan(stable, seen.target, strategy, seen.revisions, canary, progress, wait)


def _strategy(
    spec: Spec, seen: RolloutInput, revision: str, *, done: bool, now: float
) -> tuple[Json, Progress | None, float | None]:
    """The Deployment's strategy, what there is to say of it, and when it may change."""
    rollout = spec.rollout
    if rollout.strategy == "Recreate":
        return {"type": "Recreate"}, None, None
    if rollout.strategy == "Rolling":
        surge, missing = rollout.max_surge, rollout.max_unavailable
        return _rolling(1 if surge is None else surge, missing or 0), None, None
    live = (seen.deployment or {}).get("spec", {}).get("strategy")
    old = [pod for pod in seen.stable_pods if pod.revision != revision]
    if not done and live == _rolling(0, 1):
        return live, _in_place(spec), None
    homeless = [pod.created for pod in seen.stable_pods if pod.revision == revision and _waits_for_room(pod)]
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
    pod = f"pod with {gpu_fit.asked(gpu)}" if gpu.count else "pod"
    return Progress(
        "True",
        "SurgeUnschedulable",
        f"no node had room for an additional {pod} within {spec.rollout.surge_schedule_timeout_seconds} s: replicas "
        "are replaced one at a time, with one fewer meanwhile",
    )


def _waits_for_room(pod: Pod) -> bool:
    """Whether a pod has no node for a reason that goes away when another replica does."""
    reasons = [problem.message for problem in pod.problems if problem.reason == "Unschedulable"]
    return not pod.scheduled and any(
        any(sign in reason for sign in _ROOM) and (_NO_VICTIMS in reason or _HOPELESS not in reason)
        for reason in reasons
    )


def _canary(spec: Spec, limits: Canary, seen: RolloutInput, old: Revision, update: Revision, now: float) -> RolloutPlan:
    """The old revision serves, the new one gets its share."""
    state = _resumed(update.canary, seen, len(limits.steps), now)
    run = _run(spec, seen, update, state)
    ready = seen.target > 0 and complete(seen.canary_pods, update.name, run.replicas)
    if ready and state.held is None:
        state = replace(state, held=now)
        run = _run(spec, seen, update, state)
    step = limits.steps[state.step]
    until = None if state.held is None else state.held + step.hold_seconds
    over = until is not None and now >= until
    verdict = judge(seen.evidence.get(run.step, AnalysisSample()), limits, run.percent, held=over)
    failed = verdict.message if verdict.outcome == "fail" else _not_ready(spec, seen, update, state, now)
    if failed and spec.rollout.auto_rollback:
        given_up = replace(update, served=False, failed=failed)
        seen = replace(seen, revisions={**seen.revisions, update.name: given_up})
        return replace(_at_rest(spec, seen, old, now), progress=_rolled_back(given_up, old))
    wait = LOOK_SECONDS if seen.target else None
    if over and ready and not failed and verdict.outcome == "pass":
        if state.step == len(limits.steps) - 1:
            return _promoted(spec, seen, replace(update, canary=state), now)
        state, until, over, wait = CanaryState(state.step + 1, now), None, False, 0.0
    update = replace(update, canary=state)
    run = _run(spec, seen, update, state)
    replicas = _beside(spec, seen.target, run.replicas)
    done = complete(seen.stable_pods, old.name, replicas)
    strategy, _, _ = _strategy(spec, seen, old.name, done=done, now=now)
    if failed:
        progress = Progress("False", "CanaryFailed", f"{failed}; rollout.autoRollback is false: it stays as it is")
    else:
        hold = "waits for its pods" if until is None else f"held until {rfc3339(until)}"
        share = f"step {state.step + 1} of {len(limits.steps)}, {limits.steps[state.step].percent} % of the requests"
        progress = Progress("True", "Canary", f"{share}: {verdict.message if over else hold}")
    return RolloutPlan(old, replicas, strategy, {**seen.revisions, update.name: update}, run, progress, wait)


def _resumed(state: CanaryState | None, seen: RolloutInput, steps: int, now: float) -> CanaryState:
    """The canary's state as far as it still holds.

    Without replicas its clocks stand still, at 0. A pod that was ready and is not any more begins the step anew.
    """
    if state is None or state.step < 0:
        state = CanaryState(0, 0.0)
    state = replace(state, step=min(state.step, steps - 1))
    if not seen.target:
        return CanaryState(state.step, 0.0)
    fell = state.held is not None and any(pod.created < state.held for pod in seen.canary_pods if not pod.ready)
    return CanaryState(state.step, now, None, state.falls + fell) if fell or not state.begun else state


def _not_ready(spec: Spec, seen: RolloutInput, update: Revision, state: CanaryState, now: float) -> str:
    """Why the canary's pods count as failed; empty while they need not be ready yet.

    Pods that scaling adds in the middle of a step have as long as those it began with.
    """
    if state.falls >= FALLS:
        return f"canary was ready and then not any more, {state.falls} times: {_why(seen.pods, update.name)}"
    waiting = [pod.created for pod in seen.canary_pods if not pod.ready]
    since = state.begun if state.held is None else min(waiting, default=now)
    if not seen.target or now < since + deadline(spec):
        return ""
    return f"canary was not ready within {deadline(spec)} s: {_why(seen.pods, update.name)}"


def _promoted(spec: Spec, seen: RolloutInput, update: Revision, now: float) -> RolloutPlan:
    seen = replace(seen, revisions={**seen.revisions, update.name: update})
    text = "the canary answered as well as the old revision: all replicas follow"
    return replace(_at_rest(spec, seen, update, now), progress=Progress("True", "CanaryPromoted", text))


def _run(spec: Spec, seen: RolloutInput, revision: Revision, state: CanaryState) -> CanaryRun:
    """The canary at its step. More requests come only when the pods for them are ready."""
    steps = spec.rollout.canary.steps if spec.rollout.canary else ()
    if not steps:
        return CanaryRun(revision, len(seen.canary_pods), 0, "")
    index = min(max(state.step, 0), len(steps) - 1)
    given = index if state.held is not None else index - 1
    replicas = math.ceil(steps[index].percent * seen.target / 100)
    if spec.autoscaling.mode == "Builtin":
        replicas = min(replicas, max(1, spec.autoscaling.max_replicas - 1))
    if given < 0 or not replicas:
        return CanaryRun(revision, replicas, 0, "")
    return CanaryRun(revision, replicas, steps[given].percent, step_name(revision.name, given, state.begun))


def _beside(spec: Spec, target: int, canary: int) -> int:
    """Replicas of the old revision: all of them, but for mode Builtin, where both together keep to maxReplicas.

    (The API refuses a canary where maxReplicas is 1.)
    """
    if spec.autoscaling.mode != "Builtin" or not target:
        return target
    return max(1, min(target, spec.autoscaling.max_replicas - canary))


def _kept(rollout: Rollout, seen: RolloutInput, found: RolloutPlan) -> dict[str, Revision]:
    """The revisions worth keeping: those in use or needed for a way back, and the newest others."""
    running = found.canary.revision.name if found.canary else ""
    left = seen.canary is not None or bool([pod for pod in seen.pods if pod.canary])
    notes = {
        name: revision if name == running else replace(revision, canary=_ending(revision.canary, left=left))
        for name, revision in found.revisions.items()
    }
    good = _good(replace(seen, revisions=notes))
    used = {seen.wanted, seen.live, running, found.stable and found.stable.name, good and good.name}
    used |= {pod.revision for pod in seen.pods} | {name for name, r in notes.items() if r.canary is not None}
    spare = sorted((r for r in notes.values() if r.name not in used), key=lambda r: -r.number)
    kept = used | {revision.name for revision in spare[: rollout.revision_history_limit]}
    return {name: revision for name, revision in notes.items() if name in kept}


def _ending(canary: CanaryState | None, *, left: bool) -> CanaryState | None:
    """A canary that is over is noted until nothing is left of it: only the note makes the next pass look."""
    return CanaryState(-1, 0.0) if canary is not None and left else None


def _revision(deployment: Json) -> str | None:
    found: str | None = deployment["metadata"].get("labels", {}).get(LABEL_REVISION)
    return found

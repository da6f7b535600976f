"""The course of a rollout: surge and its fallback, rollback, canary, history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.observe.canary_analysis import AnalysisSample, TrackAnswers
from octavo_operator.observe.pods import Pod, Problem
from octavo_operator.resources.revision import CanaryState, Revision, controller_revision, recorded
from octavo_operator.rollout.plan import RolloutInput, RolloutPlan, plan_rollout

Json = dict[str, Any]
NOW = 10_000.0
SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
IN_PLACE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
ROOM = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found"
SELECTOR = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. preemption: 0/1 nodes are "
HOPELESS = "available: 1 Preemption is not helpful for scheduling"
CANARY = {"strategy": "Canary", "canary": {"steps": [{"percent": 20, "holdSeconds": 60}, {"percent": 50}]}}


def spec(rollout: Json | None = None, **more: Any) -> Spec:
    return Spec.model_validate({"model": {"uri": "oci://r/m:1"}, "rollout": rollout or {}, **more})


def revision(name: str, number: int, **notes: Any) -> Revision:
    return Revision(name, number, {"made": name}, {"server.toml": name}, **notes)


def pod(name: str, of: str, **changes: Any) -> Pod:
    values: Json = {"ready": True, "loaded": True, "scheduled": True, **changes}
    return Pod(name, of, "", NOW - 600, **values)


def homeless(of: str, age: float, message: str = ROOM) -> Pod:
    problem = Problem("new", "", "Unschedulable", message)
    changes: Json = {"ready": False, "loaded": False, "scheduled": False, "problems": (problem,)}
    return replace(pod("new", of, **changes), created=NOW - age)


def deployment(of: str, strategy: Json = SURGE, *, late: bool = False) -> Json:
    reason = "ProgressDeadlineExceeded" if late else "ReplicaSetUpdated"
    conditions = [{"type": "Progressing", "reason": reason}]
    return {
        "metadata": {"labels": {"octavo.dev/revision": of}, "generation": 3},
        "spec": {"strategy": strategy},
        "status": {"observedGeneration": 3, "conditions": conditions},
    }


def seen(*pods: Pod, live: Json | None = None, target: int = 1, **changes: Any) -> RolloutInput:
    known = {r.name: r for r in (revision("a", 1, served=True), revision("b", 2))}
    return replace(RolloutInput("b", known, live or deployment("b"), None, pods, target), **changes)


@pytest.mark.parametrize(
    ("rollout", "strategy"),
    [
        ({}, SURGE),
        ({"strategy": "Recreate"}, {"type": "Recreate"}),
        ({"strategy": "Rolling"}, SURGE),
        (
            {"strategy": "Rolling", "maxSurge": 0, "maxUnavailable": 3},
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 3}},
        ),
    ],
)
def test_the_strategy_is_the_one_asked_for(rollout: Json, strategy: Json) -> None:
    assert plan_rollout(spec(rollout), seen(pod("old", "a")), NOW).strategy == strategy


def test_a_surge_pod_that_finds_no_room_is_waited_for_and_then_done_without() -> None:
    early = plan_rollout(spec(), seen(pod("old", "a"), homeless("b", 50)), NOW)
    assert (early.strategy, early.progress, early.wait) == (SURGE, None, 70)
    late = plan_rollout(spec(), seen(pod("old", "a"), homeless("b", 121)), NOW)
    assert late.strategy == IN_PLACE
    assert late.progress is not None
    assert late.progress.reason == "SurgeUnschedulable"


def test_the_fallback_lasts_until_the_rollout_is_complete() -> None:
    live = deployment("b", IN_PLACE)
    assert plan_rollout(spec(), seen(pod("new", "b", ready=False), live=live), NOW).strategy == IN_PLACE
    done = plan_rollout(spec(), seen(pod("new", "b"), live=live), NOW)
    assert (done.strategy, done.progress) == (SURGE, None)


@pytest.mark.parametrize("message", [SELECTOR + HOPELESS, "0/1 nodes are available: 1 Insufficient cpu. " + HOPELESS])
def test_no_replica_is_given_up_for_a_pod_that_it_would_not_help(message: str) -> None:
    assert plan_rollout(spec(), seen(pod("old", "a"), homeless("b", 999, message)), NOW).strategy == SURGE


def test_a_replica_is_given_up_where_one_of_several_nodes_would_help() -> None:
    message = f"{ROOM}, 2 {HOPELESS.removeprefix('available: 1 ')}"
    assert plan_rollout(spec(), seen(pod("old", "a"), homeless("b", 999, message)), NOW).strategy == IN_PLACE


def test_a_pod_that_scaling_up_added_gives_up_nothing() -> None:
    assert plan_rollout(spec(), seen(pod("one", "b"), homeless("b", 999), target=2), NOW).strategy == SURGE


def test_a_revision_that_makes_no_progress_is_rolled_back() -> None:
    problem = Problem("new", "server", "CrashLoop", "container server ended with exit code 1")
    pods = (pod("old", "a"), pod("new", "b", ready=False, problems=(problem,)))
    back = plan_rollout(spec(), seen(*pods, live=deployment("b", late=True)), NOW)
    assert back.stable is not None
    assert back.stable.template == {"made": "a"}
    assert back.progress is not None
    assert (back.progress.status, back.progress.reason) == ("False", "RolledBack")
    assert "exit code 1" in back.progress.message
    assert "exit code 1" in back.revisions["b"].failed
    # The next pass, or the next operator, knows it from the note.
    again = plan_rollout(spec(), seen(pods[0], live=deployment("a"), revisions=back.revisions), NOW + 99)
    assert again.stable is not None
    assert (again.stable.name, again.progress) == ("a", back.progress)


def test_what_the_deployment_said_of_an_earlier_template_is_no_reason() -> None:
    live = deployment("b", late=True)
    live["metadata"]["generation"] = 4
    found = plan_rollout(spec(), seen(pod("old", "a"), live=live), NOW)
    assert found.stable is not None
    assert found.stable.name == "b"


def test_without_a_way_back_or_the_wish_for_one_a_late_rollout_goes_on() -> None:
    late = deployment("b", late=True)
    alone = {"b": revision("b", 1)}
    for rollout, revisions in (({}, alone), ({"autoRollback": False}, seen().revisions)):
        found = plan_rollout(spec(rollout), seen(live=late, revisions=revisions), NOW)
        assert found.stable is not None
        assert (found.stable.name, found.stable.failed) == ("b", "")


def test_a_failed_revision_is_tried_again_once_the_spec_has_moved_on() -> None:
    failed = {"a": revision("a", 1, served=True), "b": revision("b", 2, failed="it crashed")}
    moved = plan_rollout(spec(), seen(pod("old", "a"), live=deployment("a"), revisions=failed, wanted="a"), NOW)
    assert moved.revisions["b"].failed == ""
    back = plan_rollout(spec(), seen(pod("old", "a"), live=deployment("a"), revisions=moved.revisions), NOW)
    assert back.stable is not None
    assert back.stable.name == "b"


def test_a_revision_has_served_when_all_replicas_run_it() -> None:
    assert not plan_rollout(spec(), seen(pod("1", "a"), pod("2", "b"), target=2), NOW).revisions["b"].served
    assert not plan_rollout(spec(), seen(target=0), NOW).revisions["b"].served
    assert plan_rollout(spec(), seen(pod("1", "b"), pod("2", "b"), target=2), NOW).revisions["b"].served


def test_going_back_makes_an_old_revision_the_newest() -> None:
    back = plan_rollout(spec(), seen(pod("1", "b"), wanted="a"), NOW)
    assert back.revisions["a"].number == 3
    assert back.stable is not None
    assert back.stable.template == {"made": "a"}


def test_history_is_bounded_and_keeps_what_is_in_use() -> None:
    known = {name: revision(name, number, served=True) for number, name in enumerate("abcdefgh")}
    pods = (pod("1", "b"), pod("2", "g"))
    found = plan_rollout(spec({"revisionHistoryLimit": 2}), seen(*pods, revisions=known, wanted="h"), NOW)
    # h: the spec's; b: of a pod, and the Deployment's; g: of a pod, and the way back; f and e: history.
    assert set(found.revisions) == set("behgf")


def test_a_record_comes_back_as_it_was_written(make_owner: Callable[..., LLMDeployment]) -> None:
    full = revision("a", 7, served=True, failed="it crashed", canary=CanaryState(1, 5.5, 9.0))
    for one in (full, revision("b", 1)):
        assert recorded(controller_revision(make_owner(), one)) == one


def test_a_spoilt_canary_note_starts_the_canary_anew(make_owner: Callable[..., LLMDeployment]) -> None:
    body = controller_revision(make_owner(), revision("a", 1))
    body["metadata"]["annotations"] = {"octavo.dev/canary-state": "{"}
    assert recorded(body).canary == CanaryState(-1, 0.0)


def canary(
    *pods: Pod, state: CanaryState | None = None, answers: AnalysisSample | None = None, live: str = "a", **changes: Any
) -> RolloutInput:
    known = {"a": revision("a", 1, served=True), "b": revision("b", 2, canary=state)}
    beside = deployment("b") if state else None
    evidence = {f"b-0-{int(state.begun)}": answers} if answers and state else {}
    found = seen(*pods, live=deployment(live), revisions=known, canary=beside, evidence=evidence, target=4)
    return replace(found, **changes)


OLD = tuple(pod(str(number), "a") for number in range(4))
NEW = pod("c", "b", canary=True)
WELL = AnalysisSample(TrackAnswers(1000, 2), TrackAnswers(140, 0))
BADLY = AnalysisSample(TrackAnswers(1260, 3), TrackAnswers(140, 10))
FIRST = "b-0-10000"


def of(found: RolloutPlan) -> tuple[int, int, str, int]:
    assert found.canary is not None
    return found.canary.replicas, found.canary.percent, found.canary.step, found.replicas


def test_a_canary_gets_requests_when_its_pods_are_ready() -> None:
    first = plan_rollout(spec(CANARY), canary(*OLD), NOW)
    assert of(first) == (1, 0, "", 4)
    assert first.stable is not None
    assert first.stable.name == "a"
    state = first.revisions["b"].canary
    assert state == CanaryState(0, NOW)
    ready = plan_rollout(spec(CANARY), canary(*OLD, NEW, state=state), NOW + 5)
    assert of(ready) == (1, 20, FIRST, 4)
    assert ready.revisions["b"].canary == CanaryState(0, NOW, NOW + 5)


def test_a_step_is_held_then_judged_then_the_next_begins() -> None:
    state = CanaryState(0, NOW, NOW)
    early = plan_rollout(spec(CANARY), canary(*OLD, NEW, state=state, answers=WELL), NOW + 59)
    assert early.revisions["b"].canary == state
    waiting = plan_rollout(spec(CANARY), canary(*OLD, NEW, state=state), NOW + 61)
    assert waiting.revisions["b"].canary == state
    assert waiting.progress is not None
    assert "waiting for 20 responses" in waiting.progress.message
    onward = plan_rollout(spec(CANARY), canary(*OLD, NEW, state=state, answers=WELL), NOW + 61)
    assert onward.revisions["b"].canary == CanaryState(1, NOW + 61)
    # Two pods for half of the requests, which come when both are ready.
    assert of(onward) == (2, 20, "b-0-10061", 4)


def test_after_the_last_step_all_replicas_follow_and_then_the_canary_goes() -> None:
    state, both = CanaryState(1, NOW, NOW), (NEW, replace(NEW, name="d"))
    promoted = plan_rollout(spec(CANARY), canary(*OLD, *both, state=state, evidence={"b-1-10000": WELL}), NOW + 301)
    assert promoted.stable is not None
    assert promoted.stable.name == "b"
    assert of(promoted) == (2, 50, "b-1-10000", 4)
    rolling = canary(*OLD[1:], pod("n", "b"), *both, state=state, live="b")
    assert of(plan_rollout(spec(CANARY), rolling, NOW + 310)) == (2, 50, "b-1-10000", 4)
    followed = tuple(pod(str(number), "b") for number in range(4))
    done = plan_rollout(spec(CANARY), canary(*followed, *both, state=state, live="b"), NOW + 400)
    assert done.canary is None
    assert done.revisions["b"].canary == CanaryState(-1, 0.0)
    gone = canary(*followed, state=CanaryState(-1, 0.0), live="b", canary=None)
    assert plan_rollout(spec(CANARY), gone, NOW + 500).revisions["b"].canary is None


def test_a_canary_with_errors_ends_at_once_and_says_so() -> None:
    state = CanaryState(0, NOW, NOW)
    back = plan_rollout(spec(CANARY), canary(*OLD, NEW, state=state, answers=BADLY), NOW + 10)
    assert back.canary is None
    assert back.stable is not None
    assert back.stable.name == "a"
    assert back.progress is not None
    assert back.progress.reason == "RolledBack"
    assert "canary failed 7.1 % of 140 requests, stable 0.2 % of 1,260; allowed 2 % more" in back.progress.message
    after = canary(*OLD, revisions=back.revisions, canary=None)
    assert plan_rollout(spec(CANARY), after, NOW + 20).canary is None


def test_a_canary_that_is_not_ready_in_time_is_given_up() -> None:
    rollout = {**CANARY, "progressDeadlineSeconds": 30}
    waiting = canary(*OLD, homeless("b", 40), state=CanaryState(0, NOW))
    assert plan_rollout(spec(rollout), waiting, NOW + 29).canary is not None
    back = plan_rollout(spec(rollout), waiting, NOW + 30)
    assert back.canary is None
    assert "not ready within 30 s: Unschedulable: pod new" in back.revisions["b"].failed


def test_a_pod_added_to_a_step_gets_its_time_and_one_that_fell_begins_it_anew() -> None:
    state = CanaryState(0, NOW - 9000, NOW - 9000)
    added = replace(NEW, name="d", ready=False, created=NOW - 5)
    found = plan_rollout(spec(CANARY), canary(*OLD, *OLD, NEW, added, state=state, answers=WELL, target=8), NOW)
    assert found.revisions["b"].canary == state
    fallen = replace(NEW, ready=False, created=NOW - 9500)
    again = plan_rollout(spec(CANARY), canary(*OLD, fallen, state=state, answers=WELL), NOW)
    assert again.revisions["b"].canary == CanaryState(0, NOW, falls=1)
    assert of(again) == (1, 0, "", 4)


def test_a_canary_that_falls_again_and_again_is_given_up() -> None:
    crash = Problem("c", "server", "CrashLoop", "container server ended with exit code 1")
    state: CanaryState | None = CanaryState(0, NOW)
    for number in range(1, 4):
        now = NOW + 100 * number
        up = plan_rollout(spec(CANARY), canary(*OLD, NEW, state=state), now)
        fallen = replace(NEW, ready=False, problems=(crash,))
        down = plan_rollout(spec(CANARY), canary(*OLD, fallen, state=up.revisions["b"].canary), now + 50)
        state = down.revisions["b"].canary
        assert (down.canary is None) == (number == 3)
    assert "became unready 3 times: CrashLoop: pod c" in down.revisions["b"].failed
    assert down.stable is not None
    assert down.stable.name == "a"


def test_without_automatic_rollback_a_bad_canary_stays_at_its_step() -> None:
    state = CanaryState(0, NOW, NOW)
    found = plan_rollout(
        spec({**CANARY, "autoRollback": False}), canary(*OLD, NEW, state=state, answers=BADLY), NOW + 99
    )
    assert of(found) == (1, 20, FIRST, 4)
    assert found.progress is not None
    assert (found.progress.status, found.progress.reason) == ("False", "CanaryFailed")


def test_a_canary_of_nothing_waits_with_its_clocks_standing_still() -> None:
    asleep = plan_rollout(spec(CANARY), canary(state=CanaryState(0, NOW, NOW), answers=WELL, target=0), NOW + 999)
    assert asleep.revisions["b"].canary == CanaryState(0, 0.0)
    assert (of(asleep), asleep.wait) == ((0, 0, "", 0), None)
    again = plan_rollout(spec(CANARY), canary(state=CanaryState(0, 0.0), target=0), NOW + 5000)
    assert again.revisions == asleep.revisions


def test_a_revision_that_came_while_nothing_ran_has_its_time_too() -> None:
    # For the Deployment a rollout of no pods was complete at once: its own deadline never passes.
    crash = Problem("new", "server", "CrashLoop", "container server ended with exit code 2")
    woken = replace(pod("new", "b", ready=False, problems=(crash,)), created=NOW)
    quick = {"progressDeadlineSeconds": 60}
    early = plan_rollout(spec(quick), seen(woken), NOW + 59)
    assert (early.stable and early.stable.name, early.wait) == ("b", 1)
    back = plan_rollout(spec(quick), seen(woken), NOW + 60)
    assert back.stable is not None
    assert back.stable.name == "a"
    assert "CrashLoop: pod new" in back.revisions["b"].failed
    # A pod that was made again gives the revision no more time.
    again = replace(woken, name="again", created=NOW + 50)
    assert plan_rollout(spec(quick), seen(woken, again), NOW + 60).revisions["b"].failed
    # One that is ready, or once was, is no failed rollout.
    assert not plan_rollout(spec(quick), seen(woken, pod("c", "b")), NOW + 999).revisions["b"].failed
    known = {"a": revision("a", 1, served=True), "b": revision("b", 2, served=True)}
    assert not plan_rollout(spec(quick), seen(woken, revisions=known), NOW + 999).revisions["b"].failed


def test_nothing_that_ever_served_needs_no_canary() -> None:
    fresh = {"a": revision("a", 1), "b": revision("b", 2)}
    found = plan_rollout(spec(CANARY), seen(live=deployment("a"), revisions=fresh), NOW)
    assert found.stable is not None
    assert (found.stable.name, found.canary) == ("b", None)


def test_builtin_keeps_both_together_within_its_maximum() -> None:
    scaling = {"mode": "Builtin", "maxReplicas": 5}
    found = plan_rollout(spec(CANARY, autoscaling=scaling), canary(*OLD), NOW)
    assert of(found) == (1, 0, "", 4)
    full = plan_rollout(spec(CANARY, autoscaling={**scaling, "maxReplicas": 4}), canary(*OLD), NOW)
    assert of(full) == (1, 0, "", 3)

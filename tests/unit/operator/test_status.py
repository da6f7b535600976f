"""The status: when it is written, and what it says of each state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.events.diff import Event, event_diff
from octavo_operator.observe.pods import Pod, Problem, rfc3339
from octavo_operator.status.input import Load, ReplicaChange, Scaling, StatusInput
from octavo_operator.status.status import HISTORY, next_status, unreadable_status

NOW = 2_000_000.0
BUILTIN = {"autoscaling": {"mode": "Builtin", "minReplicas": 0, "maxReplicas": 5}}
Json = dict[str, Any]
Make = Callable[..., Any]


@pytest.fixture
def view(make_owner: Callable[..., LLMDeployment]) -> StatusInput:
    return StatusInput(make_owner(), (), 1, "http://x/v1")


def condition(status: Json, name: str) -> tuple[str, str]:
    found = next(c for c in status["conditions"] if c["type"] == name)
    return found["status"], found["reason"]


def test_ready_and_its_company(view: StatusInput, make_pod: Make) -> None:
    status = next_status(replace(view, pods=(make_pod("a"),)), NOW)
    assert condition(status, "Ready") == ("True", "AllReplicasReady")
    assert condition(status, "Available") == ("True", "MinimumReplicas")
    assert condition(status, "Progressing") == ("False", "RolloutComplete")
    assert condition(status, "Degraded") == ("False", "AsExpected")
    assert condition(status, "Scheduled") == ("True", "AllPodsScheduled")
    assert condition(status, "ScalingActive") == ("False", "Manual")


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        ({"scheduled": False, "loaded": False}, "waiting for a node"),
        ({"loaded": False}, "waiting for the weights of oci://registry.local/models/tiny:1"),
        ({}, "the server loads the weights and computes its first token"),
    ],
)
def test_starting_says_what_it_waits_for(pod: Json, message: str, view: StatusInput, make_pod: Make) -> None:
    status = next_status(replace(view, pods=(make_pod("a", ready=False, **pod),)), NOW)
    ready = status["conditions"][0]
    assert (ready["reason"], ready["message"]) == ("Starting", message)


def test_a_failing_new_spec_leaves_the_old_one_serving(view: StatusInput, make_pod: Make) -> None:
    failed = make_pod(
        "b", ready=False, loaded=False, problems=(Problem("b", "server", "ModelPullFailed", "not found"),)
    )
    status = next_status(replace(view, pods=(make_pod("a", revision="old"), failed)), NOW)
    assert condition(status, "Ready") == ("False", "ModelPullFailed")
    assert condition(status, "Available") == ("True", "MinimumReplicas")
    assert condition(status, "Degraded") == ("True", "ModelPullFailed")
    assert condition(status, "ModelResolved") == ("False", "ModelPullFailed")
    assert status["failures"] == [
        {"pod": "b", "container": "server", "reason": "ModelPullFailed", "message": "not found", "count": 1}
    ]


def test_the_worst_failure_comes_first(view: StatusInput, make_pod: Make) -> None:
    problems = [Problem("a", "", reason, "m") for reason in ("Unschedulable", "VolumeMountFailed", "ImagePullFailed")]
    status = next_status(replace(view, pods=(make_pod("a", ready=False, problems=tuple(problems)),)), NOW)
    assert [f["reason"] for f in status["failures"]] == ["ImagePullFailed", "Unschedulable", "VolumeMountFailed"]
    assert condition(status, "Scheduled") == ("False", "Unschedulable")


def test_rolling_out(view: StatusInput, make_pod: Make) -> None:
    status = next_status(replace(view, pods=(make_pod("a", revision="old"), make_pod("b", ready=False))), NOW)
    assert condition(status, "Ready") == ("False", "RollingOut")
    assert condition(status, "Progressing") == ("True", "NewRevision")


def test_a_deadline_missed(view: StatusInput, make_pod: Make) -> None:
    missed = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    deployment = {"status": {"conditions": [missed]}}
    status = next_status(replace(view, pods=(make_pod("a", ready=False),), deployment=deployment), NOW)
    assert condition(status, "Progressing") == ("False", "ProgressDeadlineExceeded")


def test_zero_replicas(view: StatusInput, make_owner: Make) -> None:
    idle = replace(view, owner=make_owner(BUILTIN), target=0)
    assert condition(next_status(idle, NOW), "Ready") == ("True", "Idle")
    none = replace(view, owner=make_owner({"replicas": 0}), target=0)
    assert condition(next_status(none, NOW), "Ready") == ("False", "ScaledToZero")


def test_at_zero_the_model_stays_resolved(view: StatusInput, make_owner: Make, make_pod: Make) -> None:
    before = next_status(replace(view, pods=(make_pod("a"),)), NOW)
    idle = replace(view, owner=make_owner(BUILTIN, status=before), target=0)
    assert condition(next_status(idle, NOW), "ModelResolved") == ("True", "Loaded")


def test_transition_times_move_with_the_status_alone(view: StatusInput, make_owner: Make, make_pod: Make) -> None:
    first = next_status(replace(view, pods=(make_pod("a", ready=False),)), NOW)
    later = replace(view, owner=make_owner(status=first), pods=(make_pod("a"),))
    second = next_status(later, NOW + 60)
    times = {c["type"]: c["lastTransitionTime"] for c in second["conditions"]}
    assert times["Ready"] == rfc3339(NOW + 60)
    assert times["SpecValid"] == rfc3339(NOW)


def test_nothing_new_is_nothing_to_write(view: StatusInput, make_owner: Make, make_pod: Make) -> None:
    load = Load(kv_occupancy=0.5, running=3, kv_tokens=3200, cold_start=12)
    scaling = Scaling(1, "Steady", "one is enough", (ReplicaChange(NOW - 9, 2, 1, "LowLoad", "x=1"),))
    full = replace(view, owner=make_owner(BUILTIN), pods=(make_pod("a"),), load=load, scaling=scaling)
    first = next_status(full, NOW)
    again = replace(full, owner=make_owner(BUILTIN, status=first))
    assert next_status(again, NOW + 3600) == first
    talk = replace(scaling, message="one is still enough")
    assert next_status(replace(again, scaling=talk), NOW + 3600) == first


@pytest.mark.parametrize(
    ("load", "after", "written"),
    [
        (Load(kv_occupancy=0.52, running=3), 60, False),
        (Load(kv_occupancy=0.60, running=3), 29, False),
        (Load(kv_occupancy=0.60, running=3), 31, True),
        (Load(kv_occupancy=0.50, running=4), 31, True),
        (Load(kv_occupancy=0.50, running=3, held=1), 31, True),
        (Load(kv_occupancy=None, running=3), 31, True),
    ],
)
def test_load_is_written_when_it_moved_and_not_too_often(
    load: Load, after: float, written: bool, view: StatusInput, make_owner: Make
) -> None:
    first = next_status(replace(view, load=Load(kv_occupancy=0.5, running=3)), NOW)
    assert first["load"]["kvOccupancy"] == "50%"
    second = next_status(replace(view, owner=make_owner(status=first), load=load), NOW + after)
    assert (second["load"] != first["load"]) == written


def test_history_is_kept_across_restarts_and_bounded(view: StatusInput, make_owner: Make) -> None:
    owner = make_owner(BUILTIN)
    for number in range(HISTORY + 3):
        change = ReplicaChange(NOW + number, number, number + 1, "KvOccupancy", "demand=1.5")
        shown = replace(view, owner=owner, scaling=Scaling(number + 1, "KvOccupancy", "", (change,)))
        owner = make_owner(BUILTIN, status=next_status(shown, NOW + number))
    history = owner.status["autoscaling"]["history"]
    assert len(history) == HISTORY
    assert history[-1] == {
        "time": rfc3339(NOW + 12),
        "from": 12,
        "to": 13,
        "reason": "KvOccupancy",
        "inputs": "demand=1.5",
    }
    assert owner.status["autoscaling"]["lastScaleTime"] == rfc3339(NOW + 12)


def test_a_measured_cold_start_stays_while_nothing_runs(view: StatusInput, make_owner: Make) -> None:
    first = next_status(replace(view, load=Load(cold_start=30, kv_tokens=4096)), NOW)
    second = next_status(replace(view, owner=make_owner(status=first), load=Load()), NOW + 60)
    assert second["capacity"] == {"coldStartSeconds": 30, "kvTokensPerReplica": 4096}


def test_terminating_pods_are_draining_and_no_replicas(view: StatusInput, make_pod: Make) -> None:
    status = next_status(replace(view, pods=(make_pod("a"), make_pod("b", terminating=True))), NOW)
    assert (status["replicas"], status["readyReplicas"], status["drainingReplicas"]) == (1, 1, 1)
    assert condition(status, "Ready") == ("True", "AllReplicasReady")


def test_missing_metrics_are_a_condition(view: StatusInput, make_owner: Make) -> None:
    blind = ("MetricsUnavailable", "2 of 2 ready pods gave no load report: holding")
    scaling = Scaling(2, *blind, notice=blind)
    status = next_status(replace(view, owner=make_owner(BUILTIN), scaling=scaling), NOW)
    assert condition(status, "ScalingActive") == ("False", "MetricsUnavailable")


def test_a_change_is_news_once(view: StatusInput, make_owner: Make, make_pod: Make) -> None:
    change = ReplicaChange(NOW, 1, 2, "KVOccupancy", "kv 79%")
    owner = make_owner(BUILTIN)
    up = replace(view, owner=owner, pods=(make_pod("a"),), scaling=Scaling(2, "KVOccupancy", "", (change,)))
    first = next_status(up, NOW)
    assert event_diff({}, first) == (
        Event(False, "AllReplicasReady", "1 of 1 replicas are ready"),
        Event(False, "ScaledUp", "1 to 2 replicas (KVOccupancy): kv 79%"),
    )
    assert event_diff(first, first) == ()
    failed = make_pod("a", ready=False, problems=(Problem("a", "server", "CrashLoop", "no"),))
    second = next_status(replace(up, owner=make_owner(BUILTIN, status=first), pods=(failed,)), NOW)
    assert event_diff(first, second) == (Event(True, "CrashLoop", "pod a: no"),)


def test_pods_can_be_described(make_pod: Callable[..., Pod]) -> None:
    assert make_pod("a").active
    assert not make_pod("a", terminating=True).active


def failing(make_pod: Make, *problems: Problem, **changes: Any) -> Pod:
    pod: Pod = make_pod("a", ready=False, problems=problems, **changes)
    return pod


def test_counts_alone_are_renewed_now_and_then(view: StatusInput, make_owner: Make, make_pod: Make) -> None:
    crash = Problem("a", "server", "CrashLoop", "no", 3, NOW)
    first = next_status(replace(view, pods=(failing(make_pod, crash),)), NOW)
    assert (first["failures"][0]["count"], first["failures"][0]["lastTime"]) == (3, rfc3339(NOW))
    again = replace(view, owner=make_owner(status=first))
    soon = failing(make_pod, replace(crash, count=4, last=NOW + 20))
    assert next_status(replace(again, pods=(soon,)), NOW + 21) == first
    later = failing(make_pod, replace(crash, count=6, last=NOW + 80))
    assert next_status(replace(again, pods=(later,)), NOW + 81)["failures"][0]["count"] == 6
    other = failing(make_pod, replace(crash, message="another", last=NOW + 20))
    assert next_status(replace(again, pods=(other,)), NOW + 21)["failures"][0]["message"] == "another"


def test_a_cured_failure_is_gone(view: StatusInput, make_owner: Make, make_pod: Make) -> None:
    first = next_status(replace(view, pods=(failing(make_pod, Problem("a", "server", "CrashLoop", "no")),)), NOW)
    second = next_status(replace(view, owner=make_owner(status=first), pods=(make_pod("a"),)), NOW)
    assert "failures" not in second
    assert condition(second, "Degraded") == ("False", "AsExpected")


def test_a_pod_that_ended_is_history_once_others_serve(view: StatusInput, make_pod: Make) -> None:
    evicted = make_pod("e", ready=False, finished=True, problems=(Problem("e", "", "Evicted", "low on memory"),))
    assert next_status(replace(view, pods=(evicted,)), NOW)["failures"][0]["reason"] == "Evicted"
    healed = next_status(replace(view, pods=(evicted, make_pod("a"))), NOW)
    assert "failures" not in healed
    assert condition(healed, "Degraded") == ("False", "AsExpected")


def test_pods_that_cannot_be_created_are_a_failure_without_a_pod(view: StatusInput, make_pod: Make) -> None:
    message = 'pods "tiny-1-x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1'
    refused = {"status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": message}]}}
    status = next_status(replace(view, deployment=refused, target=2, pods=(make_pod("a"),)), NOW)
    assert condition(status, "Ready") == ("True", "PartiallyReady")
    for name in ("Degraded", "Scheduled"):
        assert condition(status, name)[1] == "QuotaExceeded"
    (failure,) = status["failures"]
    assert "pod" not in failure
    assert failure["message"].startswith("the namespace's ResourceQuota has no room for another pod")


def test_a_failure_beside_what_serves_is_news_once(view: StatusInput, make_owner: Make, make_pod: Make) -> None:
    """Ready stays what it was: without an event of its own nobody would hear of it."""
    two = replace(view, target=2)
    serving = make_pod("b")
    first = next_status(replace(two, pods=(serving, make_pod("a", ready=False))), NOW)
    crash = Problem("a", "server", "CrashLoop", "no", 1, NOW)
    second = next_status(replace(two, owner=make_owner(status=first), pods=(serving, failing(make_pod, crash))), NOW)
    assert event_diff(first, second) == (Event(True, "CrashLoop", "pod a: no"),)
    more = (failing(make_pod, replace(crash, count=9, last=NOW + 100)), failing(make_pod, replace(crash, pod="c")))
    third = next_status(replace(two, owner=make_owner(status=second), pods=(serving, *more)), NOW + 100)
    assert third != second
    assert event_diff(second, third) == ()


def test_one_reason_in_many_places_is_one_event(view: StatusInput, make_pod: Make) -> None:
    pull = Problem("a", "server", "ModelPullFailed", "not found")
    status = next_status(replace(view, pods=(failing(make_pod, pull, loaded=False),)), NOW)
    assert event_diff({}, status) == (Event(True, "ModelPullFailed", "pod a: not found"),)


def test_the_autoscaler_s_moods_are_no_changes_of_a_condition(view: StatusInput, make_owner: Make) -> None:
    owner = make_owner(BUILTIN)
    seen = {
        condition(next_status(replace(view, owner=owner, scaling=Scaling(2, reason, "")), NOW), "ScalingActive")
        for reason in ("Steady", "Stabilizing", "RequestsWaiting", "KVOccupancy", "PodsPending")
    }
    assert seen == {("True", "Deciding")}
    for reason, status in (("ScalingLimited", "True"), ("StartsFail", "False"), ("MetricsPartial", "True")):
        scaling = Scaling(5, "Steady", "", notice=(reason, "what to know"))
        noticed = next_status(replace(view, owner=owner, scaling=scaling), NOW)
        assert condition(noticed, "ScalingActive") == (status, reason)
        assert noticed["conditions"][-1]["message"] == "what to know"


def test_a_message_from_outside_is_bounded(view: StatusInput, make_pod: Make) -> None:
    """A model's own words may be longer than what a status takes; that must never stop a pass."""
    status = next_status(replace(view, pods=(failing(make_pod, Problem("a", "x", "R" * 300, "m\n" * 5000)),)), NOW)
    (failure,) = status["failures"]
    assert len(failure["message"]) == 1024
    assert len(failure["reason"]) == 128
    assert "\n" not in failure["message"]


def test_a_spec_that_no_longer_fits_keeps_everything_but_what_is_said_of_it(view: StatusInput) -> None:
    before = next_status(view, NOW)
    body = {"metadata": {"generation": 7}, "status": before}
    after = unreadable_status(body, "spec.model.uri: found 'ftp://x'", NOW + 9)
    found = {c["type"]: c for c in after["conditions"]}
    for name in ("Ready", "SpecValid"):
        assert (found[name]["status"], found[name]["reason"]) == ("False", "InvalidSpec")
        assert "ftp://x" in found[name]["message"]
    assert found["Available"] == next(c for c in before["conditions"] if c["type"] == "Available")
    assert after | {"conditions": [], "observedGeneration": 0} == before | {"conditions": [], "observedGeneration": 0}
    assert unreadable_status({**body, "status": after}, "spec.model.uri: found 'ftp://x'", NOW + 99) == after
    assert unreadable_status({"metadata": {}}, "spec: no", NOW)["conditions"][0]["type"] == "Ready"

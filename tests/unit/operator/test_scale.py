"""Which replicas go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.observe.pods import Pod, rfc3339
from octavo_operator.rollout.replicas import DRAIN_NOTICE_SECONDS, VICTIM_COST, scale, wanted

NOW = 10_000.0


@pytest.fixture
def revision(make_owner: Callable[..., LLMDeployment]) -> str:
    return make_owner().revision


def drain_requested_at(steps: object) -> dict[str, str | None]:
    return {mark.pod: mark.annotations["octavo.dev/draining"] for mark in steps.drains}  # type: ignore[attr-defined]


def test_the_pod_with_the_least_work_goes(make_pod: Callable[..., Pod], revision: str) -> None:
    pods = [make_pod("a"), make_pod("b"), make_pod("c")]
    step = scale(3, 2, pods, revision, {"a": 500, "b": 20, "c": 300}, NOW)
    assert drain_requested_at(step) == {"b": rfc3339(NOW)}
    assert step.drains[0].annotations["controller.kubernetes.io/pod-deletion-cost"] == VICTIM_COST
    assert (step.replicas, step.wait) == (3, DRAIN_NOTICE_SECONDS)


def test_what_does_not_serve_goes_first_and_at_once(make_pod: Callable[..., Pod], revision: str) -> None:
    pods = [make_pod("a"), make_pod("b", ready=False)]
    step = scale(2, 1, pods, revision, {"a": 0}, NOW)
    assert drain_requested_at(step) == {"b": rfc3339(NOW)}
    assert (step.replicas, step.wait) == (1, None)


def test_of_pods_with_equal_work_the_youngest_goes(make_pod: Callable[..., Pod], revision: str) -> None:
    pods = [make_pod("a", created=1000.0), make_pod("b", created=2000.0), make_pod("c", created=1500.0)]
    assert set(drain_requested_at(scale(3, 2, pods, revision, {"a": 7, "b": 7, "c": 7}, NOW))) == {"b"}


def test_a_pod_of_unknown_work_stays_longer(make_pod: Callable[..., Pod], revision: str) -> None:
    step = scale(2, 1, [make_pod("a"), make_pod("b")], revision, {"b": 10_000}, NOW)
    assert set(drain_requested_at(step)) == {"b"}


def test_the_number_goes_down_once_the_marks_were_seen(make_pod: Callable[..., Pod], revision: str) -> None:
    pods = [make_pod("a"), make_pod("b", drain_requested_at=NOW - DRAIN_NOTICE_SECONDS)]
    # b is marked, and stays the victim although a has less work by now.
    step = scale(2, 1, pods, revision, {"a": 0, "b": 900}, NOW)
    assert (step.replicas, step.drains, step.wait) == (1, (), None)


def test_marks_stay_until_the_marked_pod_is_gone(make_pod: Callable[..., Pod], revision: str) -> None:
    pods = [make_pod("a"), make_pod("b", drain_requested_at=NOW - 5)]
    step = scale(1, 1, pods, revision, {}, NOW)
    assert (step.replicas, step.drains) == (1, ())


def test_a_marked_pod_is_kept_when_another_went(make_pod: Callable[..., Pod], revision: str) -> None:
    pods = [make_pod("b", drain_requested_at=NOW - 5), make_pod("a", terminating=True)]
    step = scale(1, 1, pods, revision, {}, NOW)
    assert drain_requested_at(step) == {"b": None}


def test_a_rise_during_a_scale_down_keeps_the_marked_pod(make_pod: Callable[..., Pod], revision: str) -> None:
    pods = [make_pod("a"), make_pod("b", drain_requested_at=NOW - 1)]
    step = scale(2, 3, pods, revision, {}, NOW)
    assert (step.replicas, drain_requested_at(step)) == (3, {"b": None})


def test_during_a_rollout_the_deployment_chooses(make_pod: Callable[..., Pod], revision: str) -> None:
    pods = [make_pod("a"), make_pod("b", revision="old")]
    step = scale(2, 1, pods, revision, {}, NOW)
    assert (step.replicas, step.drains) == (1, ())


@pytest.mark.parametrize(
    ("spec", "current", "recommended", "expected"),
    [
        ({"replicas": 3}, 7, 5, 3),
        ({"replicas": 3, "suspend": True}, 7, 5, 0),
        ({"replicas": 3, "autoscaling": {"mode": "External"}}, 7, 5, 3),
        ({"autoscaling": {"mode": "Builtin", "minReplicas": 0, "maxReplicas": 4}}, None, None, 1),
        ({"autoscaling": {"mode": "Builtin", "minReplicas": 2, "maxReplicas": 4}}, None, None, 2),
        ({"autoscaling": {"mode": "Builtin", "minReplicas": 0, "maxReplicas": 4}}, 0, None, 0),
        ({"autoscaling": {"mode": "Builtin", "minReplicas": 0, "maxReplicas": 4}}, 3, None, 3),
        ({"autoscaling": {"mode": "Builtin", "minReplicas": 0, "maxReplicas": 4}}, 3, 0, 0),
        ({"autoscaling": {"mode": "Builtin", "minReplicas": 1, "maxReplicas": 4}}, 3, 9, 4),
    ],
)
def test_wanted_replicas_by_mode(
    spec: dict[str, object],
    current: int | None,
    recommended: int | None,
    expected: int,
    make_owner: Callable[..., LLMDeployment],
) -> None:
    assert wanted(make_owner(spec).spec, current, recommended) == expected

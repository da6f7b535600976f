"""A pass may be left out only when it would find what the last one found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.api.resource import Key
from octavo_operator.reconcile.version_tracker import GONE, ObjectChange, VersionTracker, version_of

KEY = Key("models", "tiny")


@pytest.fixture
def settled() -> VersionTracker:
    """The last pass looked at `pod` of version 7 and wrote version 12 of `own`, which it had read as 10."""
    version_tracker = VersionTracker()
    version_tracker.begin(KEY)
    version_tracker.wrote(KEY, "own", 12)
    version_tracker.record_settled(KEY, {"own": 10, "pod": 7})
    return version_tracker


@pytest.mark.parametrize(
    ("uid", "version", "needs_pass"),
    [
        ("pod", 6, False),
        ("pod", 7, False),
        ("pod", 8, True),
        ("pod", GONE, True),
        ("another pod", 1, True),
        ("own", 12, False),
        ("own", 11, True),  # somebody else's, between our look and our write
        ("own", 13, True),
    ],
)
def test_only_what_is_newer_than_the_last_look_asks_for_a_pass(
    settled: VersionTracker, uid: str, version: int, needs_pass: bool
) -> None:
    settled.observe(ObjectChange(KEY, uid, version))
    assert settled.needs_pass(KEY) is needs_pass


def test_one_change_among_echoes_is_enough(settled: VersionTracker) -> None:
    for version in (11, 12):
        settled.observe(ObjectChange(KEY, "own", version))
    assert settled.needs_pass(KEY)


def test_nothing_is_left_out_before_a_pass_has_settled() -> None:
    version_tracker = VersionTracker()
    assert version_tracker.needs_pass(KEY)
    version_tracker.begin(KEY)
    assert version_tracker.needs_pass(KEY)


def test_who_asks_during_a_pass_gets_another_one(settled: VersionTracker) -> None:
    settled.begin(KEY)
    settled.force(KEY)
    settled.record_settled(KEY, {"own": 12})
    assert settled.needs_pass(KEY)
    settled.begin(KEY)
    settled.record_settled(KEY, {"own": 12})
    assert not settled.needs_pass(KEY)


@pytest.mark.parametrize(("text", "version"), [("12", 12), ("", GONE), (None, GONE), ("abc", GONE)])
def test_versions_that_are_no_numbers_are_never_known(text: str | None, version: int) -> None:
    assert version_of(text) == version


Step = st.tuples(st.sampled_from(["write", "event", "pass"]), st.sampled_from("ab"))


@given(st.lists(Step, max_size=60))
def test_when_all_events_have_come_the_last_pass_saw_everything(steps: list[tuple[str, str]]) -> None:
    """Others write, events come late and in order, passes read what is there when they are due."""
    version_tracker, live, seen, pending, clock = VersionTracker(), {"a": 1, "b": 1}, {}, list[ObjectChange](), 1

    def work() -> None:
        if version_tracker.needs_pass(KEY):
            version_tracker.begin(KEY)
            seen.update(live)
            version_tracker.record_settled(KEY, dict(live))

    work()
    for what, uid in (*steps, *[("event", "")] * len(steps)):
        if what == "write":
            clock += 1
            live[uid] = clock
            pending.append(ObjectChange(KEY, uid, clock))
        elif what == "event" and pending:
            version_tracker.observe(pending.pop(0))
        elif what == "pass":
            work()
    work()
    assert seen == live

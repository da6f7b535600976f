"""The pace of the watches, and how a watch that has stopped is told from one that hears nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from yarl import URL

from octavo_operator.app.watch_health import CALM_SECONDS, LONGEST_PAUSE, WatchHealth
from octavo_operator.app.watch_middleware import watch_middleware

PODS, SERVICES = "/api/v1/pods", "/api/v1/services"


def nothing() -> None: ...


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_question_in_time_waits_for_nothing_and_a_hurry_ever_longer() -> None:
    time, pauses = Time(), []
    health = WatchHealth(1, nothing, nothing, time)
    for _ in range(20):
        pauses.append(health.pause(PODS, watch=True))
        time.now += pauses[-1]
    assert pauses[0] == 0
    assert LONGEST_PAUSE / 2 <= max(pauses) <= LONGEST_PAUSE
    # Twenty watches that end at once take minutes, not a second.
    assert sum(pauses) > 100
    # Others are not concerned, and one that lasted starts afresh.
    assert health.pause(SERVICES, watch=True) == health.pause(PODS, watch=False) == 0
    time.now += LONGEST_PAUSE + CALM_SECONDS
    assert health.pause(PODS, watch=True) == 0


def test_only_a_second_reading_has_missed_something() -> None:
    said: list[str] = []
    health = WatchHealth(2, lambda: said.append("complete"), lambda: said.append("missed"))
    health.read(PODS)
    assert said == []
    health.read(SERVICES)
    assert said == ["complete"]
    health.read(PODS)
    assert said[1] == "missed"


def test_a_kind_that_goes_has_missed_something_once_and_again_when_it_comes_back() -> None:
    said: list[str] = []
    health = WatchHealth(1, nothing, lambda: said.append("missed"))
    health.read(PODS)
    health.undefined(PODS)
    health.undefined(PODS)
    assert len(said) == 1
    health.read(PODS)
    assert len(said) == 2
    health.undefined(PODS)
    assert len(said) == 3


def test_the_quietest_watch_counts() -> None:
    time = Time()
    health = WatchHealth(2, nothing, nothing, time)
    assert health.silence() == 0
    health.pause(PODS, watch=False)
    health.pause(SERVICES, watch=False)
    time.now += 290
    health.pause(PODS, watch=True)
    assert health.silence() == 290
    health.pause(SERVICES, watch=True)
    assert health.silence() == 0


async def test_the_next_page_of_a_list_is_no_new_question() -> None:
    missed: list[None] = []
    health = WatchHealth(1, nothing, lambda: missed.append(None))
    sent: list[str] = []

    async def send(request: Any) -> Any:
        sent.append(request.headers.get("Accept", ""))
        return SimpleNamespace(status=200, content=None)

    ask = watch_middleware({"pods"}, health)
    for number in range(200):
        query = "?limit=100" + ("&continue=abc" if number else "")
        await ask(SimpleNamespace(url=URL(f"https://k/api/v1/pods{query}"), headers={}), send)  # type: ignore[arg-type]
    assert missed == []
    assert set(sent) == {""}
    await ask(SimpleNamespace(url=URL("https://k/api/v1/pods?watch=true"), headers={}), send)  # type: ignore[arg-type]
    assert "as=PartialObjectMetadata;" in sent[-1]

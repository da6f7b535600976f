"""Events, log lines and metrics: everything once, nothing without bound."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.events.diff import Event
from octavo_operator.events.recorder import BURST, REFILL_SECONDS, EventRecorder
from octavo_operator.kube.errors import TransientError
from octavo_operator.metrics.process import OperatorMetrics
from octavo_operator.status.input import Load

Json = dict[str, Any]


class Events:
    """Takes events, or fails."""

    def __init__(self, *, down: bool = False) -> None:
        self.posted: list[Json] = []
        self._down = down

    async def create(self, _resource: object, body: Json) -> Json:
        if self._down:
            raise TransientError(0, "no answer")
        self.posted.append(body)
        return body


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def make_recorder(clock: list[float]) -> Callable[[Events], EventRecorder]:
    return lambda events: EventRecorder(events, "test", lambda: clock[0])  # type: ignore[arg-type]


async def test_news_are_an_event_and_a_log_line(
    make_recorder: Callable[[Events], EventRecorder],
    make_owner: Callable[..., LLMDeployment],
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = Events()
    with caplog.at_level(logging.INFO):
        await make_recorder(events).record(
            make_owner(), [Event(True, "CrashLoop", "no"), Event(False, "ScaledUp", "2")]
        )
    assert [(e["type"], e["reason"], e["note"]) for e in events.posted] == [
        ("Warning", "CrashLoop", "no"),
        ("Normal", "ScaledUp", "2"),
    ]
    assert events.posted[0]["regarding"]["name"] == "tiny"
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [("WARNING", "CrashLoop: no"), ("INFO", "ScaledUp: 2")]


async def test_what_flaps_is_told_ever_more_rarely(
    make_recorder: Callable[[Events], EventRecorder], make_owner: Callable[..., LLMDeployment], clock: list[float]
) -> None:
    events = Events()
    recorder, owner = make_recorder(events), make_owner()
    for _ in range(1000):
        clock[0] += 1
        await recorder.record(owner, [Event(True, "NotReady", "again")])
    assert BURST <= len(events.posted) <= BURST + 1000 / REFILL_SECONDS + 1
    clock[0] += REFILL_SECONDS
    before = len(events.posted)
    await recorder.record(owner, [Event(False, "AllReplicasReady", "1 of 1")])
    assert len(events.posted) == before + 1


async def test_an_event_that_cannot_be_posted_is_no_failure(
    make_recorder: Callable[[Events], EventRecorder],
    make_owner: Callable[..., LLMDeployment],
    caplog: pytest.LogCaptureFixture,
) -> None:
    await make_recorder(Events(down=True)).record(make_owner(), [Event(True, "CrashLoop", "no")])
    assert "event not posted: no answer" in caplog.text


def test_conditions_failures_and_load_are_metrics_while_the_resource_is_there() -> None:
    metrics = OperatorMetrics()
    conditions = [{"type": "Ready", "status": "False", "reason": "CrashLoop"}]
    failures = [{"reason": "CrashLoop"}, {"reason": "CrashLoop"}, {"reason": "DiskFull"}]
    metrics.states.status("models", "tiny", {"conditions": conditions, "failures": failures})
    metrics.states.load("models", "tiny", Load(kv_occupancy=0.5, running=3, queued=2, held=1))

    def value(metric: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(metric, {"namespace": "models", "name": "tiny", **labels})

    assert value("octavo_condition", type="Ready", status="False", reason="CrashLoop") == 1
    assert value("octavo_failures", reason="CrashLoop") == 2
    assert value("octavo_failures", reason="DiskFull") == 1
    assert value("octavo_kv_occupancy_ratio") == 0.5
    assert value("octavo_queued_requests") == 2
    conditions[0] |= {"status": "True", "reason": "AllReplicasReady"}
    metrics.states.status("models", "tiny", {"conditions": conditions})
    assert value("octavo_condition", type="Ready", status="False", reason="CrashLoop") is None
    assert value("octavo_condition", type="Ready", status="True", reason="AllReplicasReady") == 1
    assert value("octavo_failures", reason="CrashLoop") is None
    metrics.forget("models", "tiny")
    assert 'name="tiny"' not in metrics.text().decode()

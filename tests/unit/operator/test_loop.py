"""The sampling loop: what it asks, what it tells, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from octavo_operator.api.resource import Key
from octavo_operator.autoscaler.loop import LOAD_UPDATES_PER_SECOND, AutoscaleLoop
from octavo_operator.autoscaler.observation import GatewayReplica, observation, policy_settings, summary
from octavo_operator.metrics.process import OperatorMetrics
from octavo_operator.observe.pods import Problem
from octavo_operator.status.status import LOAD_SECONDS
from octavo_protocol.load import GatewayReport, LoadReport, ModelTraffic, encode

BUILTIN = {"autoscaling": {"mode": "Builtin", "minReplicas": 0, "maxReplicas": 4}}
KEY = Key("models", "tiny")
Make = Callable[..., Any]


def traffic(**changes: Any) -> ModelTraffic:
    values: dict[str, Any] = {
        "namespace": "models",
        "name": "tiny",
        "arrivals": 0,
        "arrival_prompt_tokens": 0,
        "in_flight": 0,
        "held": 0,
        "held_prompt_tokens": 0,
        "oldest_hold": 0.0,
        "last_arrival": 0.0,
    }
    return ModelTraffic(**{**values, **changes})


class Site:
    """Pods and gateways by address, and a clock the test moves."""

    def __init__(self) -> None:
        self.now = 100_000.0
        self.answers: dict[str, bytes] = {}
        self.gateways: dict[str, str] = {}
        self.asked: list[str] = []
        self.enqueued: list[Key] = []
        self.loop = AutoscaleLoop(
            self.fetch, self.list_gateways, self.enqueued.append, OperatorMetrics(), lambda: self.now
        )

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        address = url.removeprefix("http://").partition(":9000")[0]
        if address not in self.answers:
            raise OSError("nobody there")
        return self.answers[address]

    async def list_gateways(self) -> dict[str, str]:
        return self.gateways

    async def tick(self, seconds: float = 2.0) -> None:
        self.now += seconds
        await self.loop.tick()


@pytest.fixture
def site() -> Site:
    return Site()


async def test_a_full_pool_asks_for_another_replica(
    site: Site, make_owner: Make, make_pod: Make, make_report: Make
) -> None:
    owner = make_owner(BUILTIN)
    site.answers["10.0.0.1"] = encode(make_report(blocks_pinned=99, running=9, waiting=8, waiting_tokens=900))
    site.loop.track(owner, (make_pod("a"),), 1)
    await site.tick()
    assert site.asked == ["http://10.0.0.1:9000/v1/octavo/load"]
    assert site.enqueued == [KEY]
    scaling = site.loop.scaling(KEY)
    assert scaling is not None
    assert scaling.desired > 1
    (change,) = scaling.changes
    assert (change.before, change.after, change.time) == (1, scaling.desired, site.now)
    load = site.loop.load(KEY)
    assert load is not None
    assert (load.kv_occupancy, load.queued, load.kv_tokens) == (0.99, 8, 3200)


async def test_manual_mode_is_sampled_and_never_decided(
    site: Site, make_owner: Make, make_pod: Make, make_report: Make
) -> None:
    site.answers["10.0.0.1"] = encode(make_report(blocks_pinned=99, waiting=50))
    site.loop.track(make_owner(), (make_pod("a"),), 1)
    await site.tick()
    assert site.loop.scaling(KEY) is None
    assert site.loop.load(KEY) is not None


async def test_a_changed_load_is_told_every_thirty_seconds_at_most(
    site: Site, make_owner: Make, make_pod: Make, make_report: Make
) -> None:
    site.loop.track(make_owner(), (make_pod("a"),), 1)
    for second in range(59):
        site.answers["10.0.0.1"] = encode(make_report(running=second))
        await site.tick(1.0)
    assert len(site.enqueued) == 59 // int(LOAD_SECONDS) + 1


async def test_a_wake_starts_a_replica_at_once(site: Site, make_owner: Make) -> None:
    site.loop.track(make_owner(BUILTIN), (), 0)
    await site.tick()
    scaling = site.loop.scaling(KEY)
    assert scaling is not None
    assert scaling.desired == 0
    site.enqueued.clear()
    assert site.loop.wake(KEY) == 0
    await site.tick(0.0)
    scaling = site.loop.scaling(KEY)
    assert scaling is not None
    assert scaling.desired == 1
    assert site.enqueued == [KEY]


async def test_a_held_request_starts_a_replica_too(site: Site, make_owner: Make) -> None:
    site.gateways = {"g": "10.0.1.1"}
    models = [traffic(held=3, held_prompt_tokens=30, last_arrival=site.now)]
    site.answers["10.0.1.1"] = encode(GatewayReport(sequence=1, start_time=1.0, models=models))
    site.loop.track(make_owner(BUILTIN), (), 0)
    await site.tick()
    scaling, load = site.loop.scaling(KEY), site.loop.load(KEY)
    assert scaling is not None
    assert load is not None
    assert (scaling.desired, load.held) == (1, 3)


async def test_a_wake_for_an_unknown_resource_says_so(site: Site) -> None:
    assert site.loop.wake(KEY) is None


async def test_silence_and_nonsense_are_missing_samples(site: Site, make_owner: Make, make_pod: Make) -> None:
    pods = (make_pod("a"), make_pod("b", ip="10.0.0.2"), make_pod("c", ip="fd00::1"))
    site.answers["10.0.0.2"] = b'{"sequence": "many"}'
    site.loop.track(make_owner(BUILTIN), pods, 3)
    await site.tick()
    scaling = site.loop.scaling(KEY)
    assert scaling is not None
    assert (scaling.desired, scaling.reason) == (3, "MetricsUnavailable")
    assert "http://[fd00::1]:9000/v1/octavo/load" in site.asked


async def test_a_recreated_resource_starts_afresh(
    site: Site, make_owner: Make, make_pod: Make, make_report: Make
) -> None:
    site.answers["10.0.0.1"] = encode(make_report(blocks_pinned=99))
    site.loop.track(make_owner(BUILTIN), (make_pod("a"),), 1)
    await site.tick()
    site.loop.track(make_owner(BUILTIN, uid="u2"), (), 1)
    assert site.loop.scaling(KEY) is None
    assert site.loop.load(KEY) is None


async def test_what_is_forgotten_is_not_asked(site: Site, make_owner: Make, make_pod: Make) -> None:
    site.loop.track(make_owner(BUILTIN), (make_pod("a"),), 1)
    site.loop.forget(KEY)
    await site.tick()
    assert site.asked == []


async def test_an_unmet_decision_is_told_again(site: Site, make_owner: Make, make_pod: Make, make_report: Make) -> None:
    owner = make_owner(BUILTIN)
    site.answers["10.0.0.1"] = encode(make_report(blocks_pinned=99, waiting=8))
    site.loop.track(owner, (make_pod("a"),), 1)
    await site.tick()
    await site.tick()
    assert site.enqueued == [KEY, KEY]


def test_phases_of_pods(make_owner: Make, make_pod: Make) -> None:
    pods = (
        make_pod("ready"),
        make_pod("going", terminating=True),
        make_pod("starting", ready=False),
        make_pod("homeless", ready=False, problems=(Problem("x", "", "Unschedulable", ""),)),
        make_pod("broken", ready=False, problems=(Problem("x", "", "ModelPullFailed", ""),)),
        make_pod("ended", ready=False, finished=True),
    )
    seen = observation(make_owner(BUILTIN), pods, {}, (), 4, wake=True)
    assert [pod.phase for pod in seen.pods] == ["ready", "draining", "pending", "pending", "failed", "failed"]
    assert (seen.current, seen.wake) == (4, True)


def test_a_failing_new_spec_is_no_failing_replica(make_owner: Make, make_pod: Make) -> None:
    broken = (Problem("x", "", "ModelPullFailed", ""),)
    pods = (
        make_pod("old", revision="old"),
        make_pod("surge", created=2000.0, ready=False, problems=broken),
        make_pod("going", terminating=True),
    )
    assert [pod.name for pod in observation(make_owner(BUILTIN), pods, {}, (), 1, wake=False).pods] == ["old", "going"]
    assert len(observation(make_owner(BUILTIN), pods, {}, (), 2, wake=False).pods) == 3


def test_a_gateway_that_does_not_know_the_model_has_no_traffic(make_owner: Make) -> None:
    report = GatewayReport(sequence=1, start_time=1.0, models=[traffic(name="other")])
    gateways = (GatewayReplica("a", "1", report, 5.0), GatewayReplica("b", "2", None, 5.0))
    seen = observation(make_owner(BUILTIN), (), {}, gateways, 0, wake=False)
    assert [gateway.traffic for gateway in seen.gateways] == [None, None]


def test_settings_of_the_policy(make_owner: Make) -> None:
    found = policy_settings(make_owner(BUILTIN).spec, 0.0)
    assert (found.min_replicas, found.max_replicas, found.kv_target, found.idle_to_zero) == (0, 4, 0.85, 900)
    assert (found.up_max_step, found.down_stabilization, found.overdue_seconds) == (4, 120, 1800)


def test_a_summary_counts_only_fresh_reports_of_serving_pods(
    make_owner: Make, make_pod: Make, make_report: Callable[..., LoadReport]
) -> None:
    pods = (make_pod("a"), make_pod("b"), make_pod("c", ready=False), make_pod("d", terminating=True))
    reports = {
        "a": (990.0, make_report(blocks_pinned=10, running=1, waiting_tokens=7)),
        "b": (900.0, make_report(blocks_pinned=50, running=5)),
        "c": (990.0, make_report(blocks_pinned=50, running=5)),
        "d": (990.0, make_report(blocks_pinned=50, running=5)),
    }
    load = summary(make_owner(), pods, reports, (), 1000.0)
    assert (load.kv_occupancy, load.running) == (0.1, 1)
    assert load.work["a"] == 10 * 32 + 7
    assert "b" not in load.work


def test_cold_start_is_measured_from_the_creation_of_the_pod(
    make_owner: Make, make_pod: Make, make_report: Callable[..., LoadReport]
) -> None:
    report = make_report(start_time=1010.0, cold_start=5.0)
    owner = make_owner()
    assert summary(owner, (make_pod("a", created=1000.0),), {"a": (1.0, report)}, (), 2.0).cold_start == 15
    assert summary(owner, (make_pod("a", restarts=1),), {"a": (1.0, report)}, (), 2.0).cold_start is None


async def test_a_pod_that_does_not_answer_is_asked_ever_more_rarely_and_found_again(
    site: Site, make_owner: Make, make_pod: Make, make_report: Make
) -> None:
    site.loop.track(make_owner(BUILTIN), (make_pod("a"),), 1)
    asked = []
    for _ in range(30):
        before = len(site.asked)
        await site.tick(1.0)
        asked.append(len(site.asked) > before)
    # Twice at the usual pace; then 2, 4, 8 and at most 10 seconds apart.
    assert asked.count(True) < 8
    assert any(asked[-11:])
    site.answers["10.0.0.1"] = encode(make_report(running=3))
    for _ in range(11):
        await site.tick(1.0)
    await site.tick(2.0)
    load = site.loop.load(KEY)
    assert load is not None
    assert load.running == 3
    before = len(site.asked)
    await site.tick(2.0)
    assert len(site.asked) == before + 1


async def test_silent_pods_hold_up_neither_their_own_resource_nor_others(
    site: Site, make_owner: Make, make_pod: Make, make_report: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, forever = site.fetch, asyncio.Event()

    async def hanging(url: str) -> bytes:
        if "10.9." in url:
            await forever.wait()
            raise OSError("gave up")
        return await answer(url)

    site.loop = AutoscaleLoop(hanging, site.list_gateways, site.enqueued.append, OperatorMetrics(), lambda: site.now)
    site.answers["10.0.0.1"] = encode(make_report(blocks_pinned=99, waiting=8))
    dead = tuple(make_pod(f"d{n}", ip=f"10.9.0.{n}") for n in range(200))
    sampling = site.loop._sampling
    # They have missed once already: the first time they are waited for as everybody is.
    sampling._silent = {pod.ip: (1, 0.0) for pod in dead}
    site.loop.track(make_owner(BUILTIN), (make_pod("a"), *dead), 201)
    async with asyncio.timeout(30):
        for key, tracked in site.loop._due():
            await site.loop._visit(key, tracked)
    assert site.loop.load(KEY) is not None
    forever.set()
    await sampling.finish()


async def test_with_many_pods_those_that_are_not_scaled_are_asked_more_rarely(
    site: Site, make_owner: Make, make_pod: Make, make_report: Make
) -> None:
    site.answers["10.0.0.1"] = encode(make_report())
    scaled = replace(make_owner(BUILTIN), key=Key("models", "scaled"))
    site.loop.track(scaled, (make_pod("a"),), 1)
    crowd = [replace(make_owner(), key=Key("models", f"m{n}")) for n in range(100)]
    for owner in crowd:
        site.loop.track(owner, tuple(make_pod(f"p{n}") for n in range(10)), 10)
    # 1,000 pods at 100 a second: ten seconds.
    counts = []
    for _ in range(40):
        before = len(site.asked)
        await site.tick(2.0)
        counts.append(len(site.asked) - before)
    later = counts[10:]
    assert min(later) >= 1
    assert 150 <= sum(later) / len(later) <= 250
    assert site.loop.load(crowd[0].key) is not None


async def test_loads_of_thousands_are_told_more_rarely_and_all_alike(
    site: Site, make_owner: Make, make_pod: Make, make_report: Make
) -> None:
    owners = [replace(make_owner(), key=Key("models", f"m{n}")) for n in range(300)]
    for owner in owners:
        site.loop.track(owner, (make_pod("a"),), 1)
    for second in range(40):
        site.answers["10.0.0.1"] = encode(make_report(running=second))
        await site.tick(2.0)
    between = 300 / LOAD_UPDATES_PER_SECOND
    counts = [site.enqueued.count(owner.key) for owner in owners]
    assert set(counts) <= {80 // int(between), 80 // int(between) + 1}


async def test_a_new_leader_tells_only_what_its_predecessor_did_not(
    site: Site, make_owner: Make, make_pod: Make, make_report: Make
) -> None:
    report = make_report(blocks_pinned=30, running=2, start_time=1010.0, cold_start=5.0)
    site.answers["10.0.0.1"] = encode(report)
    shown = {"kvOccupancy": "30%", "runningRequests": 2, "updatedAt": "2026-01-01T00:00:00Z"}
    status = {"load": shown, "capacity": {"kvTokensPerReplica": 3200, "coldStartSeconds": 15}}
    site.loop.track(make_owner(status=status), (make_pod("a"),), 1)
    for _ in range(40):
        await site.tick()
    assert site.enqueued == []
    site.answers["10.0.0.1"] = encode(make_report(blocks_pinned=30, running=3))
    for _ in range(16):
        await site.tick()
    assert site.enqueued == [KEY]


async def test_what_is_reckoned_with_is_measured_where_the_autoscaler_decides(
    site: Site, make_owner: Make, make_pod: Make, make_report: Make
) -> None:
    metrics = OperatorMetrics()
    site.loop = AutoscaleLoop(site.fetch, site.list_gateways, site.enqueued.append, metrics, lambda: site.now)
    site.answers["10.0.0.1"] = encode(make_report(blocks_pinned=60, waiting=2))
    site.loop.track(make_owner(BUILTIN), (make_pod("a"),), 1)
    await site.tick()
    text = metrics.text().decode()
    labels = 'name="tiny",namespace="models"'
    assert f'octavo_autoscaler_demand_replicas{{{labels},term="stock"}} 0.70588' in text
    assert f'octavo_autoscaler_demand_replicas{{{labels},term="queue"}} 0.5' in text
    assert f"octavo_autoscaler_cold_start_seconds{{{labels}}} 60.0" in text
    assert f"octavo_autoscaler_replica_requests_per_second{{{labels}}}" not in text
    site.loop.track(make_owner(), (make_pod("a"),), 1)
    assert labels not in "".join(line for line in metrics.text().decode().splitlines() if "octavo_autoscaler_" in line)


async def test_a_state_that_lasts_is_told_and_logged_once(
    site: Site, make_owner: Make, make_pod: Make, caplog: pytest.LogCaptureFixture
) -> None:
    site.loop.track(make_owner(BUILTIN), (make_pod("a"),), 1)
    for _ in range(60):
        await site.tick()
    assert site.enqueued == [KEY]
    assert sum("MetricsUnavailable" in record.getMessage() for record in caplog.records) == 1


async def test_a_wall_clock_that_goes_back_stops_nothing(
    site: Site, make_owner: Make, make_pod: Make, make_report: Make
) -> None:
    passed = 0.0
    site.loop = AutoscaleLoop(
        site.fetch, site.list_gateways, site.enqueued.append, OperatorMetrics(), lambda: site.now, timer=lambda: passed
    )
    site.loop.track(make_owner(BUILTIN), (make_pod("a"), make_pod("b", ip="10.0.0.2")), 2)
    for _ in range(10):
        passed += 2.0
        await site.tick()
    site.now -= 3600.0
    site.gateways = {"g": "10.0.1.1"}
    before = site.asked.count("http://10.0.0.1:9000/v1/octavo/load")
    site.answers["10.0.0.1"] = site.answers["10.0.0.2"] = encode(make_report(blocks_pinned=99, waiting=8))
    for _ in range(10):
        passed += 2.0
        await site.tick()
    assert site.asked.count("http://10.0.0.1:9000/v1/octavo/load") >= before + 4
    assert "http://10.0.1.1:9000/v1/octavo/load" in site.asked
    scaling = site.loop.scaling(KEY)
    assert scaling is not None
    assert scaling.desired > 2


async def test_what_was_learned_survives_a_pause(site: Site, make_owner: Make, make_pod: Make) -> None:
    site.loop.track(make_owner(BUILTIN), (make_pod("a"),), 1)
    tracked = site.loop._tracked[KEY]
    known = replace(tracked.state.learned, cold_starts=(33.0,), at=site.now)
    tracked.state = replace(tracked.state, learned=known, started=site.now)
    site.loop.track(make_owner({**BUILTIN, "suspend": True}), (make_pod("a"),), 1)
    assert (tracked.state.learned.cold_starts, tracked.state.started) == ((33.0,), None)

"""The cluster around the pods: starts, drains, faults, zero; every request ends once."""

from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_operator.autoscale.decision_record import decode, replay
from octavo_operator.autoscale.policy import decide
from octavo_operator.autoscale.types import Observation, PolicyState, ScalingSettings
from octavo_operator.autoscaler.decision_log import DecisionLog
from octavo_simulator.cluster import Run, simulate
from octavo_simulator.controllers.octavo import octavo, static
from octavo_simulator.metrics import figures, seconds_by_window
from octavo_simulator.scenario import Faults, Promise, ReplicaTarget, Scenario
from octavo_simulator.steptime import PodProfile
from octavo_simulator.trace import Trace, TraceRequest

POD = PodProfile(
    "small", base=0.02, prefill=2e-4, row=1e-3, context=1e-7, pool_tokens=8000, noise=0.0, max_running=16, start=30.0
)
PROMISE = Promise(2.0, 0.1)


def scenario(requests: list[TraceRequest], **more: object) -> Scenario:
    trace = Trace("test", tuple(requests), more.pop("seconds", requests[-1].at + 1.0))  # type: ignore[arg-type]
    return replace(Scenario("test", trace, POD, PROMISE, spread=0.0, most=8), **more)  # type: ignore[arg-type]


def poisson(rate: float, seconds: float, seed: int = 1) -> list[TraceRequest]:
    random, at, requests = Random(seed), 0.0, []
    while (at := at + random.expovariate(rate)) < seconds:
        requests.append(TraceRequest(at, random.randint(50, 600), random.randint(1, 200)))
    return requests


def ours(least: int = 1, most: int = 8, idle: float = 60.0) -> object:
    wanted = ScalingSettings(min_replicas=least, max_replicas=most, idle_to_zero=idle, down_stabilization=60.0)
    return octavo(lambda _now: wanted)


def ended_once(run: Run) -> None:
    assert all(job.outcome for job in run.jobs)
    assert all(job.arrived <= job.ended < inf for job in run.jobs)
    assert all(job.arrived <= job.first <= job.ended for job in run.jobs if job.outcome == "finished")
    assert not any(member.reservations for member in run.members)


def test_the_operator_writes_the_same_lines_and_takes_the_same_decisions(tmp_path: Path) -> None:
    """What the simulator records is, byte by byte, what the operator's log has of the same inputs."""
    wanted = ScalingSettings(min_replicas=0, max_replicas=6, ttft=2.0, tpot=0.1, down_stabilization=30.0)
    lines: list[bytes] = []
    world = scenario(poisson(8, 120), faults=Faults(loss=0.2), spread=0.355, seconds=300.0)
    simulate(world, octavo(lambda _now: wanted, lines.append), seed=2)
    assert len({decode(line).decision.desired for line in lines}) > 2
    assert not any(replay(lines))
    log, state = DecisionLog(tmp_path / "decisions.jsonl"), PolicyState()
    for line in map(decode, lines):
        decision = decide(line.settings, state, line.observation, line.now)
        log.write(line.key, line.settings, state, line.observation, line.now, decision)
        state = decision.state
    log.close()
    assert (tmp_path / "decisions.jsonl").read_bytes() == b"".join(lines)


def test_one_request_on_one_pod() -> None:
    run = simulate(scenario([TraceRequest(5.0, 100, 3)], seconds=3600.0), static(1))
    [job] = run.jobs
    assert job.first == pytest.approx(5.0 + 0.02 + 0.02)
    assert job.ended == pytest.approx(5.04 + 2 * 0.021 + 1e-7 * (101 + 102))
    found = figures(run)
    assert (found.attainment, found.gpu_hours, found.starts) == (1.0, pytest.approx(1.0), 1)


def test_pods_cost_from_creation_to_exit() -> None:
    """Two are asked for at 100 s and ready at 130 s; one of three has nothing to do when one is asked for at 200 s."""

    def plan(_: Observation, now: float) -> ReplicaTarget:
        return ReplicaTarget(1 if now < 100 or now >= 200 else 3, 10.0)

    run = simulate(scenario([TraceRequest(0.0, 100, 2)], seconds=300.0), plan)
    assert seconds_by_window(run.members, [0, 100, 130, 200, 300]) == pytest.approx([100, 90, 210, 100])
    assert [member.created for member in run.members] == [0, 100, 100]


def test_a_pod_that_drains_finishes_its_streams() -> None:
    def plan(_: Observation, now: float) -> ReplicaTarget:
        return ReplicaTarget(2 if now < 1 else 1, 1.0)

    requests = [TraceRequest(0.1 * i, 100, 400) for i in range(8)]
    run = simulate(scenario(requests, initial=2, seconds=60.0), plan)
    assert all(job.outcome == "finished" for job in run.jobs)
    gone, stayed = sorted(member.ended for member in run.members)
    assert 1.0 < gone == max(job.ended for job in run.jobs if job.ended <= gone) < stayed == inf


def test_zero_costs_nothing_and_the_first_request_is_held_for_a_start() -> None:
    requests = [TraceRequest(1000.0, 100, 10), TraceRequest(3000.0, 100, 10)]
    run = simulate(scenario(requests, initial=0, least=0, seconds=4000.0), ours(least=0))
    assert [job.outcome for job in run.jobs] == ["finished", "finished"]
    assert [job.first - job.arrived for job in run.jobs] == pytest.approx([30.04, 30.04], abs=0.01)
    assert figures(run).longest_hold == pytest.approx(30.0, abs=0.01)
    assert figures(run, start=3500.0).longest_hold == 0.0, "what happened before the window does not count"
    # Two starts of 30 s and two times the minute until it counts as idle, with a tick of slack each.
    assert figures(run).gpu_hours * 3600 == pytest.approx(2 * (30 + 60), abs=16)


def test_what_preemption_costs_counts_for_the_requests_of_the_window() -> None:
    crowd, alone = [TraceRequest(0.0, 400, 300)] * 16, TraceRequest(500.0, 400, 300)
    run = simulate(scenario([*crowd, alone]), static(1))
    assert figures(run).preemption_tax > 0.01
    assert figures(run, start=400.0).preemption_tax == 0.0


def test_nobody_lets_go_of_the_first_replicas_before_there_was_something_to_see() -> None:
    run = simulate(scenario([TraceRequest(100.0, 100, 2)], initial=4, grace=60.0), static(1))
    assert {look.desired for look in run.decisions if look.at < 60.0} == {4}
    assert [member.ended for member in run.members] == [60.0, 60.0, 60.0, inf]


def test_equal_seeds_give_equal_runs() -> None:
    world = scenario(poisson(3, 150), spread=0.355, profile=replace(POD, noise=0.03))
    one, two, other = (simulate(world, ours(), seed) for seed in (1, 1, 2))
    assert [job.ended for job in one.jobs] == [job.ended for job in two.jobs]
    assert one.decisions == two.decisions
    assert [job.ended for job in one.jobs] != [job.ended for job in other.jobs]


@pytest.mark.parametrize(
    "faults",
    [
        Faults(loss=0.5, failed_starts=0.5),
        Faults(outage=(30.0, 90.0), slow_starts=30.0),
        Faults(kills=(40.0, 70.0, 71.0), forget=30.0),
    ],
    ids=["loss", "outage", "kills"],
)
@pytest.mark.parametrize("rate", [2.0, 12.0])
def test_every_request_ends_once_whatever_goes_wrong(faults: Faults, rate: float) -> None:
    requests = [replace(r, prefix=i % 7, shared=r.prompt // 2) for i, r in enumerate(poisson(rate, 100))]
    world = scenario(requests, faults=faults, spread=0.355, most=4, patience=20.0)
    ended_once(simulate(world, ours(most=4), seed=5))


def test_a_start_that_fails_is_tried_again() -> None:
    world = scenario([TraceRequest(0.0, 100, 2)], faults=Faults(failed_starts=0.999), initial=0, seconds=200.0)
    run = simulate(world, static(1))
    assert run.jobs[0].outcome == "timeout"
    assert [look.pending for look in run.decisions[1:]] == [1] * (len(run.decisions) - 1)


def test_a_dead_node_breaks_streams_and_the_rest_is_sent_again() -> None:
    """Sixteen rows stream when the node dies; what waited for a row goes to the other pod."""
    requests = [TraceRequest(1.0 + i / 1000, 100, 900) for i in range(40)]
    world = scenario(requests, initial=2, faults=Faults(kills=(5.0,)), most=2)
    run = simulate(world, static(2))
    ended_once(run)
    broken = [job for job in run.jobs if job.outcome == "broken"]
    assert 1 <= len(broken) <= 16
    assert all(job.first < 5.0 == job.ended for job in broken)
    assert len(run.members) == 3


def test_a_full_pod_and_a_full_queue_reject() -> None:
    tiny = replace(POD, max_waiting=4, max_running=4)
    run = simulate(scenario([TraceRequest(i / 1000, 300, 300) for i in range(30)], profile=tiny), static(1))
    ended_once(run)
    assert 0 < figures(run).rejected < 30


@given(
    seed=st.integers(0, 10_000),
    rate=st.sampled_from([0.5, 6.0, 20.0]),
    pool=st.sampled_from([900, 8000]),
    faults=st.builds(
        Faults,
        loss=st.sampled_from([0.0, 0.4]),
        failed_starts=st.sampled_from([0.0, 0.5]),
        kills=st.lists(st.floats(0, 40), max_size=4).map(tuple),
        forget=st.sampled_from([30.0, inf]),
    ),
)
@settings(max_examples=scaled(12))
def test_whatever_is_asked_for_every_request_ends_once(seed: int, rate: float, pool: int, faults: Faults) -> None:
    """A controller that asks for any number at any time, prefixes and conversations, faults; the books stay right."""
    random = Random(seed)
    requests = [
        replace(r, prefix=random.randint(-1, 5), shared=random.randint(0, r.prompt), turn=random.random() < 0.3)
        for r in poisson(rate, 30, seed)
    ]
    pod = replace(POD, pool_tokens=pool, start=5.0, noise=0.05)
    world = scenario(
        requests, profile=pod, faults=faults, spread=0.5, initial=random.randint(0, 3), least=0, patience=20.0
    )

    def plan(_: Observation, __: float) -> ReplicaTarget:
        return ReplicaTarget(random.randint(0, 6), random.choice([0.5, 2.0, 7.0]))

    run = simulate(world, plan, seed)
    ended_once(run)
    for member in run.members:
        if member.pod is not None and member.ended == inf:
            member.pod.check()
            assert member.pod.idle

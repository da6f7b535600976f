"""Pods that lie, reports that stay away, clocks that jump: bounded in what they do to the number of replicas."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf, nan

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tests.support.tiers import scaled
from tests.unit.autoscale.cluster import Cluster

from octavo_operator.autoscale import decision_record
from octavo_operator.autoscale.policy import decide
from octavo_operator.autoscale.types import GatewaySample, Observation, PodSample, PolicyState, ScalingSettings
from octavo_protocol.load import LoadReport, ModelTraffic, StepSums

SETTINGS = ScalingSettings(1, 20, ttft=2.0, tpot=0.05, down_stabilization=60.0, down_period=20.0)
HUGE = 10**18

LIES = {
    "pinned more than there is": {"blocks_pinned": 5000},
    "a full pool": {"blocks_pinned": 4000},
    "an empty pod": {"blocks_pinned": 0, "running": 0, "waiting": 0, "waiting_tokens": 0, "requests": 0},
    "an endless queue": {"waiting": 100_000, "waiting_tokens": HUGE // 10**7, "uncached_prompt_tokens": HUGE // 10**7},
    "huge tokens": {"waiting_tokens": HUGE, "uncached_prompt_tokens": HUGE, "prompt_tokens": HUGE},
    "a huge pool": {"blocks_total": HUGE, "blocks_pinned": HUGE},
    "a tiny pool": {"blocks_total": 1, "blocks_pinned": 1},
    "negative": {"running": -5, "waiting": -5, "preemptions": -1},
    "no number": {"start_time": nan, "oldest_wait": nan},
    "from the future": {"start_time": 9e9, "cold_start": 9e9},
    "many rows": {"running": 10**6, "max_running": 10**6},
    "no rows": {"max_running": 0, "max_batched_tokens": 0},
    "absurd steps": {"steps": StepSums(count=HUGE, seconds=1e-9, prefill=HUGE, rows=HUGE, context=HUGE)},
    "slow steps": {"steps": StepSums(count=10, seconds=1e9, rows=10, rows_rows=10, seconds_rows=1e9)},
    "steps of no number": {"steps": StepSums(count=10, seconds=inf, rows=10, seconds_rows=nan)},
}


def run(cluster, lam, seconds, **how):
    return [cluster.tick(lam, **how).desired for _ in range(int(seconds / 2))]


def lying(settings, lies, lam, *, grows=False):
    """Decisions about four replicas of which one lies from the second minute on; the load falls after a while."""
    cluster = Cluster(replace(settings, min_replicas=4), seed=3)
    lam *= cluster.capacity()
    seen = run(cluster, lam, 80)
    cluster.settings = settings
    for tick in range(110):
        liar = cluster.servers[0]
        if lies is not None:
            liar.lies = {name: value * (tick + 1) if grows else value for name, value in lies.items()}
        seen += run(cluster, lam if tick < 40 else lam * 0.75, 2)
    return seen


@pytest.fixture(scope="module", name="honest")
def without_a_liar():
    seen = lying(SETTINGS, None, 3.0)
    assert seen[40] > seen[-1]
    return seen


@pytest.mark.parametrize("name", LIES)
def test_one_liar_of_four_moves_the_number_by_one_at_most(name, honest):
    told = lying(SETTINGS, LIES[name], 3.0)
    assert max(abs(a - b) for a, b in zip(honest, told, strict=True)) <= 1, told


@pytest.mark.parametrize("counter", ["preemptions", "requests", "prompt_tokens", "generation_tokens"])
@pytest.mark.parametrize("step", [10**6, -7])
def test_one_liar_s_counters_move_the_number_by_one_at_most(counter, step, honest):
    told = lying(SETTINGS, {counter: 10**9 if step < 0 else 0} | {counter: step}, 3.0, grows=True)
    assert max(abs(a - b) for a, b in zip(honest, told, strict=True)) <= 1


def test_all_reports_gone_for_two_minutes_hold_what_there_is():
    cluster = Cluster(replace(SETTINGS, min_replicas=4), seed=3)
    lam = 3 * cluster.capacity()
    run(cluster, lam, 300)
    cluster.settings = SETTINGS
    before, decide_now, last = cluster.current, cluster.decide, cluster.observe()

    def dark(settings, state, seen, now):
        pods = tuple(
            replace(pod, load=old.load, sampled_at=old.sampled_at)
            for pod, old in zip(seen.pods, last.pods, strict=True)
        )
        return decide_now(settings, state, Observation(seen.current, pods, last.gateways), now)

    cluster.decide = dark
    decisions = [cluster.tick(lam) for _ in range(60)]
    assert {decision.desired for decision in decisions} == {before}
    assert decisions[-1].notice[0] == "MetricsUnavailable"
    notices = [decision.notice for decision in decisions]
    assert sum(one != two for one, two in pairwise(notices)) == 1
    cluster.decide = decide_now
    assert set(run(cluster, lam, 60)) == {before}


@pytest.mark.parametrize("jump", [600.0, 5 * 3600.0, -5 * 3600.0, -20.0])
def test_after_an_absence_or_a_jump_of_the_clock_nothing_goes_and_what_is_needed_comes(jump):
    cluster = Cluster(replace(SETTINGS, min_replicas=5), seed=3)
    one = cluster.capacity()
    run(cluster, one, 400)
    cluster.settings = SETTINGS
    cluster.now += jump
    for server in cluster.servers:
        server.created, server.ready_at = server.created + jump, server.ready_at + jump
    calm = run(cluster, one, SETTINGS.down_stabilization - 4)
    assert set(calm) == {5}
    later = run(cluster, one, 400)
    assert later[-1] < 5
    cluster.now += jump
    for server in cluster.servers:
        server.created, server.ready_at = server.created + jump, server.ready_at + jump
    peak = max(run(cluster, 8 * one, 60))
    assert peak >= 6


def test_replicas_that_never_start_are_not_ordered_for_ever():
    cluster = Cluster(SETTINGS, seed=3)
    one = cluster.capacity()
    run(cluster, 0.5 * one, 100)
    plain = cluster.observe

    def broken():
        seen = plain()
        pods = tuple(replace(pod, phase="failed") if pod.phase == "pending" else pod for pod in seen.pods)
        return replace(seen, pods=pods)

    cluster.start = 1e9
    cluster.observe = broken
    decisions = [cluster.tick(10 * one) for _ in range(600)]
    assert max(decision.desired for decision in decisions) <= 1 + 4
    assert (decisions[-1].reason, decisions[-1].notice[0]) == ("StartsFail", "StartsFail")
    cluster.observe, cluster.start = plain, 60.0
    for server in cluster.servers:
        server.ready_at = min(server.ready_at, cluster.now)
    assert run(cluster, 10 * one, 120)[-1] > 5


def test_pods_and_gateways_of_one_name_count_once():
    cluster = Cluster(replace(SETTINGS, min_replicas=3))
    run(cluster, 10.0, 60)
    seen, now = cluster.observe(), cluster.now + 2
    twice = replace(seen, pods=seen.pods + seen.pods[::-1], gateways=seen.gateways * 2)
    assert decide(cluster.settings, cluster.state, twice, now) == decide(cluster.settings, cluster.state, seen, now)


def test_five_hundred_pods_are_decided_about():
    cluster = Cluster(ScalingSettings(1, 1000))
    state, lam = PolicyState(), 0.4 * cluster.capacity()
    for _ in range(20):
        cluster.tick(lam, steady=True)
        seen = cluster.observe()
        (pod,), (gateway,) = seen.pods, seen.gateways
        crowd = tuple(replace(pod, name=f"p{number}") for number in range(500))
        traffic = msgspec.structs.replace(gateway.traffic, arrivals=500 * gateway.traffic.arrivals)
        many = Observation(500, crowd, (replace(gateway, traffic=traffic),))
        decision = decide(ScalingSettings(1, 1000), state, many, cluster.now)
        state = decision.state
    assert decision.desired == 500
    assert decision.demand.rate == pytest.approx(200, rel=0.3)


# Whatever is observed, there is a decision, and it can be recorded.

wild = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 200), st.just(0))
wild_float = st.one_of(st.floats(), st.floats(0, 1e6))


@st.composite
def structs(draw, kind):
    made = {}
    for field in msgspec.structs.fields(kind):
        if field.type == "int" or field.type is int:
            made[field.name] = draw(wild)
        elif field.type == "float" or field.type is float:
            made[field.name] = draw(wild_float)
        elif field.type is StepSums:
            made[field.name] = draw(structs(StepSums))
        elif field.type is bool:
            made[field.name] = draw(st.booleans())
        elif field.type is str:
            made[field.name] = "m"
        elif field.name == "pods":
            made[field.name] = draw(st.dictionaries(st.sampled_from(["a", "b"]), wild, max_size=2))
    return kind(**made)


@pytest.mark.parametrize("start_time", [inf, nan])
def test_a_gateway_that_began_at_no_time_is_not_believed(start_time):
    counts = dict.fromkeys(("arrivals", "arrival_prompt_tokens", "in_flight", "held", "held_prompt_tokens"), 0)
    traffic = ModelTraffic(namespace="n", name="m", oldest_hold=0.0, last_arrival=0.0, **counts)
    sample = GatewaySample("g", traffic, 0.0, start_time)
    decision = decide(ScalingSettings(0, 9), PolicyState(), Observation(0, (), (sample,)), 0.0)
    assert decision.state.learned.gateways == ()


names = st.sampled_from(["a", "b", "c", ""])
pods = st.builds(
    PodSample,
    names,
    st.sampled_from(["pending", "ready", "ready", "draining", "failed"]),
    wild_float,
    st.one_of(st.none(), structs(LoadReport)),
    wild_float,
)
gateways = st.builds(GatewaySample, names, st.one_of(st.none(), structs(ModelTraffic)), wild_float, wild_float)
observations = st.builds(
    Observation,
    st.integers(0, 2000),
    st.lists(pods, max_size=4).map(tuple),
    st.lists(gateways, max_size=2).map(tuple),
    st.booleans(),
)
finite = st.floats(-1e12, 1e12)


@examples(max_examples=scaled(30), deadline=None)
@given(st.lists(st.tuples(observations, finite), min_size=1, max_size=4), st.booleans())
def test_whatever_is_observed_there_is_a_decision(looks, targets):
    settings = ScalingSettings(0, 9, **({"ttft": 1.0, "tpot": 0.05} if targets else {}))
    state = PolicyState()
    for seen, now in looks:
        fresh = replace(
            seen, pods=tuple(replace(p, sampled_at=now) if p.created == p.created else p for p in seen.pods)
        )
        decision = decide(settings, state, fresh, now)
        assert 0 <= decision.desired <= 9
        told = decision_record.outcome(decision)
        assert msgspec.json.decode(msgspec.json.encode(told), type=decision_record.Outcome) == told
        kept = msgspec.json.encode(decision.state)
        assert msgspec.json.decode(kept, type=PolicyState) == decision.state
        state = decision.state

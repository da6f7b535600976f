"""The scaling policy: examples a user would recognise, then properties over random observations."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_operator.autoscale.policy import decide
from octavo_operator.autoscale.types import (
    Decision,
    GatewaySample,
    Observation,
    PodSample,
    PolicyState,
    ScalingSettings,
)
from octavo_protocol.load import LoadReport, ModelTraffic

NOW = 1_000_000.0
BLOCK = 32
BLOCKS = 100
POOL = BLOCK * BLOCKS


def load(pinned=0, waiting=0, waiting_tokens=0, running=0, preemptions=0, requests=0, blocks=BLOCKS, max_running=64):
    return LoadReport(
        sequence=1,
        start_time=1.0,
        model="m",
        block_size=BLOCK,
        blocks_total=blocks,
        blocks_pinned=pinned,
        blocks_cached=0,
        running=running,
        waiting=waiting,
        waiting_tokens=waiting_tokens,
        uncached_prompt_tokens=0,
        oldest_wait=0.0,
        preemptions=preemptions,
        requests=requests,
        prompt_tokens=0,
        generation_tokens=0,
        prefix_hit_tokens=0,
        max_running=max_running,
        max_batched_tokens=512,
        max_waiting=100,
        ready=True,
        draining=False,
    )


def pod(name, phase="ready", report=None, age=100.0, now=NOW, sample_age=0.0):
    return PodSample(name, phase, now - age, report, now - sample_age if report else 0.0)


def gateway(held=0, held_tokens=0, in_flight=0, last_arrival=0.0, now=NOW, name="gw-0", sent=None):
    traffic = ModelTraffic(
        namespace="d",
        name="m",
        arrivals=0,
        arrival_prompt_tokens=0,
        in_flight=in_flight,
        held=held,
        held_prompt_tokens=held_tokens,
        oldest_hold=0.0,
        last_arrival=last_arrival,
        pods=sent or {},
    )
    return GatewaySample(name, traffic, now)


def ready(*reports, now=NOW):
    return tuple(pod(f"p{i}", report=report, now=now) for i, report in enumerate(reports))


def see(current, pods, gateways=(), wake=False):
    return Observation(current, tuple(pods), tuple(gateways), wake)


SETTINGS = ScalingSettings(min_replicas=1, max_replicas=10)
SETTLED = PolicyState(started=NOW - 10_000, current=None, last_active=NOW - 10_000)


def settled(current):
    return replace(SETTLED, current=current)


def test_more_kv_than_one_pod_takes_adds_a_replica_at_once():
    decision = decide(SETTINGS, PolicyState(), see(1, ready(load(pinned=90))), NOW)
    assert (decision.desired, decision.reason) == (2, "KVOccupancy")
    assert "kv 90/100 blocks pinned (90%)" in decision.inputs
    assert decision.inputs.endswith("1 → 2")


def test_a_long_queue_adds_replicas_by_its_sum():
    decision = decide(SETTINGS, PolicyState(), see(1, ready(load(pinned=10, waiting=9))), NOW)
    assert (decision.desired, decision.reason) == (3, "QueueDepth")


def test_pending_pods_are_supply_until_overdue():
    pods = (*ready(load(pinned=100)), pod("p1", "pending"))
    assert decide(SETTINGS, PolicyState(), see(2, pods), NOW).desired == 2
    late = (*ready(load(pinned=100)), pod("p1", "pending", age=3000.0))
    assert decide(SETTINGS, PolicyState(), see(2, late), NOW).desired == 3


def test_many_broken_replicas_are_made_up_for_one_at_a_time():
    pods = (*ready(load(pinned=100)), *(pod(f"b{i}", "failed") for i in range(3)))
    state, desired = PolicyState(), 4
    for tick in range(5):
        decision = decide(SETTINGS, state, see(desired, pods), NOW + 2 * tick)
        state, desired = decision.state, decision.desired
    assert desired == 4  # two are needed, one is ready: only one extra beyond the need, already there


def test_the_step_is_limited_per_period():
    settings = replace(SETTINGS, up_max_step=2, up_period=30)
    pods = ready(load(pinned=10, waiting=40))
    first = decide(settings, PolicyState(), see(1, pods), NOW)
    assert first.desired == 3
    second = decide(settings, first.state, see(3, pods), NOW + 2)
    assert (second.desired, second.reason) == (3, "StepLimited")
    later = decide(settings, second.state, see(3, ready(load(pinned=10, waiting=40), now=NOW + 33)), NOW + 33)
    assert later.desired == 5


def test_up_stabilisation_waits_for_the_lowest_need_of_the_window():
    settings = replace(SETTINGS, up_stabilization=10)
    calm = decide(settings, PolicyState(), see(1, ready(load(pinned=10))), NOW)
    burst = decide(settings, calm.state, see(1, ready(load(pinned=99), now=NOW + 2)), NOW + 2)
    assert burst.desired == 1
    lasting = decide(settings, burst.state, see(1, ready(load(pinned=99), now=NOW + 12)), NOW + 12)
    assert lasting.desired == 2


def test_the_maximum_is_said():
    decision = decide(
        replace(SETTINGS, max_replicas=1), PolicyState(), see(1, ready(load(pinned=100, waiting=50))), NOW
    )
    assert (decision.desired, decision.reason) == (1, "ScalingLimited")


def test_demand_around_the_maximum_is_one_state():
    settings, state = replace(SETTINGS, max_replicas=1), PolicyState()
    reasons = []
    for tick in range(60):
        now = NOW + 2 * tick
        pinned = (100 if tick % 2 else 60) if tick < 30 else 10
        decision = decide(settings, state, see(1, ready(load(pinned=pinned, waiting=pinned // 20), now=now)), now)
        state = decision.state
        reasons.append(decision.reason)
    changes = sum(one != other for one, other in pairwise(reasons[1:]))
    assert set(reasons[2:30]) == {"ScalingLimited"}
    assert reasons[-1] != "ScalingLimited"
    assert changes <= 2, reasons


def run_down(settings, state, current, report, seconds):
    """Closed loop over `seconds` with the same report from every pod; the decisions, every two seconds."""
    decisions = []
    for tick in range(0, seconds, 2):
        now = NOW + tick
        decision = decide(settings, state, see(current, ready(*[report] * current, now=now)), now)
        state, current = decision.state, decision.desired
        decisions.append((tick, decision))
    return decisions


def test_down_only_after_the_window_and_step_by_step():
    settings = replace(SETTINGS, down_stabilization=60, down_period=30)
    busy = decide(settings, settled(3), see(3, ready(*[load(pinned=60)] * 3)), NOW)
    assert busy.desired == 3
    decisions = run_down(settings, busy.state, 3, load(pinned=5, running=1), 200)
    changes = [(tick, d.desired) for (_, before), (tick, d) in pairwise(decisions) if d.desired != before.desired]
    assert changes == [(60, 2), (92, 1)]


def test_a_restart_never_scales_down_within_the_first_window():
    decisions = run_down(SETTINGS, PolicyState(), 4, load(pinned=1), 600)
    assert all(d.desired == 4 for tick, d in decisions if tick < SETTINGS.down_stabilization)
    assert decisions[-1][1].desired < 4


def test_no_scale_down_while_anything_waits():
    for pods, gateways in (
        (ready(load(pinned=1, waiting=1), load(waiting=1), load()), ()),
        (ready(load(pinned=1, waiting=1), load()), ()),
        (ready(load(pinned=1), load(), load()), (gateway(held=1),)),
    ):
        decision = decide(SETTINGS, settled(len(pods)), see(len(pods), pods, gateways), NOW)
        assert (decision.desired, decision.reason) == (len(pods), "RequestsWaiting")


def test_a_queue_in_one_pod_of_many_is_its_own():
    pods = ready(load(pinned=1, waiting=2), load(), load())
    assert decide(SETTINGS, settled(3), see(3, pods), NOW).desired == 2


def test_no_scale_down_while_a_pod_starts():
    pods = (*ready(load(), load()), pod("p2", "pending"))
    assert decide(SETTINGS, settled(3), see(3, pods), NOW).reason == "PodsPending"


def test_consolidation_is_refused_when_the_rest_has_too_few_rows():
    pods = ready(*[load(pinned=5, running=60)] * 2)
    assert decide(SETTINGS, settled(2), see(2, pods), NOW).reason == "ConsolidationRefused"


def test_what_a_silent_pod_may_hold_has_to_fit_the_smallest_pods_that_remain():
    settings = replace(SETTINGS, kv_target=0.5, down_max_step=2)
    pods = (*ready(load(blocks=100), load(pinned=50, blocks=300), load(pinned=50, blocks=300)), pod("p3"))
    # Two replicas suffice for 100 blocks and a silent pod's target of 150, but the two smallest pods have a target of
    # 0.5 * (100 + 300) = 200; three have 350.
    decision = decide(settings, settled(4), see(4, pods), NOW)
    assert (decision.desired, decision.reason) == (3, "LoadLow")


def test_a_pod_without_report_is_full_for_down_and_empty_for_up():
    silent = pod("p2")
    down = decide(SETTINGS, settled(3), see(3, (*ready(load(pinned=60), load(pinned=60)), silent)), NOW)
    assert down.desired == 3
    assert decide(SETTINGS, settled(3), see(3, ready(load(pinned=60), load(pinned=60), load())), NOW).desired == 2
    up = decide(SETTINGS, settled(3), see(3, (*ready(load(pinned=100), load(pinned=100)), silent)), NOW)
    assert up.desired == 3


def test_most_pods_without_report_hold():
    pods = (*ready(load(pinned=100, waiting=50)), pod("p1"), pod("p2"))
    assert decide(SETTINGS, settled(3), see(3, pods), NOW).reason == "MetricsUnavailable"


def test_most_pods_without_report_leave_it_to_the_gateways():
    pods = (*ready(load()), pod("p1"), pod("p2"))
    calm = decide(SETTINGS, settled(3), see(3, pods, [gateway()]), NOW)
    assert (calm.desired, calm.reason, calm.notice[0]) == (3, "MetricsPartial", "MetricsPartial")
    held = decide(SETTINGS, settled(3), see(3, pods, [gateway(held=20)]), NOW)
    assert (held.desired, held.reason) == (5, "QueueDepth")
    sent = decide(SETTINGS, settled(3), see(3, pods, [gateway(sent={"p1": 2 * POOL, "p2": 2 * POOL})]), NOW)
    assert (sent.desired, sent.reason) == (5, "KVOccupancy")


def test_an_older_report_is_completed_by_what_was_sent_since():
    def see_one(age, tokens):
        pods = (pod("p0", report=load(pinned=10), sample_age=age),)
        return decide(SETTINGS, settled(1), see(1, pods, [gateway(sent={"p0": tokens})]), NOW)

    assert see_one(2.0, 2 * POOL).desired == 1
    assert see_one(10.0, 2 * POOL).desired == 3
    assert see_one(10.0, 0).desired == 1


def test_most_pods_without_report_bring_the_fallback_and_never_less_than_there_is():
    pods = (*ready(load()), pod("p1"), pod("p2"))
    for fallback, current, desired in ((5, 3, 5), (2, 3, 3), (0, 3, 3)):
        decision = decide(replace(SETTINGS, fallback=fallback), settled(current), see(current, pods), NOW)
        assert (decision.desired, decision.reason) == (desired, "MetricsUnavailable")


def test_who_asks_for_the_minimum_is_named():
    raised = replace(SETTINGS, min_replicas=3, minimum="schedules[0].minReplicas")
    decision = decide(raised, settled(1), see(1, ready(load())), NOW)
    assert (decision.desired, decision.reason) == (3, "OutOfBounds")
    assert "schedules[0].minReplicas is 3" in decision.message


@pytest.mark.parametrize(
    "broken", [load(pinned=101), load(pinned=-1), load(waiting=-1), load(blocks=0)], ids=["over", "neg", "wait", "zero"]
)
def test_an_impossible_report_is_no_report(broken):
    assert decide(SETTINGS, settled(1), see(1, ready(broken)), NOW).reason == "MetricsUnavailable"


def test_an_old_report_is_no_report():
    old = pod("p0", report=load(pinned=100), sample_age=60.0)
    assert decide(SETTINGS, settled(1), see(1, (old,)), NOW).reason == "MetricsUnavailable"


def test_preemptions_add_one_and_forbid_going_down_for_a_window():
    first = decide(SETTINGS, settled(1), see(1, ready(load(pinned=60, preemptions=1))), NOW)
    assert first.desired == 1  # the counter's first value says nothing of when
    second = decide(SETTINGS, first.state, see(1, ready(load(pinned=60, preemptions=2), now=NOW + 2)), NOW + 2)
    assert (second.desired, second.reason) == (2, "Preemptions")
    starting = (*ready(load(pinned=60, preemptions=3), now=NOW + 4), pod("p1", "pending"))
    third = decide(SETTINGS, second.state, see(2, starting), NOW + 4)
    assert third.desired == 2
    calm = ready(load(preemptions=3), load(), load(), now=NOW + 100)
    assert decide(SETTINGS, third.state, see(3, calm), NOW + 100).reason == "Preemptions"


ZERO = ScalingSettings(min_replicas=0, max_replicas=5, idle_to_zero=60)


def test_idle_goes_to_zero_when_gateways_confirm():
    decision = decide(ZERO, settled(1), see(1, ready(load()), [gateway()]), NOW)
    assert (decision.desired, decision.reason) == (0, "Idle")


@pytest.mark.parametrize(
    ("pods", "gateways", "reason"),
    [
        (ready(load()), [], "GatewayMissing"),
        (ready(load()), [gateway(), GatewaySample("gw-1")], "GatewayMissing"),
        (ready(load()), [gateway(in_flight=1)], "Steady"),
        (ready(load()), [gateway(last_arrival=NOW - 10)], "Steady"),
        (ready(load(running=1)), [gateway()], "Steady"),
    ],
    ids=["none", "silent", "in-flight", "recent", "running"],
)
def test_what_keeps_the_last_replica(pods, gateways, reason):
    decision = decide(ZERO, settled(1), see(1, pods, gateways), NOW)
    assert (decision.desired, decision.reason) == (1, reason)


def test_a_request_seen_by_no_sample_still_counts_as_activity():
    state = decide(ZERO, settled(1), see(1, ready(load(requests=1))), NOW).state
    after = decide(ZERO, state, see(1, ready(load(requests=2), now=NOW + 2), [gateway(now=NOW + 2)]), NOW + 2)
    assert after.desired == 1
    assert after.state.last_active == NOW + 2


def test_never_from_two_to_zero():
    assert decide(ZERO, settled(2), see(2, ready(load(), load()), [gateway()]), NOW).desired == 1


def test_held_requests_wake_from_zero():
    assert decide(ZERO, settled(0), see(0, (), [gateway(held=1)]), NOW).desired == 1
    assert decide(ZERO, settled(0), see(0, (), [gateway(held=9)]), NOW).desired == 3
    assert decide(ZERO, settled(0), see(0, (), (), wake=True), NOW).desired == 1
    assert decide(ZERO, settled(0), see(0, (), [gateway()]), NOW).desired == 0


def test_a_wake_stands_until_its_replica_is_seen():
    woken = decide(ZERO, settled(0), see(0, (), (), wake=True), NOW)
    again = decide(ZERO, woken.state, see(0, ()), NOW + 1)
    assert (woken.desired, again.desired) == (1, 1)
    assert decide(ZERO, again.state, see(0, ()), NOW + 30).desired == 0


def test_held_prompts_are_sized_by_the_remembered_pod():
    state = replace(settled(0), pod_tokens=POOL)
    decision = decide(ZERO, state, see(0, (), [gateway(held=2, held_tokens=POOL)]), NOW)
    assert decision.desired == 2


def test_a_woken_replica_stays_while_it_starts_even_if_the_client_left():
    state = decide(ZERO, settled(0), see(0, (), [gateway(held=1)]), NOW).state
    later = decide(ZERO, state, see(1, (pod("p0", "pending"),), [gateway(now=NOW + 70)]), NOW + 70)
    assert later.desired == 1
    idle_since_ready = decide(ZERO, later.state, see(1, ready(load(), now=NOW + 90), [gateway(now=NOW + 90)]), NOW + 90)
    assert idle_since_ready.desired == 1


# Properties over random observations.

reports = st.builds(
    load,
    pinned=st.integers(0, BLOCKS),
    waiting=st.integers(0, 20),
    waiting_tokens=st.integers(0, 3000),
    running=st.integers(0, 64),
    preemptions=st.integers(0, 2),
)
phases = st.sampled_from(["ready", "ready", "ready", "pending", "draining", "failed"])
pods_of = st.lists(st.tuples(phases, st.one_of(st.none(), reports), st.floats(0, 4000)), max_size=6)
gateways_of = st.lists(st.builds(gateway, held=st.integers(0, 20), held_tokens=st.integers(0, 5000)), max_size=2)
settings_of = st.builds(
    lambda low, extra, **fields: ScalingSettings(min_replicas=low, max_replicas=max(1, low + extra), **fields),
    low=st.integers(0, 3),
    extra=st.integers(0, 6),
    kv_target=st.sampled_from([0.5, 0.75, 0.95]),
    queued_per_replica=st.integers(1, 8),
    up_max_step=st.integers(1, 5),
    down_max_step=st.integers(1, 3),
    down_stabilization=st.sampled_from([0.0, 60.0, 300.0]),
    up_stabilization=st.sampled_from([0.0, 10.0]),
    idle_to_zero=st.just(60.0),
)


def observe(current, pods, gateways, wake, now):
    samples = tuple(
        PodSample(f"p{i}", phase, now - age, report, now if report else 0.0)
        for i, (phase, report, age) in enumerate(pods)
    )
    fresh = tuple(replace(g, sampled_at=now, name=f"g{i}") for i, g in enumerate(gateways))
    return Observation(current, samples, fresh, wake)


steps_of = st.lists(st.tuples(pods_of, gateways_of, st.booleans(), st.floats(0.5, 120.0)), min_size=1, max_size=8)


def play(settings, steps, current=1, state=None) -> list[tuple[Observation, float, Decision]]:
    state, now, out = state or PolicyState(), NOW, []
    for pods, gateways, wake, elapsed in steps:
        now += elapsed
        observation = observe(current, pods, gateways, wake, now)
        decision = decide(settings, state, observation, now)
        out.append((observation, now, decision))
        state, current = decision.state, decision.desired
    return out


@examples(max_examples=scaled(40))
@given(settings_of, steps_of, st.integers(0, 12))
def test_always_within_bounds(settings, steps, current):
    for _, _, decision in play(settings, steps, current):
        assert settings.min_replicas <= decision.desired <= settings.max_replicas
        assert decision.requeue > 0
        assert decision.reason.isalnum()


@examples(max_examples=scaled(40))
@given(settings_of, steps_of)
def test_same_inputs_same_decision(settings, steps):
    assert play(settings, steps) == play(settings, steps)


@examples(max_examples=scaled(40))
@given(settings_of, steps_of)
def test_never_down_with_requests_waiting(settings, steps):
    for observation, _, decision in play(settings, steps, settings.max_replicas):
        reports = [p.load for p in observation.pods if p.phase in ("ready", "pending") and p.load]
        crowded = sum(report.waiting > 0 for report in reports)
        if crowded > len(reports) // 3 or sum(g.traffic.held for g in observation.gateways):
            assert decision.desired >= observation.current


@examples(max_examples=scaled(40))
@given(settings_of, steps_of)
def test_never_down_in_the_first_window(settings, steps):
    history = play(settings, steps, settings.max_replicas)
    first = history[0][1]
    for observation, now, decision in history:
        if now - first < settings.down_stabilization:
            assert decision.desired >= observation.current


@examples(max_examples=scaled(40))
@given(settings_of, steps_of)
def test_one_down_step_is_bounded(settings, steps):
    for observation, _, decision in play(settings, steps, settings.max_replicas):
        assert observation.current - decision.desired <= settings.down_max_step


@given(settings_of, st.lists(reports, min_size=1, max_size=2), st.integers(1, 6), st.integers(0, 20))
def test_up_is_never_less_than_needed_but_for_the_limits(settings, loads, current, held):
    settings = replace(settings, up_stabilization=0.0)
    current = min(max(current, settings.min_replicas, 1), settings.max_replicas)
    observation = see(current, ready(*loads), [gateway(held=held)])
    need = max(
        sum(r.blocks_pinned * BLOCK + r.waiting_tokens for r in loads) / (settings.kv_target * POOL),
        (sum(r.waiting for r in loads) + held) / settings.queued_per_replica,
    )
    decision = decide(settings, PolicyState(), observation, NOW)
    assert decision.desired >= min(need - 1e-6, current + settings.up_max_step, settings.max_replicas)


@given(
    settings_of,
    st.lists(reports, min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(0, 3),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(0, 10),
)
def test_monotone_in_load(settings, loads, current, which, more_blocks, more_waiting, more_held):
    """More of anything on the same pods, from the same state, never gives fewer replicas."""
    state = replace(settled(current), counters=())
    which %= len(loads)
    report = loads[which]
    heavier = load(
        pinned=min(BLOCKS, report.blocks_pinned + more_blocks),
        waiting=report.waiting + more_waiting,
        waiting_tokens=report.waiting_tokens + 10 * more_waiting,
        running=report.running + more_waiting,
        preemptions=report.preemptions,
    )
    heavy = [*loads[:which], heavier, *loads[which + 1 :]]
    less = decide(settings, state, see(current, ready(*loads), [gateway(held=1)]), NOW)
    more = decide(settings, state, see(current, ready(*heavy), [gateway(held=1 + more_held)]), NOW)
    assert more.desired >= less.desired


@examples(max_examples=scaled(25))
@given(st.integers(0, 6 * POOL), st.integers(1, 10), st.sampled_from([0.5, 0.75, 0.95]))
def test_constant_load_settles_and_stays(tokens, current, target):
    """A closed loop: a fixed stock spread over the replicas. After one settling period, nothing changes any more."""
    settings = ScalingSettings(min_replicas=1, max_replicas=10, kv_target=target, down_stabilization=60, down_period=30)
    state, seen = PolicyState(), []
    for tick in range(100):
        now = NOW + 10 * tick
        pinned = min(BLOCKS, tokens // BLOCK // current)
        waiting = max(0, tokens - pinned * BLOCK * current)
        loads = [load(pinned=pinned)] * (current - 1) + [load(pinned=pinned, waiting=0, waiting_tokens=waiting)]
        decision = decide(settings, state, see(current, ready(*loads, now=now)), now)
        state, current = decision.state, decision.desired
        seen.append(current)
    assert len(set(seen[60:])) == 1
    directions = {(b > a) - (b < a) for a, b in pairwise(seen)} - {0}
    assert len(directions) <= 1

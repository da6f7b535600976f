"""Each term of demand by itself, and what bounds it, beside a rate that is known. All numbers can be checked by hand.

A replica holds 1000 KV tokens, of which half are the target: 500. It takes 0.5 requests/s and computes 100 prompt
tokens/s. 2 requests/s come, so the rate asks for 2 / 0.5 = 4 replicas, and what waits for 1.1 * 4 + 1 = 5.4 at most.
A request has 100 prompt tokens, a quarter of them cached, and 50 answer tokens.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, sqrt
from statistics import NormalDist

import msgspec
import pytest
from tests.unit.autoscale.test_policy import gateway, load, ready, see

from octavo_operator.autoscale.arrivals import Arrivals, sure
from octavo_operator.autoscale.capacity import ReplicaCapacity, RequestSizes
from octavo_operator.autoscale.demand import _spare_rows, demand
from octavo_operator.autoscale.policy import decide
from octavo_operator.autoscale.signals import Signals, measure
from octavo_operator.autoscale.state import DecisionInput
from octavo_operator.autoscale.types import Demand, Learned, Observation, PolicyState, ScalingSettings

NOW = 1_000_000.0
SETTINGS = ScalingSettings(
    min_replicas=1, max_replicas=50, kv_target=0.5, queued_per_replica=4, ttft=2.0, cold_start=10.0
)
# 20 requests in each of the last six buckets of 10 s; the seventh has just begun.
ARRIVALS = Arrivals(buckets=(20.0,) * 6 + (0.0,), index=100_000, begun=NOW - 60.0)
# With a service time of 0 no rows are kept free for chance.
CAPACITY = ReplicaCapacity(rate=0.5, prefill=100.0, rows=8.0, step=0.02, service=0.0, feasible=True)
SIZES = RequestSizes(prompt=100.0, answer=50.0, hit=0.25, resident=125.0)
KNOWN = Learned(arrivals=ARRIVALS, capacity=CAPACITY, sizes=SIZES)
NO_CAPACITY, NO_ARRIVALS = replace(KNOWN, capacity=None), replace(KNOWN, arrivals=Arrivals())
QUIET = Signals(
    ready=1, pending=0, draining=0, broken=0, failed_starts=0, missing=0, reports={}, pools=(1000,), rows=(64,),
    budget=512, pod_tokens=1000, starting=(), pinned_tokens=0.0, pinned_blocks=0, total_blocks=0, running=0.0,
    waiting=0.0, stock=0.0, prompts=0.0, crowded=0, held=0, held_tokens=0, oldest_hold=0.0, in_flight=0,
    last_arrival=0.0, gateways_answering=1, gateways_silent=0,
)  # fmt: skip


def asked(
    known: Learned = KNOWN, surge_arrivals: float = 0.0, settings: ScalingSettings = SETTINGS, **signals
) -> Demand:
    return demand(settings, known, replace(QUIET, **signals), NOW, surge_arrivals)


def test_the_rate_is_arrivals_by_what_a_replica_takes():
    found = asked()
    assert (found.arrivals, found.rate, found.room) == (2.0, 4.0, 0.0)
    assert (found.stock, found.queue, found.ttft, found.surge) == (0.0, 0.0, 0.0, "")


def test_stock_is_pinned_waiting_and_held_tokens_and_half_an_answer_for_each_held_request():
    held = {"stock": 1000.0, "held_tokens": 300, "held": 8}
    assert asked(**held).stock == 3.0  # (1000 + 300 + 8 * 50 / 2) / 500
    unsized = replace(KNOWN, sizes=None)
    assert asked(unsized, **held).stock == 2.6  # (1000 + 300) / 500
    assert asked(NO_CAPACITY, **held).stock == asked(NO_ARRIVALS, **held).stock == 2.6, "while no rate is known"
    assert asked(pod_tokens=0, **held).stock == 0.0, "no pod has said how much it holds"


def test_the_queue_is_what_waits_and_is_held_by_what_one_replica_may_have():
    for known in (KNOWN, NO_CAPACITY, NO_ARRIVALS):
        assert asked(known, waiting=9.0, held=6).queue == 3.75  # (9 + 6) / 4


def test_without_a_rate_nothing_bounds_stock_and_queue():
    for known in (NO_CAPACITY, NO_ARRIVALS):
        found = asked(known, stock=50_000.0, waiting=400.0)
        assert (found.stock, found.queue, found.rate) == (100.0, 100.0, 0.0)


# A replica started now has served for the target time in 10 + 2 = 12 s. Until then 2 * 75 * 12 = 1800 prompt tokens
# come, and 150 wait; of the 200 held ones three quarters, 150, have to be computed: 2100 in all.
PROMPTS = {"prompts": 150.0, "held_tokens": 200}


@pytest.mark.parametrize(
    ("ready", "starting", "replicas"),
    [
        # It does 1200 in 12 s, 900 are left: 900 / (100 * 2) replicas do them within the target.
        (1, (), 1 + 4.5),
        # One that started 4 s ago serves for 12 - 6 = 6 s: 600 more, 300 are left.
        (1, (4.0,), 1 + 1 + 1.5),
        # One that should serve by now counts as one that does: 2400 in all.
        (1, (15.0,), 0.0),
        # One that starts now serves for the target time.
        (1, (0.0,), 1 + 1 + 3.5),
        (2, (), 0.0),
    ],
)
def test_prompts_that_are_not_computed_in_time_ask_for_replicas_that_do(ready, starting, replicas):
    # A bound of 1.1 * 8 + 1: out of the way.
    known = replace(KNOWN, capacity=replace(CAPACITY, rate=0.25))
    found = asked(known, ready=ready, starting=starting, pending=len(starting), **PROMPTS)
    assert found.ttft == pytest.approx(replicas)


def test_prompts_ask_for_nothing_without_a_target_or_without_any_that_wait():
    known = replace(KNOWN, capacity=replace(CAPACITY, rate=0.25))
    assert asked(known).ttft == 0.0, "2 * 75 * 12 tokens come, 1200 are done, but none waits"
    assert asked(known, prompts=1.0).ttft == pytest.approx(1 + 601 / 200)
    assert asked(known, held_tokens=4).ttft == pytest.approx(1 + 603 / 200)
    # One that starts for longer than usual is ready at any moment: 650 + 1800 - 2 * 1200 are left.
    late = {"pending": 1, "starting": (15.0,)}
    assert asked(known, prompts=650.0, **late).ttft == pytest.approx(1 + 1 + 50 / 200)
    assert asked(known, settings=replace(SETTINGS, ttft=0.0), **PROMPTS).ttft == 0.0
    assert asked(replace(known, sizes=None), **PROMPTS).ttft == 0.0


def test_what_waits_asks_for_a_tenth_and_one_replica_more_than_the_rate():
    found = asked(stock=10_000.0, waiting=100.0, prompts=10_000.0)
    assert (found.stock, found.queue, found.ttft) == pytest.approx((5.4, 5.4, 5.4))
    assert asked(surge_arrivals=20.0, stock=50_000.0).stock == pytest.approx(45.0)  # 1.1 * 40 + 1


def test_room_for_chance_bounds_what_waits_where_it_is_more():
    # 100 requests are in work on average, and come in bursts.
    bursty = replace(KNOWN, capacity=replace(CAPACITY, service=50.0), spread=25.0)
    found = asked(bursty, stock=50_000.0, waiting=400.0)
    assert found.room == pytest.approx(_spare_rows(100.0, 25.0, 2.0 / 50.0) / 100.0 * 4.0)
    assert found.room > 1.4
    assert found.rate == found.stock == found.queue == pytest.approx(4.0 + found.room)


def test_pinned_tokens_are_a_fact_that_the_rate_does_not_bound():
    assert asked(pinned_tokens=4000.0, stock=10_000.0).stock == 8.0  # 4000 / 500
    assert asked(pinned_tokens=500.0, stock=1000.0).stock == 2.0


@pytest.mark.parametrize(("offered", "spread", "patience"), [(8.0, 1.0, 0.05), (60.0, 4.0, 0.3), (300.0, 1.0, 0.0)])
def test_one_request_in_a_hundred_waits_longer_than_it_may(offered, spread, patience):
    rows = _spare_rows(offered, spread, patience)
    beta = rows / sqrt(offered * spread)
    normal = NormalDist()
    waits = 1 / (1 + beta * normal.cdf(beta) / normal.pdf(beta))
    assert waits * exp(-rows * patience / spread) == pytest.approx(0.01, rel=1e-4)


def test_a_surge_is_twice_what_serves_and_counts_in_full():
    assert sure(6.0, 1.0, 6.0) == 3.0  # 6 - 3 * sqrt(6 / 6): 3 / 0.5 = 6 replicas
    fast = replace(KNOWN, arrivals=replace(ARRIVALS, fast=6.0))
    surge, calm = asked(fast, ready=3), asked(fast, ready=4)
    assert (surge.arrivals, surge.rate, surge.lately) == (3.0, 6.0, 3.0)
    assert "need 6.0 replicas, 3 are ready" in surge.surge
    assert (calm.arrivals, calm.rate, calm.lately, calm.surge) == (2.0, 4.0, 3.0, "")
    assert asked(fast, ready=4, surge_arrivals=5.0).arrivals == 5.0, "the most that a surge had while it lasts"


def test_a_request_held_for_half_its_target_is_a_surge():
    fast = replace(KNOWN, arrivals=replace(ARRIVALS, fast=6.0))
    assert asked(fast, ready=4, oldest_hold=1.0).arrivals == 2.0
    assert asked(fast, ready=4, oldest_hold=1.01).arrivals == 3.0
    assert asked(fast, ready=4, oldest_hold=9.0, settings=replace(SETTINGS, ttft=0.0)).arrivals == 2.0


@pytest.mark.parametrize(("free", "surges"), [(25, False), (24, True)])
def test_a_pool_that_is_full_within_five_seconds_is_a_surge(free, surges):
    # Two rows take a token each in a step of 0.02 s: the 25 free blocks of 20 tokens last for 5 s.
    report = msgspec.structs.replace(load(pinned=100 - free, running=1, waiting=1), block_size=20)
    found = asked(ready=4, reports={"p0": report})
    assert found.surge == ("1 KV pools will be full within 5 s" if surges else "")


# From demand to whole replicas.


def look(found: Demand, *, missing: int = 0, preempting: int = 0) -> DecisionInput:
    reports = {f"p{i}": load() for i in range(3)}
    seen = replace(QUIET, reports=reports, missing=missing)
    return DecisionInput(SETTINGS, PolicyState(), Observation(1), seen, found, preempting, NOW)


def test_up_leaves_a_quarter_replica_or_half_the_room_in_use():
    assert look(Demand(rate=4.0, room=1.0)).need == 3.75
    assert look(Demand(rate=4.0, room=0.2)).need == 3.9
    assert look(Demand(rate=4.0, room=0.0)).need == 4.0


@pytest.mark.parametrize("term", ["stock", "queue", "ttft"])
def test_up_takes_the_largest_term(term):
    assert look(replace(Demand(rate=4.0, room=1.0, stock=3.0, queue=3.0, ttft=3.0), **{term: 5.5})).need == 5.5


@pytest.mark.parametrize("term", ["stock", "queue", "ttft"])
def test_down_leaves_a_quarter_replica_free_beside_facts(term):
    calm = Demand(rate=4.0, room=1.0, stock=3.0, queue=3.0, ttft=3.0)
    assert look(calm).cautious_need == 4.0, "the whole rate"
    assert look(replace(calm, **{term: 5.5})).cautious_need == 5.75


def test_a_pod_without_a_report_is_full_when_replicas_go_and_empty_when_they_come():
    found = Demand(rate=4.0, room=1.0, stock=3.0)
    assert look(found, missing=2).cautious_need == 5.25  # 3 + 2 + 0.25
    assert look(found, missing=2).need == 3.75


def test_one_pod_of_three_that_preempts_gets_one_replica():
    found = Demand(rate=4.0)
    assert (look(found, preempting=1).need, look(found, preempting=1).cautious_need) == (5.0, 5.0)
    assert look(found, preempting=2).need == 4.0, "more than an odd one: that is a panic, not a replica"


# From samples to sums.


def test_the_stock_of_a_pod_is_what_it_pins_and_what_its_waiting_requests_will():
    report = msgspec.structs.replace(
        load(pinned=10, waiting=3, waiting_tokens=200, running=5), uncached_prompt_tokens=180
    )
    seen = see(1, ready(report), [gateway(held=2, held_tokens=70), gateway(held=1, held_tokens=30, name="gw-1")])
    found = measure(SETTINGS, PolicyState(learned=KNOWN), seen, NOW)
    assert found.pinned_tokens == 320  # 10 blocks of 32
    assert found.stock == 595.0  # 320 + 200 + 3 * 50 / 2
    assert (found.waiting, found.running, found.prompts, found.crowded) == (3, 5, 180, 1)
    assert (found.held, found.held_tokens) == (3, 100)


def test_of_three_pods_none_counts_more_than_a_replica_beyond_the_middle_one():
    pods = ready(load(), load(waiting=2), load(waiting=20))
    assert measure(SETTINGS, PolicyState(), see(3, pods), NOW).waiting == 8  # 0 + 2 + (2 + 4)
    assert measure(SETTINGS, PolicyState(), see(2, pods[1:]), NOW).waiting == 22


# Four replicas serve, and the rate asks for four. Each has 3200 KV tokens, so that 1600 are its target.
@pytest.mark.parametrize(
    ("pinned", "waiting", "prompts", "desired", "reason"),
    [
        (50, 0, 0, 4, "Steady"),  # 4 * 50 * 32 / 1600 = 4.0
        (51, 0, 0, 5, "KVOccupancy"),  # 4.08
        (0, 4, 0, 4, "Steady"),  # 4 * 4 / 4 = 4.0
        (0, 5, 0, 5, "QueueDepth"),  # 5.0
        # In 12 s four replicas do 4800 prompt tokens, and 1800 come: 3000 may wait, 4 * 750.
        (0, 0, 750, 4, "Steady"),
        (0, 0, 751, 5, "PromptBacklog"),
    ],
)
def test_each_term_adds_its_replica_beside_the_rate(pinned, waiting, prompts, desired, reason):
    report = msgspec.structs.replace(load(pinned=pinned, waiting=waiting), uncached_prompt_tokens=prompts)
    state = PolicyState(started=NOW - 10_000, current=4, last_active=NOW, learned=KNOWN)
    decision = decide(SETTINGS, state, see(4, ready(*[report] * 4)), NOW)
    assert decision.demand.rate == 4.0
    assert (decision.desired, decision.reason) == (desired, reason)

"""Requests that wait: who is next, what a pod is sent, and what happens when there is more than fits."""

from __future__ import annotations

import asyncio
import random
from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled
from tests.unit.gateway.town import Pod, Town

from octavo_common.fair_queue import AGING_SECONDS
from octavo_gateway.pool.replica import Replica
from octavo_gateway.queueing.hold_queue import Bounds, HoldQueue, QueuedRequest, RequestAttributes
from octavo_gateway.routing.headroom import ANY, BLIND, AnswerLengths, PodHeadroom, fits, largest, peak


def ticket(tenant="", priority=0, since=0.0, size=1) -> QueuedRequest[int]:
    waiting: Future[int] = None  # type: ignore[assignment]
    return QueuedRequest(size, size, since, waiting, attributes=RequestAttributes(tenant, priority))


def queue_of(*tickets: QueuedRequest[int], **bounds: int) -> HoldQueue[int]:
    queue: HoldQueue[int] = HoldQueue(Bounds(**bounds))
    for one in tickets:
        assert queue.offer(one)
    return queue


def drained(queue: HoldQueue[int], now: float = 0.0) -> list[QueuedRequest[int]]:
    out = []
    while (head := queue.head(now)) is not None:
        queue.remove(head)
        queue.choose(head.tenant, 1.0)
        out.append(head)
    return out


# The order.


def test_higher_priorities_first_and_in_order_of_arrival():
    low, first, second = ticket(), ticket(priority=2), ticket(priority=2)
    assert drained(queue_of(low, first, second)) == [first, second, low]


def test_who_waits_long_enough_overtakes():
    old, new = ticket(since=0.0), ticket(priority=2, since=3 * AGING_SECONDS)
    assert drained(queue_of(old, new), 3 * AGING_SECONDS) == [old, new]
    assert drained(queue_of(old, new), 3 * AGING_SECONDS - 1) == [old, new]
    assert drained(queue_of(old, new), AGING_SECONDS) == [new, old]


def test_tenants_take_turns_within_a_priority():
    many = [ticket("a") for _ in range(4)]
    other = [ticket("b") for _ in range(2)]
    tenants = [one.tenant for one in drained(queue_of(*many, *other))]
    assert tenants == ["a", "b", "a", "b", "a", "a"]


def test_who_was_away_has_saved_nothing_up():
    queue = queue_of(*[ticket("a") for _ in range(50)])
    for _ in range(40):
        head = queue.head(0.0)
        queue.remove(head)
        queue.choose("a", 1.0)
    for _ in range(10):
        queue.offer(ticket("b"))
    assert [one.tenant for one in drained(queue)][:6].count("b") == 3


OFFERS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-2, 2), st.integers(1, 30), st.booleans(), st.integers(0, 50)),
    max_size=80,
)


@settings(max_examples=scaled(150), deadline=None)
@given(OFFERS)
def test_nothing_is_lost_and_the_bounds_hold(offers):
    queue: HoldQueue[int] = HoldQueue(Bounds(requests=12, size=120))
    held: list[QueuedRequest[int]] = []
    now = 0.0
    for tenant, priority, size, take, wait in offers:
        now += wait
        new = ticket(tenant, priority, now, size)
        going = queue.displaced(new)
        for gone in going:
            queue.remove(gone)
            held.remove(gone)
        assert queue.offer(new) or not going
        if any(one is new for one in queue):
            held.append(new)
        assert len(queue) <= 12
        assert (queue.size, queue.tokens) == (sum(t.size for t in held), sum(t.tokens for t in held))
        assert list(queue) == held
        assert sum(queue.by_priority().values()) == len(held)
        if take and (head := queue.head(now)) is not None:
            same = [one for one in held if (one.tenant, one.priority) == (head.tenant, head.priority)]
            assert head is same[0]
            level = head.priority + max(now - t.since for t in held if t.priority == head.priority) // AGING_SECONDS
            assert all(t.priority + (now - t.since) // AGING_SECONDS <= level for t in held)
            queue.remove(head)
            held.remove(head)
    assert sorted(map(id, drained(queue, now))) == sorted(map(id, held))


# When the queue is full.


def test_one_tenant_cannot_keep_others_out():
    heavy = [ticket("a") for _ in range(10)]
    queue = queue_of(*heavy, requests=10)
    assert queue.displaced(ticket("a")) == []
    for index in range(1, 6):
        new = ticket("b")
        (gone,) = queue.displaced(new)
        assert gone is heavy[-index]
        queue.remove(gone)
        assert queue.offer(new)
    assert queue.displaced(ticket("b")) == []
    assert queue.crowding("b")
    assert not queue.crowding("c")
    assert len(queue.displaced(ticket("c"))) == 1


def test_lower_priorities_give_way():
    low = [ticket("b", 0), ticket("b", 0)]
    queue = queue_of(ticket("a", 3), *low, requests=3)
    assert queue.displaced(ticket("a", 3)) == [low[1]]
    assert queue.displaced(ticket("a", -1)) == []


def test_a_large_one_displaces_no_more_than_its_share():
    queue = queue_of(*[ticket("a", size=10) for _ in range(10)], size=100)
    assert len(queue.displaced(ticket("b", size=45))) == 5
    assert queue.displaced(ticket("b", size=80)) == []


# What a pod has room for.


@pytest.mark.parametrize(
    ("pod", "tokens", "matched", "expected"),
    [
        (PodHeadroom(1000, 800.0, 5, 8), 100, 0, True),
        (PodHeadroom(1000, 800.0, 5, 8), 101, 0, False),
        (PodHeadroom(1000, 800.0, 5, 8), 300, 200, True),
        (PodHeadroom(1000, 0.0, 8, 8), 1, 0, False),
        (PodHeadroom(1000, 900.0, 5, 8), 5000, 0, True),
        (PodHeadroom(1000, 990.0, 0, 8), 100, 0, True),
        (PodHeadroom(1000, 990.0, 8, 8, due=True), 100, 0, True),
        (PodHeadroom(None, 0.0, BLIND, BLIND), 1, 0, False),
        (PodHeadroom(None, 0.0, BLIND - 1, BLIND), 1, 0, True),
        (ANY, 10**9, 0, True),
    ],
)
def test_headroom(pod, tokens, matched, expected):
    assert fits([pod], tokens, AnswerLengths(), [matched], largest([pod])) == [expected]


@pytest.mark.parametrize("varied", [0.0, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("prompt", [0, 500, 3000])
def test_what_sequences_hold_at_most_is_between_now_and_all_of_it(prompt, varied):
    rows, usual = 10, 1000.0
    held, growth = rows * prompt, rows * usual
    found = peak(held, held, growth, rows, AnswerLengths(usual, usual, varied))
    assert held <= found <= held + growth
    assert varied or found == held + growth


def likeliest(rows, usual, prompt, shared, lengths, margin):
    """The share of draws in which rows that begin together never hold more than the peak and `margin`."""
    rng = random.Random(1)
    limit = peak(shared + rows * prompt, rows * prompt, rows * usual, rows, AnswerLengths(usual, usual, lengths.varied))
    inside = 0
    for _ in range(200):
        ends = sorted(lengths.draw(rng) for _ in range(rows))
        most = max(shared + (rows - n) * (prompt + end) for n, end in enumerate(ends))
        inside += most <= limit + margin * limit
    return inside / 200


@dataclass(frozen=True)
class Lengths:
    """Answers of 400 tokens in the mean."""

    varied: float
    draw: Callable[[random.Random], float]


@pytest.mark.parametrize(
    "lengths",
    [
        Lengths(0.0, lambda _: 400.0),
        Lengths(0.25, lambda rng: rng.gammavariate(4.0, 100.0)),
        Lengths(1.0, lambda rng: rng.expovariate(1 / 400)),
        Lengths(3.0, lambda rng: rng.gammavariate(1 / 3, 1200.0)),
    ],
    ids=["equal", "gamma", "exponential", "bursty"],
)
@pytest.mark.parametrize("shared", [0, 6000])
def test_most_draws_of_lengths_stay_below_the_peak_and_the_share_that_is_kept_free(lengths, shared):
    for rows, prompt in ((4, 100), (16, 300), (60, 50)):
        assert likeliest(rows, 400.0, prompt, shared, lengths, margin=0.1) > 0.5, (rows, prompt)


def test_varied_answers_share_room_that_equal_ones_need():
    pod = PodHeadroom(18_500, 12_000.0, 24, 64, growth=9000.0, private=12_000.0)
    assert fits([pod], 500, AnswerLengths(500, 500, 0.0), [0], largest([pod])) == [False]
    assert fits([pod], 500, AnswerLengths(500, 500, 1.0), [0], largest([pod])) == [True]
    shared = pod._replace(private=2_000.0)
    assert fits([shared], 500, AnswerLengths(500, 500, 1.0), [0], largest([pod])) == [False], "what is shared stays"


def test_one_answer_however_long_makes_no_difference_to_all():
    town = Town(Pod("p", 100, 8))
    pool = town.pool
    for _ in range(500):
        pool.lengths.finished(100)
    pool.lengths.finished(10**9)
    assert pool.lengths.variation.value < 0.3


def test_what_fits_a_larger_pod_waits_for_it():
    pods = [PodHeadroom(100, 50.0, 1, 8), PodHeadroom(1000, 900.0, 1, 8)]
    assert fits(pods, 300, AnswerLengths(), [0, 0], largest(pods)) == [False, False]
    assert fits(pods[:1], 300, AnswerLengths(), [0], largest(pods)) == [False]


async def test_two_hundred_held_requests_do_not_overrun_a_fresh_pod():
    """It says nothing at first, then that its pool is empty: twenty fit, answers included."""
    pod = Pod("p", blocks=20 * 120 // 16, rows=64, speaks=False)
    town = Town(pod)
    town.open(ready=False)
    for _ in range(200):
        assert town.send(20, 100, RequestAttributes(most_output=100))
    town.open()
    town.tick()
    assert pod.peak == BLIND
    pod.speaks = True
    peaks = []
    for tick in range(4000):
        town.tick(report=tick % 10 == 0)
        peaks.append(len(pod.jobs))
        if not town.waiting and not pod.jobs:
            break
    assert town.done[""] == 200
    assert pod.most <= pod.blocks * 16
    assert pod.peak <= 20
    # And it is kept busy: seventeen fit below the share that is filled.
    assert sorted(peaks)[len(peaks) // 2] >= 15


async def test_answers_longer_than_expected_are_learned():
    """Nobody bounds the answers, and they are four times what is assumed before any came."""
    pod = Pod("p", blocks=20 * 520 // 16, rows=64)
    town = Town(pod)
    for _ in range(3):
        town.send(20, 500)
    while town.done[""] < 3:
        town.tick()
    replica = town.pool.replicas["p"]
    town.pool.lengths.mean.add(100 * 500, 100)
    for _ in range(100):
        town.send(20, 500)
    while town.waiting or pod.jobs:
        town.tick()
        assert pod.used() <= pod.blocks * 16
    assert replica.load.in_flight.requests == 0
    assert replica.load.growth == pytest.approx(0.0, abs=1e-6)
    assert replica.load.private == pytest.approx(0.0, abs=1e-6)


async def test_a_full_pod_is_not_queued_at_but_gets_the_next_at_once():
    pod = Pod("p", blocks=1000, rows=4)
    town = Town(pod)
    town.tick()
    for _ in range(20):
        town.send(10, 20)
    assert (len(pod.jobs), len(town.waiting)) == (4, 16)
    traffic = town.pool.traffic()
    assert (traffic.held, traffic.in_flight) == (16, 4)
    for _ in range(20):
        town.tick(report=False)
    assert town.done[""] == 4
    assert len(pod.jobs) == 4


async def test_a_place_granted_to_a_client_that_has_left_goes_to_the_next():
    pod = Pod("p", blocks=1000, rows=1)
    town = Town(pod)
    town.tick()
    for _ in range(3):
        town.send(10, 20)
    (gone, _, _), (following, _, _) = town.waiting
    town.end(pod.jobs.pop())
    assert (gone.granted.done(), following.granted.done()) == (True, False)
    town.pool.cancel(gone)
    assert following.granted.done()
    assert town.pool.in_flight == 1


async def test_where_nothing_may_be_held_the_pods_queue_has_to_do():
    pod = Pod("p", blocks=1000, rows=4)
    town = Town(pod, hold=False)
    town.tick()
    assert all(town.send(10, 20) for _ in range(20))
    assert len(pod.jobs) == 20


async def test_a_request_larger_than_every_pod_waits_for_nobody_and_nobody_for_it():
    pod = Pod("p", blocks=100, rows=8)
    town = Town(pod)
    town.tick()
    for _ in range(12):
        town.send(300, 20)
    assert town.waiting
    town.send(5000, 20)
    assert any(job.prompt == 5000 for job in pod.jobs) or town.waiting[-1][1] == 5000
    for _ in range(200):
        town.tick()
    assert town.done[""] == 13


async def test_a_gateway_whose_pods_others_fill_gets_its_share():
    """The pod reports 16 rows of somebody else: half of them are this one's to take, if two send."""
    pod = Pod("p", blocks=10_000, rows=16)
    town = Town(pod, gateways=2)
    stranger = Town(pod, gateways=2)
    stranger.tick()
    for _ in range(16):
        stranger.send(10, 50)
    town.tick()
    for _ in range(16):
        town.send(10, 50)
    assert len(pod.jobs) == 16 + 8
    alone = Town(Pod("q", blocks=10_000, rows=16), gateways=1)
    alone.tick()
    for _ in range(40):
        alone.send(10, 50)
    assert len(alone.pods["q"].jobs) == 16


async def test_a_pod_that_goes_silent_is_filled_by_what_is_known_of_it():
    pod = Pod("p", blocks=1000, rows=6)
    town = Town(pod)
    town.tick()
    pod.speaks = False
    for _ in range(100):
        town.tick()
    for _ in range(20):
        town.send(10, 20)
    assert len(pod.jobs) == 6


async def test_a_pod_that_never_speaks_is_used_after_a_while():
    pod = Pod("p", blocks=1000, rows=6, speaks=False)
    town = Town(pod)
    town.pool.replicas["p"].asked(town.now)
    for _ in range(20):
        town.send(10, 20)
    assert len(pod.jobs) == BLIND
    for _ in range(60):
        town.tick()
    assert not town.waiting


# Who looks at which pods.


@settings(max_examples=scaled(30), deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4))
def test_no_request_waits_where_a_look_at_all_pods_would_find_room(seed, count):
    """A report or an answer that ends looks only at its own pod; the first in the queue may change at any time."""

    async def scene() -> None:
        chance = random.Random(seed)
        pods = [Pod(f"p{n}", blocks=chance.choice([40, 80]), rows=chance.choice([1, 8])) for n in range(count)]
        town = Town(*pods)
        town.tick()
        for _ in range(40):
            for _ in range(chance.choice([0, 0, 1, 3])):
                attributes = RequestAttributes(chance.choice("ab"), chance.choice([0, 0, 1]))
                town.send(chance.choice([5, 400]), chance.randint(1, 20), attributes)
            if town.waiting and chance.random() < 0.5:
                town.pool.cancel(town.waiting.pop(0)[0])
            for pod in pods:
                if pod.jobs and chance.random() < 0.5:
                    town.end(pod.jobs.pop())
                town.heard(pod)
                left = len(town.pool.queue)
                town.pool.dispatch()
                assert len(town.pool.queue) == left
            town.tick(report=False)

    asyncio.run(scene())


async def test_a_small_pods_report_does_not_make_it_take_what_waits_for_a_large_one():
    small, large = Pod("s", blocks=20, rows=4), Pod("l", blocks=200, rows=1)
    town = Town(small, large)
    town.tick()
    while town.send(50, 500) and not (small.jobs and large.jobs):
        pass
    town.send(400, 10)
    assert len(town.waiting) == 1
    for pod in (large, small):
        town.heard(pod)
    assert len(town.pool.queue) == 1
    town.end(large.jobs.pop())
    town.tick()
    assert [job.prompt for job in large.jobs] == [400]


async def test_of_a_hundred_full_pods_a_report_is_looked_at_for_one(monkeypatch):
    pods = [Pod(f"p{n}", blocks=1000, rows=1) for n in range(100)]
    town = Town(*pods)
    town.tick()
    for _ in range(110):
        town.send(10, 500)
    town.tick()
    assert len(town.waiting) == 10
    looks, headroom = [0], Replica.headroom

    def counted(self, *arguments):
        looks[0] += 1
        return headroom(self, *arguments)

    monkeypatch.setattr(Replica, "headroom", counted)
    for pod in pods:
        town.heard(pod)
    town.pool.cancel(town.waiting.pop()[0])
    assert looks[0] == 100
    # The one that ends makes place for the first; for the second all are looked at, once.
    town.end(pods[7].jobs.pop())
    assert looks[0] == 201
    assert len(town.pool.queue) == 8


# More than fits.


async def test_twice_the_capacity_costs_no_goodput_and_is_refused_at_once():
    """One request in a tick is what the pod can answer; two come."""
    pod = Pod("p", blocks=10_000, rows=20)
    town = Town(pod, bounds=Bounds(requests=30))
    town.tick()
    answered, refused = [], 0
    for tick in range(400):
        for _ in range(2):
            refused += not town.send(10, 20)
        assert len(town.waiting) <= 30
        assert len(pod.jobs) <= 20
        town.tick(report=tick % 10 == 0)
        answered.append(town.done[""])
    # From the time the pod is full: a twentieth of twenty rows ends in every tick.
    assert answered[-1] - answered[100] >= 0.95 * 300
    assert refused == len(town.refused)
    assert refused + answered[-1] + len(pod.jobs) + len(town.waiting) == 800
    error = town.refused[-1]
    assert (error.status, error.code) == (503, "model_unavailable")
    # Thirty wait before it and ten a second are sent.
    assert error.retry_after in {3, 4}


def jain(values) -> float:
    values = list(values)
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


@settings(max_examples=scaled(3), deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 5))
def test_a_key_that_sends_ten_times_as_much_gets_its_share(seed, others):
    async def scene() -> None:
        chance = random.Random(seed)
        pod = Pod("p", blocks=4000, rows=8)
        town = Town(pod, bounds=Bounds(requests=200))
        town.tick()
        names = ["loud", *(f"quiet-{index}" for index in range(others))]
        before: dict[str, int] = {}
        for tick in range(900):
            for name in names:
                for _ in range(2 if name == "loud" else chance.random() < 0.2):
                    town.send(chance.randint(5, 60), chance.randint(5, 60), RequestAttributes(name))
            town.tick(report=chance.random() < 0.2)
            # What the loud one had while nobody else came is its own.
            if tick == 300:
                before = {name: town.served[name] for name in names}
                assert {one.tenant for one in town.pool.queue} == set(names)
        served = [town.served[name] - before[name] for name in names]
        assert served[0] <= 1.1 * sum(served) / len(served)
        assert jain(served) >= 0.95
        assert {error.code for error in town.refused if error.status == 429} == {"rate_limit_exceeded"}

    asyncio.run(scene())


async def test_priorities_are_strict_until_the_others_have_waited():
    pod = Pod("p", blocks=1000, rows=1)
    town = Town(pod)
    town.tick()
    for priority in (0, 0, 1, 2, 1):
        town.send(10, 5, RequestAttributes(f"t{priority}", priority))
    for _ in range(30):
        town.tick()
    assert [attributes.priority for attributes in town.order] == [0, 2, 1, 1, 0]

"""Requests for adapters: which replica gets them, and which ones wait."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_common.step_cost import StepCost
from octavo_gateway.api.errors import ApiError
from octavo_gateway.app.wake import _needs_wake
from octavo_gateway.discovery.endpoints import Deployment, Endpoint, table
from octavo_gateway.pool.registry import ModelRegistry
from octavo_gateway.pool.reservation import Ending, RequestOutcome
from octavo_gateway.queueing.hold_queue import Bounds, HoldQueue, QueuedRequest, RequestAttributes
from octavo_gateway.routing.adapter_cost import (
    CACHED_STEPS,
    IN_PLACE,
    LOADING_STEPS,
    STORED_STEPS,
    AdapterPlace,
    adapter_place,
)
from octavo_gateway.routing.candidate import LEAST_LOAD, ROUND_ROBIN, SESSION, Candidate, Policy, Report, RoutingRequest
from octavo_gateway.routing.cost import pod_states, request_cost
from octavo_gateway.routing.prompt_features import Prompt
from octavo_gateway.routing.strategies import route
from octavo_protocol.adapters import AdapterReport
from octavo_protocol.load import LoadReport

NUMBERS = [field.name for field in msgspec.structs.fields(LoadReport) if field.type is int]


def listing(states: dict[str, str]) -> list[AdapterReport]:
    """`failed: why` is a state with its failure."""
    found = [(name, *state.partition(": ")[::2]) for name, state in states.items()]
    return [AdapterReport(name=name, state=state, failure=failure) for name, state, failure in found]


class Pool:
    """A model with pods that report adapters. `ready`: which pods accept requests."""

    def __init__(self, *pods, adapters=(), hold=True, policy=None, bounds=None, reports=True):
        self.now = 1000.0
        self.pods = pods
        self.registry = ModelRegistry(bounds or Bounds(), lambda: self.now, random.Random(1).random)
        self.settings = {"adapters": adapters, "hold": hold, "policy": policy or Policy()}
        self.reports = reports
        self.open()

    def open(self, ready=None, **settings):
        self.settings |= settings
        self.update([pod for pod in self.pods if ready is None or pod in ready])

    def update(self, ready):
        ends = tuple(Endpoint(pod, pod, pod if self.reports else "", ready=pod in ready) for pod in self.pods)
        self.registry.update(table([Deployment("ns", "d", ("m",), endpoints=ends, **self.settings)]))
        self.pool = self.registry.find("m").pool

    def report(self, pod, states=None, *, limit=8, **fields):
        fixed = {"start_time": 1.0, "model": "m", "oldest_wait": 0.0, "ready": True, "draining": False}
        sizes = {"block_size": 16, "blocks_total": 4096, "max_running": 64, "max_batched_tokens": 512}
        found = {"adapters": listing(states or {}), "max_loaded_adapters": limit}
        replica = self.pool.replicas[pod]
        replica.asked(self.now)
        self.pool.take_report(replica, LoadReport(**(dict.fromkeys(NUMBERS, 0) | fixed | sizes | found | fields)), 0)

    def send(self, adapter="", text=b"", *, in_engine=True, refused_by=()):
        """The pod that gets a request, and its reservation; None if it has to wait."""
        prompt = self.pool.prompt(text, "", b"", None, adapter=adapter)
        attributes = RequestAttributes(adapter=adapter, in_engine=in_engine)
        found = self.pool.reserve(prompt, attributes, refused_by)
        return found and (found.replica.endpoint.name, found)

    def sends(self, adapter, times=20):
        """Pods of requests with different prompts, one after another."""
        found = []
        for number in range(times):
            pod, reservation = self.send(adapter, random.Random(number).randbytes(400).hex().encode())
            found.append(pod)
            self.end(reservation)
        return found

    def end(self, reservation, ending=Ending.FINISHED):
        self.pool.settle(RequestOutcome(reservation, ending))

    def hold(self, adapter="", *, in_engine=True):
        return self.pool.hold(1, Prompt(10, 40), RequestAttributes(adapter=adapter, in_engine=in_engine))

    def tick(self):
        self.now += 0.1
        self.pool.dispatch()


# The cost of a load.


@pytest.mark.parametrize(
    ("state", "found", "expected"),
    [
        ("loaded", {"used": 8}, IN_PLACE),
        ("cached", {"sent": True, "used": 8}, IN_PLACE),
        ("cached", {}, AdapterPlace(CACHED_STEPS, waits=False)),
        ("cached", {"used": 7}, AdapterPlace(CACHED_STEPS, waits=False)),
        ("cached", {"used": 8}, AdapterPlace(CACHED_STEPS, waits=True)),
        ("cached", {"used": 8, "limit": 0}, AdapterPlace(CACHED_STEPS, waits=False)),
        ("stored", {}, AdapterPlace(STORED_STEPS, waits=False)),
        ("loading", {}, AdapterPlace(LOADING_STEPS, waits=False)),
        (None, {}, AdapterPlace(LOADING_STEPS, waits=False)),
    ],
)
def test_the_place_of_an_adapter(state, found, expected):
    assert adapter_place(state, **({"sent": False, "used": 0, "limit": 8} | found)) == expected


def candidate(key, rows=0, used=0, place=IN_PLACE, matched=0):
    return Candidate(key, rows, used, 0, 0, Report(10_000, used, rows, 64), matched=matched, adapter=place)


def pick(*candidates, tokens=100, strategy="PrefixAware", **ask):
    request = RoutingRequest(tokens, adapter=b"sql", **ask)
    choices = {route(candidates, request, Policy(strategy), random.Random(seed).random) for seed in range(20)}
    return {choice.candidate.key for choice in choices}


CACHED, WAITS = AdapterPlace(CACHED_STEPS, waits=False), AdapterPlace(CACHED_STEPS, waits=True)


@pytest.mark.parametrize("strategy", ["PrefixAware", LEAST_LOAD])
def test_a_loaded_adapter_wins_when_loads_are_equal(strategy):
    pods = [
        candidate("a", place=CACHED),
        candidate("b"),
        candidate("c", place=AdapterPlace(LOADING_STEPS, waits=False)),
    ]
    assert pick(*pods, strategy=strategy) == {"b"}
    assert pick(*pods, strategy=strategy, tokens=5000) == {"b"}


def test_of_costs_that_tie_the_one_without_a_load_wins():
    """Here the pod that has it loaded is busier, and its cost a little higher."""
    pods = [candidate("a", place=CACHED), candidate("b", used=400)]
    first, second = (request_cost(pod, RoutingRequest(6000), 0) for pod in pod_states(pods))
    assert first < second < 1.01 * first
    assert pick(*pods, strategy=LEAST_LOAD, tokens=6000) == {"b"}


@pytest.mark.parametrize("strategy", ["PrefixAware", LEAST_LOAD])
def test_requests_spread_when_the_pods_that_hold_it_are_full(strategy):
    assert pick(candidate("a", 60, 9000), candidate("b", place=CACHED), strategy=strategy) == {"b"}


def test_a_pod_with_a_free_slot_wins():
    assert pick(candidate("a", place=WAITS), candidate("b", 3, 300, place=CACHED)) == {"b"}


def test_a_long_cached_prefix_is_worth_a_load():
    assert pick(candidate("a"), candidate("b", place=CACHED, matched=4900), tokens=5000) == {"b"}


def test_where_none_has_loaded_it_all_prompts_go_to_one_pod():
    pods = [candidate(key, place=CACHED) for key in "abcd"]
    assert len({key for n in range(20) for key in pick(*pods, anchor=b"%d" % n)}) == 1
    assert len({key for n in range(20) for key in pick(*map(candidate, "abcd"), anchor=b"%d" % n)}) > 1


PODS = st.builds(
    candidate,
    st.uuids().map(str),
    st.integers(0, 70),
    st.integers(0, 12_000),
    st.sampled_from([IN_PLACE, CACHED, WAITS, AdapterPlace(LOADING_STEPS, waits=False)]),
    st.integers(0, 900),
)


@settings(max_examples=scaled(100), deadline=None)
@given(st.lists(PODS, min_size=2, max_size=6, unique_by=lambda pod: pod.key), st.integers(0, 5))
def test_a_load_never_makes_a_pod_more_likely(pods, index):
    """The pod that was not chosen is not chosen when it also has to load the adapter."""
    index %= len(pods)
    worse = pods[index]._replace(adapter=AdapterPlace(2 * LOADING_STEPS, waits=True))
    request = RoutingRequest(1000)
    before = route(pods, request, Policy(LEAST_LOAD), random.Random(1).random)
    pods = [*pods[:index], worse, *pods[index + 1 :]]
    after = route(pods, request, Policy(LEAST_LOAD), random.Random(1).random)
    if before.reason == "load" and before.candidate.key != worse.key:
        assert after.candidate.key != worse.key


@settings(max_examples=scaled(50), deadline=None)
@given(
    st.lists(PODS, min_size=1, max_size=6, unique_by=lambda pod: pod.key),
    st.sampled_from(["PrefixAware", LEAST_LOAD, ROUND_ROBIN, SESSION]),
    st.randoms(use_true_random=False),
)
def test_the_choice_is_a_candidate_in_any_order(pods, strategy, shuffle):
    request = RoutingRequest(1000, adapter=b"sql", anchor=b"a", conversation=b"c", session=b"s")
    first = route(pods, request, Policy(strategy), lambda: 0.0)
    shuffle.shuffle(pods)
    second = route(pods, request, Policy(strategy), lambda: 0.0)
    assert first.candidate in pods
    if strategy != LEAST_LOAD:  # only there a random number breaks ties
        assert first.candidate == second.candidate


# Which replicas are considered.


@pytest.mark.parametrize("strategy", ["PrefixAware", LEAST_LOAD, ROUND_ROBIN, SESSION])
def test_only_replicas_that_list_it_get_its_requests(strategy):
    pool = Pool("a", "b", "c", policy=Policy(strategy))
    pool.report("a", {"sql": "failed: no file", "legal": "loaded"})
    pool.report("b", {"sql": "cached"})
    pool.report("c", {})
    assert set(pool.sends("sql")) == {"b"}
    assert set(pool.sends("legal")) == {"a"}
    assert pool.send("sql", in_engine=False)[0] == "b"


def test_it_stays_where_it_is_loaded():
    pool = Pool(*"abcd")
    for pod in "abcd":
        pool.report(pod, {"sql": "loaded" if pod == "c" else "cached"})
    assert set(pool.sends("sql")) == {"c"}


def test_it_stays_where_it_was_sent_before_any_report_says_so():
    pool = Pool(*"abcd")
    for pod in "abcd":
        pool.report(pod, {"sql": "cached", "legal": "cached"})
    assert len(set(pool.sends("sql"))) == 1


def test_a_report_ends_the_assumption_of_a_load():
    pool = Pool("a")
    pool.report("a", {"sql": "cached"})
    replica = pool.pool.replicas["a"]
    pool.end(pool.send("sql")[1])
    assert replica.candidate(pool.now, 0, "sql").adapter == IN_PLACE
    pool.now += 1
    pool.report("a", {"sql": "cached"})
    assert replica.candidate(pool.now, 0, "sql").adapter.steps == CACHED_STEPS


def test_many_requests_for_one_adapter_use_all_replicas():
    pool = Pool("a", "b")
    pool.report("a", {"sql": "loaded"})
    pool.report("b", {"sql": "cached"})
    counts = Counter(pool.send("sql", b"%d" % n * 300)[0] for n in range(60))
    assert min(counts["a"], counts["b"]) > 15


def test_adapters_in_use_fill_the_slots():
    pool = Pool("a", "b")
    for pod in "ab":
        pool.report(pod, dict.fromkeys(("sql", "legal", "chat"), "cached"), limit=1)
    where = {name: pool.send(name)[0] for name in ("sql", "legal")}
    assert set(where.values()) == {"a", "b"}
    # The adapter of a running request needs no further slot.
    assert pool.pool.replicas[where["sql"]].candidate(pool.now, 0, "sql").adapter == IN_PLACE
    assert pool.pool.replicas["a"].candidate(pool.now, 0, "chat").adapter.waits


def test_loaded_adapters_of_other_gateways_requests_fill_the_slots():
    pool = Pool("a")
    states = {"sql": "cached", "legal": "loaded", "chat": "loaded"}
    replica = pool.pool.replicas["a"]
    for running, waits in ((0, False), (1, False), (2, True), (9, True)):
        pool.now += 1
        pool.report("a", states, limit=2, running=running)
        assert replica.candidate(pool.now, 0, "sql").adapter.waits == waits


def test_a_request_that_a_draining_replica_refused_goes_to_another_one_with_the_adapter():
    pool = Pool("a", "b", "c")
    pool.report("a", {"sql": "loaded"})
    pool.report("b", {"sql": "cached"})
    pool.report("c")
    pod, reservation = pool.send("sql")
    assert pod == "a"
    assert pool.send("sql", refused_by={reservation.replica})[0] == "b"
    pool.open(ready="ac")
    assert pool.send("sql", refused_by={reservation.replica})[0] == "a"


def test_a_canary_without_the_adapter_gets_none_of_its_requests():
    pool = Pool("a", "b")
    ends = (Endpoint("a", "a", "a"), Endpoint("b", "b", "b", canary=True))
    pool.registry.update(table([Deployment("ns", "d", ("m",), endpoints=ends, canary_percent=50, canary_step="1")]))
    pool.report("a", {"sql": "cached"})
    pool.report("b", {})
    assert set(pool.sends("sql")) == {"a"}
    assert set(pool.sends("")) == {"a", "b"}


def test_replicas_that_never_report_are_tried():
    pool = Pool("a", "b", adapters=("sql",), reports=False)
    assert pool.send("sql") is not None


def test_a_replica_that_does_not_report_is_waited_for_at_first():
    pool = Pool("a", "b", adapters=("sql",))
    for pod in "ab":
        pool.pool.replicas[pod].asked(pool.now)
    assert pool.send("sql") is None
    pool.report("a", {"sql": "failed"})
    assert pool.send("sql") is None
    pool.now += 6
    assert pool.send("sql")[0] == "b"
    pool.report("a", {"sql": "cached"})
    assert set(pool.sends("sql")) == {"a"}


# Names come and go with reports.


def test_a_reported_adapter_is_a_model_until_no_replica_lists_it():
    pool = Pool("a", "b", adapters=("fixed",))
    assert pool.registry.find("sql") is None
    pool.report("a", {"sql": "loaded"})
    pool.report("b", {"sql": "failed"})
    found = pool.registry.find("sql")
    assert (found.pool, found.adapter, found.names) == (pool.pool, "sql", ("sql",))
    pool.report("a", {})
    assert pool.registry.find("sql")
    pool.pods = ("a",)
    pool.open()
    assert pool.registry.find("sql") is None
    assert [one.adapter for one in pool.registry.models()] == ["", "fixed"]
    pool.open(adapters=())
    assert pool.registry.find("fixed") is None


@pytest.mark.parametrize(
    "adapters",
    [
        listing({"a b": "loaded"}),
        listing({"sql": "loaded"}) * 2,
        listing({f"a{n}": "cached" for n in range(513)}),
    ],
)
def test_an_implausible_list_is_ignored_and_the_rest_of_the_report_counts(adapters):
    pool = Pool("a")
    pool.report("a", {"sql": "loaded"})
    pool.report("a", adapters=adapters, running=7)
    assert pool.pool.reports.rejected == {"adapters": 1}
    assert pool.registry.find("sql").adapter == "sql"
    assert pool.pool.replicas["a"].known.running == 7


def test_a_rejected_report_leaves_the_adapters_as_they_were():
    pool = Pool("a")
    pool.report("a", {"sql": "loaded"})
    pool.report("a", {}, running=-1)
    assert pool.send("sql")[0] == "a"


def test_an_adapter_of_a_removed_model_is_unknown():
    pool = Pool("a", adapters=("sql",))
    pool.registry.update(table([]))
    assert pool.registry.find("sql") is None


# Prefixes.


def test_adapters_share_no_prefix():
    pool = Pool("a", "b")
    for pod in "ab":
        pool.report(pod, {"sql": "loaded", "legal": "loaded"})
    text = random.Random(1).randbytes(2000).hex().encode()
    prompts = [pool.pool.prompt(text, "", b"", None, b"key", adapter) for adapter in ("", "sql", "legal")]
    assert len({key for prompt in prompts for key in prompt.keys}) == 3 * len(prompts[0].keys)
    assert len({prompt.affinity for prompt in prompts}) == len({prompt.conversation for prompt in prompts}) == 3
    pod, reservation = pool.send("sql", text)
    pool.end(reservation)
    assert pool.pool.router.cached(prompts[1], [pod])[0] > 900
    assert pool.pool.router.cached(prompts[0], [pod]) == pool.pool.router.cached(prompts[2], [pod]) == [0]


# Waiting.


async def test_requests_wait_for_their_adapter_and_others_pass_them():
    pool = Pool("a", adapters=("sql",))
    pool.report("a")
    assert pool.send("sql") is None
    waiting = [pool.hold("sql"), pool.hold("sql")]
    pool.tick()
    assert pool.send()[0] == "a"
    assert (len(pool.pool.queue), pool.pool.traffic().held, pool.pool.queue.in_line) == (2, 2, 0)
    pool.report("a", {"sql": "cached"})
    pool.tick()
    assert [one.granted.result().replica.endpoint.name for one in waiting] == ["a", "a"]
    assert len(pool.pool.queue) == 0


async def test_requests_held_for_a_start_do_not_block_others_when_their_adapter_comes_later():
    pool = Pool("a", adapters=("sql",))
    pool.open(ready=())
    first, second = pool.hold("sql"), pool.hold()
    count = pool.hold("sql", in_engine=False)
    assert _needs_wake(pool.pool)
    pool.open()
    pool.report("a")
    pool.tick()
    assert second.granted.done()
    assert not first.granted.done()
    assert not count.granted.done()
    pool.report("a", {"sql": "loading"})
    pool.tick()
    assert first.granted.done()
    assert count.granted.done()


async def test_an_adapter_that_failed_everywhere_is_an_error_without_its_reason():
    pool = Pool("a", "b", adapters=("sql",))
    pool.report("a")
    pool.report("b")
    waiting = pool.hold("sql")
    pool.report("a", {"sql": "failed: The rank 64 is above 16."})
    pool.tick()
    assert "cannot be used" in str(waiting.granted.exception())
    assert "above 16" not in str(waiting.granted.exception()), "reasons may have paths and names of Secrets"
    with pytest.raises(ApiError) as caught:
        pool.hold("sql")
    error = caught.value
    assert error.message == "The model 'sql' is an adapter that cannot be used. Its operators have to act."
    assert (error.status, error.code, error.retry_after) == (503, "model_failed", None)
    pool.report("b", {"sql": "cached"})
    assert pool.send("sql")[0] == "b"


async def test_held_requests_of_a_removed_adapter_get_an_error():
    pool = Pool("a", adapters=("sql",))
    pool.report("a")
    waiting = pool.hold("sql")
    pool.tick()
    pool.open(adapters=())
    assert waiting.granted.exception().code == "model_removed"
    assert len(pool.pool.queue) == 0


async def test_a_model_that_does_not_hold_refuses_at_once():
    pool = Pool("a", adapters=("sql",), hold=False)
    pool.report("a")
    assert pool.send("sql") is None
    with pytest.raises(ApiError) as caught:
        pool.hold("sql")
    assert caught.value.message.startswith("The model 'sql' cannot answer now: no replica has the adapter ready.")
    assert caught.value.code == "model_unavailable"


async def test_the_error_after_the_longest_wait_names_the_adapter():
    pool = Pool("a", adapters=("sql",))
    pool.report("a")
    assert "'sql' cannot answer now: no replica has the adapter ready within 3 s" in str(
        pool.pool.held_too_long(3, "sql")
    )
    pool.report("a", {"sql": "cached"})
    assert "'sql' cannot answer now: no replica became free" in str(pool.pool.held_too_long(3, "sql"))
    assert "'m' cannot answer now: no replica became free" in str(pool.pool.held_too_long(3))


async def test_a_client_that_leaves_takes_its_parked_request_along():
    pool = Pool("a", adapters=("sql",))
    pool.report("a")
    waiting = pool.hold("sql")
    pool.tick()
    pool.pool.cancel(waiting)
    assert len(pool.pool.queue) == 0
    assert (pool.pool.queue.size, pool.pool.queue.tokens) == (0, 0)


async def test_a_queue_full_of_requests_for_an_adapter_still_admits_others():
    pool = Pool("a", adapters=("sql",), bounds=Bounds(requests=4))
    pool.report("a")
    waiting = [pool.hold("sql") for _ in range(4)]
    pool.tick()
    pool.open(ready=())
    other = pool.pool.hold(1, Prompt(10, 40), RequestAttributes("tenant"))
    assert waiting[-1].granted.exception().code == "rate_limit_exceeded"
    assert "wait for 'm'" in str(waiting[-1].granted.exception())
    assert not other.granted.done()
    for one in [*waiting[:3], other]:
        pool.pool.cancel(one)


# The queue.


def ticket(tenant="", priority=0, since=0.0, size=1):
    return QueuedRequest(size, size, since, None, attributes=RequestAttributes(tenant, priority))


def test_a_parked_ticket_returns_to_its_place():
    queue = HoldQueue(Bounds())
    first, second, third = tickets = [ticket(since=float(n)) for n in range(3)]
    for one in tickets:
        assert queue.offer(one)
    queue.park(first)
    queue.park(second)
    assert queue.head(5.0) is third
    assert queue.oldest(5.0) == 5.0
    queue.unpark(second)
    assert queue.head(5.0) is second
    queue.unpark(first)
    assert queue.head(5.0) is first


STEPS = st.lists(
    st.tuples(st.sampled_from(["offer", "park", "unpark", "take"]), st.sampled_from("abc"), st.integers(-1, 1),
              st.integers(1, 30), st.integers(0, 99)),
    max_size=80,
)  # fmt: skip


@settings(max_examples=scaled(150), deadline=None)
@given(STEPS)
def test_nothing_is_lost_with_parked_tickets_and_the_bounds_hold(steps):
    queue: HoldQueue[int] = HoldQueue(Bounds(requests=8, size=120))
    line: list[QueuedRequest[int]] = []
    parked: list[QueuedRequest[int]] = []
    for now, (kind, tenant, priority, size, index) in enumerate(steps):
        if kind == "offer":
            new = ticket(tenant, priority, float(now), size)
            for gone in queue.displaced(new):
                assert gone.priority < priority or gone.tenant != tenant
                queue.remove(gone)
                (line if gone in line else parked).remove(gone)
            if queue.offer(new):
                line.append(new)
        elif kind == "park" and line:
            parked.append(line.pop(index % len(line)))
            queue.park(parked[-1])
        elif kind == "unpark" and parked:
            line.append(parked.pop(index % len(parked)))
            queue.unpark(line[-1])
        elif kind == "take" and line:
            head = queue.head(float(now))
            queue.remove(head)
            line.remove(head)
        held = line + parked
        assert (len(queue), queue.in_line, set(queue.parked())) == (len(held), len(line), set(parked))
        assert len(queue) <= 8
        assert (queue.size, queue.tokens) == (sum(t.size for t in held), sum(t.tokens for t in held))
        assert set(queue) == set(held)
        assert queue.by_priority() == dict(sorted(Counter(t.priority for t in held).items()))
        assert queue.oldest(100.0) == max((100.0 - t.since for t in held), default=0.0)
        counts = Counter(t.tenant for t in held)
        assert queue.crowding(tenant) == (len(counts) > 1 and counts[tenant] * len(counts) >= len(held))
        assert (queue.head(float(now)) in line) if line else queue.head(float(now)) is None


def test_the_step_cost_of_a_pod_prices_a_load():
    slow = StepCost(1.0, 0.001, 0.001, 1e-6)
    pods = [
        Candidate("a", 0, 0, 0, 0, Report(10_000, 0, 0, 64, step_cost=slow), adapter=CACHED),
        Candidate("b", 0, 0, 0, 0, Report(10_000, 900, 9, 64, step_cost=slow)),
    ]
    assert pick(*pods) == {"b"}

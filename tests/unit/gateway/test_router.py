"""The choice of a pod."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_common.step_cost import StepCost
from octavo_gateway.routing.candidate import LEAST_LOAD, ROUND_ROBIN, SESSION, Candidate, Policy, Report, RoutingRequest
from octavo_gateway.routing.cost import FREE_ROWS, FREE_SHARE
from octavo_gateway.routing.strategies import route

GPU = StepCost(0.03, 0.0001, 0.0002, 2e-7)


def pod(
    key="a",
    used=0,
    rows=0,
    since=0,
    since_tokens=0,
    pool=10_000,
    max_rows=64,
    in_flight=None,
    in_flight_tokens=0,
    matched=0,
    since_uncached=0,
    age=0.0,
    **report,
):
    """A pod whose rows are all of this gateway, unless `in_flight` says otherwise."""
    own = rows + since if in_flight is None else in_flight
    return Candidate(
        key, own, in_flight_tokens, since, since_tokens, Report(pool, used, rows, max_rows, **report),
        since_uncached=since_uncached, matched=matched, age=age,
    )  # fmt: skip


def choose(*candidates, tokens=100, seed=0, strategy="PrefixAware", max_load=1.25, **ask):
    return route(candidates, RoutingRequest(tokens, **ask), Policy(strategy, max_load), random.Random(seed).random)


def pick(*candidates, **arguments):
    return choose(*candidates, **arguments).candidate.key


def picks(*candidates, **arguments):
    return {pick(*candidates, seed=seed, **arguments) for seed in range(20)}


@pytest.mark.parametrize("strategy", ["PrefixAware", LEAST_LOAD, ROUND_ROBIN, SESSION])
def test_nobody_to_choose_and_only_one(strategy):
    assert route([], RoutingRequest(1), Policy(strategy), random.Random(0).random) is None
    assert choose(pod("a", used=9999), strategy=strategy, session=b"s").reason == "only"


def test_the_emptier_pool_wins():
    assert picks(pod("a", used=5000), pod("b", used=1000)) == {"b"}


def test_a_larger_pool_takes_more():
    assert picks(pod("a", used=5000), pod("b", used=5000, pool=40_000)) == {"b"}


def test_many_short_requests_are_load_too():
    assert picks(pod("a", rows=60), pod("b", rows=10)) == {"b"}


def test_what_was_sent_after_the_report_counts():
    assert picks(pod("a", since_tokens=4000), pod("b", used=1000)) == {"b"}


def test_a_pod_without_report_is_judged_by_what_was_sent_to_it():
    silent = Candidate("a", 40, 6000, 0, 0, None, prefilling=3000)
    assert picks(silent, pod("b", used=1000)) == {"b"}
    assert picks(silent._replace(in_flight=0, in_flight_tokens=0, prefilling=0), pod("b", used=5000, rows=9)) == {"a"}


def test_pods_that_never_reported_are_judged_by_what_was_sent_to_them():
    silent = [Candidate(key, n, 100 * n, 0, 0, None) for key, n in (("a", 9), ("b", 3), ("c", 7))]
    assert picks(*silent) == {"b"}


def test_ties_are_spread():
    assert picks(*(pod(key, used=1000) for key in "abcd"), tokens=100) == set("abcd")


def test_a_cached_prefix_wins_when_loads_are_equal():
    choice = choose(pod("a", used=1000), pod("b", used=1000, matched=900), pod("c", used=1000), tokens=1000)
    assert (choice.candidate.key, choice.reason, choice.against) == ("b", "affinity", False)


def test_a_longer_cached_prefix_wins_when_loads_are_equal():
    assert picks(pod("a", matched=300), pod("b", matched=900), tokens=1000) == {"b"}


def test_a_long_queue_beats_a_cached_prefix():
    queue = pod("a", used=1000, matched=900, uncached=20_000, step_cost=GPU)
    choice = choose(queue, pod("b", used=1000, step_cost=GPU), tokens=1000)
    assert (choice.candidate.key, choice.reason, choice.against) == ("b", "load", True)


def test_rows_that_would_wait_beat_a_short_cached_prefix_and_not_a_long_one():
    def chosen(tokens):
        busy = pod("a", rows=40, used=8000, pool=400_000, matched=tokens - 10, step_cost=GPU)
        return pick(busy, pod("b", rows=30, used=8000, pool=400_000, step_cost=GPU), tokens=tokens)

    assert chosen(20) == "b"
    assert chosen(8000) == "a"


def test_a_prefix_does_not_count_on_a_pod_above_the_bound():
    pods = [pod("a", rows=20, used=60_000, pool=100_000, matched=7000, step_cost=GPU)]
    pods += [pod(key, rows=15, used=45_000, pool=100_000, step_cost=GPU) for key in "bcd"]
    assert pick(*pods, tokens=8000, max_load=1.5) == "a"
    choice = choose(*pods, tokens=8000, max_load=1.1)
    assert (choice.candidate.key != "a", choice.reason, choice.against) == (True, "bound", True)


@pytest.mark.parametrize(("tokens", "homes"), [(1000, {"a", "b"}), (999, {"b"})])
def test_the_bound_counts_the_new_request(tokens, homes):
    # 1.25 * (5000 + 2000 + 1000) / 2 = 5000: what pod a has is just within it.
    pods = [pod("a", rows=2, used=5000), pod("b", rows=2, used=2000)]
    sessions = [b"%d" % i for i in range(20)]
    assert {pick(*pods, tokens=tokens, strategy=SESSION, session=s, max_load=1.25) for s in sessions} == homes


@pytest.mark.parametrize("others", [1, 3, 30])
def test_the_bound_does_not_forbid_the_second_request_of_a_conversation(others):
    busy = pod("a", rows=1, used=3000, matched=2900, pool=200_000)
    rest = [pod(f"b{i}", pool=200_000) for i in range(others)]
    assert pick(busy, *rest, tokens=3000, max_load=1.01) == "a"


def test_least_load_does_not_know_prefixes():
    assert picks(pod("a", used=1200, matched=900), pod("b"), tokens=1000, strategy=LEAST_LOAD) == {"b"}


def test_round_robin_takes_turns():
    pods = [pod("c", used=9000), pod("a"), pod("b")]
    assert "".join(pick(*pods, strategy=ROUND_ROBIN, turn=turn) for turn in range(6)) == "abcabc"


def test_a_session_stays_where_it_is():
    pods = [pod(key, used=1000) for key in "abcd"]
    home = {s: pick(*pods, strategy=SESSION, session=s) for s in (b"%d" % i for i in range(60))}
    assert set(home.values()) == set("abcd")
    for session, key in home.items():
        assert picks(*reversed(pods), strategy=SESSION, session=session) == {key}
        rest = [p for p in pods if p.key != "b"]
        # One pod less moves the sessions of that pod only.
        assert key == "b" or picks(*rest, strategy=SESSION, session=session) == {key}


def test_a_session_leaves_a_pod_above_the_bound_and_comes_back():
    pods = [pod(key, used=4000, rows=9) for key in "abcd"]
    home = pick(*pods, strategy=SESSION, session=b"s")
    full = [p._replace(since_tokens=5000 * (p.key == home)) for p in pods]
    assert pick(*full, strategy=SESSION, session=b"s") not in (home, None)
    assert pick(*pods, strategy=SESSION, session=b"s") == home


def test_without_a_session_the_prefix_decides():
    assert picks(pod("a"), pod("b", matched=900), tokens=1000, strategy=SESSION) == {"b"}


def test_gateways_that_meet_a_new_prompt_at_once_take_the_same_pod():
    pods = [pod(key, used=1000) for key in "abcdefgh"]
    homes = []
    for anchor in (b"%d" % i for i in range(40)):
        (home,) = picks(*pods, tokens=1000, anchor=anchor)
        assert picks(*reversed(pods), tokens=1000, anchor=anchor) == {home}
        homes.append(home)
        busy = [p._replace(since_tokens=8000 * (p.key == home)) for p in pods]
        assert home not in picks(*busy, tokens=1000, anchor=anchor)
    assert len(set(homes)) > 5


def test_next_to_nothing_to_do_is_nothing():
    """A report from the middle of somebody's request must not send a conversation's start elsewhere than others do."""
    pods = [pod(key, pool=100_000, step_cost=GPU) for key in "abcd"]
    for anchor in (b"%d" % i for i in range(20)):
        (home,) = picks(*pods, tokens=1000, anchor=anchor)
        glimpse = [p._replace(report=replace(p.report, rows=p.key == home, used_tokens=900)) for p in pods]
        assert picks(*glimpse, tokens=1000, anchor=anchor) == {home}
        working = [p._replace(report=replace(p.report, rows=2 * (p.key == home))) for p in pods]
        assert home not in picks(*working, tokens=1000, anchor=anchor)


def test_an_unknown_conversation_goes_where_its_first_turn_would():
    pods = [pod(key, rows=4, used=4000, pool=100_000, step_cost=GPU) for key in "abcd"]
    (home,) = picks(*pods, tokens=900, anchor=b"x", conversation=b"c")
    busier = [p._replace(report=replace(p.report, rows=4 + (p.key == home))) for p in pods]
    assert home not in picks(*busier, tokens=2000, anchor=b"x", conversation=b"c")
    choice = choose(*busier, tokens=2000, anchor=b"x", conversation=b"c", presumed=1800)
    assert (choice.candidate.key, choice.reason) == (home, "presumed")
    # What is known of it counts more.
    known = [p._replace(matched=1500 * (p.key != home)) for p in busier]
    assert home not in picks(*known, tokens=2000, anchor=b"x", conversation=b"c", presumed=1800)
    full = [p._replace(report=replace(p.report, rows=60 if p.key == home else 4)) for p in pods]
    assert home not in picks(*full, tokens=2000, anchor=b"x", conversation=b"c", presumed=1800)


def test_a_backlog_shrinks_with_the_age_of_the_report():
    fresh, aged = (pod("a", uncached=4000, age=age, step_cost=GPU, matched=900) for age in (0.0, 1.0))
    other = pod("b", step_cost=GPU)
    assert picks(fresh, other, tokens=1000) == {"b"}
    assert picks(aged, other, tokens=1000) == {"a"}


def test_a_pod_without_a_step_cost_is_taken_to_be_like_the_others():
    """Neutral step_cost beside fast pods would make a new pod look slow, and starve it."""
    fast = StepCost(0.002, 0.00001, 0.00002, 2e-8)
    assert picks(pod("a", rows=4, used=2000, step_cost=fast), pod("new", used=0)) == {"new"}


def test_a_slow_pod_gets_less():
    slow = StepCost(0.09, 0.0003, 0.0006, 6e-7)
    assert picks(pod("a", rows=3, used=1000, step_cost=slow), pod("b", rows=6, used=2000, step_cost=GPU)) == {"b"}


def test_what_other_gateways_likely_sent_counts_too():
    """Of 60 rows this gateway sent 20: for each request of its own it expects two more on the new pod."""
    old = [pod(key, rows=20, used=4000, in_flight=7, pool=40_000) for key in "abc"]
    sent = 0
    while pick(*old, pod("new", in_flight=sent, since=sent, since_tokens=200 * sent, pool=40_000), tokens=200) == "new":
        sent += 1
    assert 5 <= sent <= 8


step_cost = st.none() | st.builds(
    StepCost, st.floats(0, 1), st.floats(1e-7, 1e-2), st.floats(0, 1e-2), st.floats(0, 1e-4)
)
pods = st.builds(
    pod,
    used=st.integers(0, 10_000),
    rows=st.integers(0, 64),
    since=st.integers(0, 10),
    since_tokens=st.integers(0, 3000),
    since_uncached=st.integers(0, 3000),
    uncached=st.integers(0, 5000),
    age=st.floats(0, 5),
    pool=st.sampled_from([0, 5000, 10_000, 40_000]),
    max_rows=st.sampled_from([0, 1, 64]),
    batch=st.sampled_from([0, 16, 2048]),
    in_flight=st.integers(0, 20),
    in_flight_tokens=st.integers(0, 5000),
    matched=st.integers(0, 6000),
    step_cost=step_cost,
)
candidates = st.lists(
    pods | st.builds(lambda matched: Candidate("x", 3, 500, 0, 0, None, matched=matched), st.integers(0, 6000)),
    min_size=1,
    max_size=6,
).map(lambda found: [c._replace(key=str(i)) for i, c in enumerate(found)])
asks = st.builds(
    RoutingRequest,
    st.integers(1, 5000),
    st.floats(0, 4000),
    anchor=st.sampled_from([b"", b"x", b"y"]),
    conversation=st.sampled_from([b"", b"x", b"y"]),
    presumed=st.sampled_from([0, 40, 4000]),
    session=st.sampled_from([b"", b"s"]),
    turn=st.integers(0, 99),
)
policies = st.builds(Policy, st.sampled_from(["PrefixAware", LEAST_LOAD, ROUND_ROBIN, SESSION]), st.floats(1.01, 4))


@settings(max_examples=scaled(60))
@given(candidates, asks, policies, st.integers())
def test_the_same_inputs_give_the_same_choice_of_those_there_are(found, ask, policy, seed):
    first = route(found, ask, policy, random.Random(seed).random)
    assert first == route(found, ask, policy, random.Random(seed).random)
    assert first.candidate in found


@settings(max_examples=scaled(60))
@given(candidates, asks, policies)
def test_the_order_of_candidates_decides_nothing_without_chance(found, ask, policy):
    everyone = {route(found, ask, policy, random.Random(s).random).candidate.key for s in range(12)}
    if len(everyone) == 1:
        backwards = {route(found[::-1], ask, policy, random.Random(s).random).candidate.key for s in range(12)}
        assert everyone <= backwards


@settings(max_examples=scaled(60))
@given(candidates, asks, st.integers(1, 5000), st.integers(0, 5000))
def test_more_load_on_others_does_not_drive_a_request_away(found, ask, tokens, uncached):
    """Once chosen without a tie, a pod stays chosen when any other pod gets busier."""
    found = [c._replace(matched=0) for c in found if c.report]
    if not found:
        return
    policy = Policy()
    everyone = {route(found, ask, policy, random.Random(s).random).candidate.key for s in range(30)}
    if len(everyone) == 1:
        (key,) = everyone
        busier = [
            c
            if c.key == key
            else c._replace(since_tokens=c.since_tokens + tokens, since_uncached=c.since_uncached + uncached)
            for c in found
        ]
        assert route(busier, ask, policy, random.Random(0).random).candidate.key == key


@settings(max_examples=scaled(60))
@given(candidates, asks, st.floats(1.01, 4), st.integers())
def test_nothing_but_its_cost_brings_a_request_to_a_pod_above_the_bound(found, ask, max_load, seed):
    """Sessions are never there; prefixes do not count there."""
    reported = [c._replace(since=0, since_tokens=0, in_flight=0, in_flight_tokens=0) for c in found if c.report]
    if len(reported) < 2:
        return

    def load(c):
        return c.report.used_tokens

    bound = max_load * (sum(map(load, reported)) + ask.tokens) / len(reported)

    def above(c):
        return c.report.rows >= FREE_ROWS and load(c) > max(bound, FREE_SHARE * (c.report.pool_tokens or 1))

    session = replace(ask, session=b"s")
    assert not above(route(reported, session, Policy(SESSION, max_load), random.Random(seed).random).candidate)
    choice = route(reported, ask, Policy("PrefixAware", max_load), random.Random(seed).random)
    without = [c._replace(matched=0 if above(c) else c.matched) for c in reported]
    plain = route(without, ask, Policy("PrefixAware", max_load), random.Random(seed).random)
    assert choice.candidate.key == plain.candidate.key


@settings(max_examples=scaled(60))
@given(pods, asks, st.integers(1, 6), st.integers(0, 20), st.integers(300, 5000))
def test_a_cached_prefix_wins_when_loads_are_equal_whatever_they_are(one, ask, count, lucky, matched):
    equal = [one._replace(key=str(n), matched=0) for n in range(count + 1)]
    lucky %= len(equal)
    equal[lucky] = equal[lucky]._replace(matched=matched)
    ask = replace(ask, tokens=max(ask.tokens, matched + 1), presumed=0)
    assert route(equal, ask, Policy(), random.Random(0).random).candidate == equal[lucky]


@settings(max_examples=scaled(60))
@given(st.integers(0, 40), st.integers(0, 100_000), asks, st.integers(0, 5000), step_cost)
def test_a_queue_that_takes_longer_than_the_prompt_beats_a_cached_prefix(rows, used, ask, matched, found):
    """What the prefix saves is the prompt, and the delay of the rows there by it."""
    quick = pod("quick", rows=rows, used=used, pool=400_000, step_cost=found)
    # Seconds, too, where tokens take next to no time: what is less than a share of the rest is a tie.
    longer = 2 * ask.tokens * (rows + 1) + 100_000 + (int(20 / found.prefill) if found else 0)
    queue = pod("queue", rows=rows, used=used, pool=400_000, step_cost=found, matched=matched, uncached=longer)
    assert pick(quick, queue, tokens=ask.tokens, output=min(ask.output, 100), anchor=ask.anchor) == "quick"


def test_load_evens_out():
    """1,000 requests over four pods, routed one by one: nobody gets more than a few more than the mean."""
    rng = random.Random(3)
    sent = dict.fromkeys("abcd", 0)
    for _ in range(1000):
        found = [pod(key, since=n, since_tokens=100 * n, pool=200_000, max_rows=2000) for key, n in sent.items()]
        sent[route(found, RoutingRequest(100), Policy(), rng.random).candidate.key] += 1
    assert max(sent.values()) - min(sent.values()) <= 45

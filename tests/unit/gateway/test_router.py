"""The choice of a pod."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_gateway.router import Candidate, Report, has_room, route

IDLE = Candidate("a", 0, 0, 0, 0, Report(10_000, 0, 0, 64))


def pod(key="a", used=0, rows=0, since=0, since_tokens=0, pool=10_000, max_rows=64, in_flight=0, in_flight_tokens=0):
    report = Report(pool, used, rows, max_rows)
    return Candidate(key, in_flight, in_flight_tokens, since, since_tokens, report)


def pick(*candidates, tokens=100, seed=0):
    return route(candidates, tokens, random.Random(seed).random).key


def test_nobody_to_choose():
    assert route([], 1, random.Random(0).random) is None


def test_the_emptier_pool_wins():
    assert all(pick(pod("a", used=5000), pod("b", used=1000), seed=s) == "b" for s in range(20))


def test_a_larger_pool_takes_more():
    assert all(pick(pod("a", used=5000), pod("b", used=5000, pool=40_000), seed=s) == "b" for s in range(20))


def test_many_short_requests_are_load_too():
    assert all(pick(pod("a", rows=60), pod("b", rows=10), seed=s) == "b" for s in range(20))


def test_what_was_sent_after_the_report_counts():
    assert all(pick(pod("a", since_tokens=4000), pod("b", used=1000), seed=s) == "b" for s in range(20))


def test_a_pod_without_report_is_judged_by_what_was_sent_to_it():
    silent = Candidate("a", 40, 6000, 0, 0, None)
    assert all(pick(silent, pod("b", used=1000), seed=s) == "b" for s in range(20))
    assert all(
        pick(replace(silent, in_flight=0, in_flight_tokens=0), pod("b", used=5000), seed=s) == "a" for s in range(9)
    )


def test_ties_are_spread():
    chosen = {pick(*(pod(key, used=1000) for key in "abcd"), seed=s) for s in range(60)}
    assert chosen == set("abcd")


def test_releases_stop_before_the_pool_is_full():
    assert has_room(pod(used=8000, rows=5), 900)
    assert not has_room(pod(used=8000, rows=5), 1100)
    assert not has_room(pod(rows=64), 1)
    assert not has_room(pod(rows=60, since=4), 1)


def test_an_empty_pod_takes_what_fits_nowhere():
    assert has_room(pod(), 1_000_000)


candidates = st.lists(
    st.builds(
        pod,
        used=st.integers(0, 10_000),
        rows=st.integers(0, 64),
        since=st.integers(0, 10),
        since_tokens=st.integers(0, 3000),
        pool=st.sampled_from([5000, 10_000, 40_000]),
        in_flight=st.integers(0, 20),
        in_flight_tokens=st.integers(0, 5000),
    )
    | st.just(Candidate("x", 3, 500, 0, 0, None)),
    min_size=1,
    max_size=6,
).map(lambda found: [replace(c, key=str(i)) for i, c in enumerate(found)])


@settings(max_examples=40)
@given(candidates, st.integers(1, 5000), st.integers())
def test_the_same_inputs_give_the_same_choice(found, tokens, seed):
    assert pick(*found, tokens=tokens, seed=seed) == pick(*found, tokens=tokens, seed=seed)


@settings(max_examples=40)
@given(candidates, st.integers(1, 5000), st.integers())
def test_the_order_of_candidates_decides_nothing_without_ties(found, tokens, seed):
    everyone = {pick(*found, tokens=tokens, seed=s) for s in range(12)}
    if len(everyone) == 1:
        assert pick(*reversed(found), tokens=tokens, seed=seed) in everyone


@settings(max_examples=40)
@given(candidates, st.integers(1, 5000), st.integers(), st.integers(1, 5000))
def test_more_load_on_others_does_not_drive_a_request_away(found, tokens, seed, more):
    """Once chosen without a tie, a pod stays chosen when any other pod gets busier."""
    everyone = {pick(*found, tokens=tokens, seed=s) for s in range(12)}
    if len(everyone) == 1 and all(c.report for c in found):
        (key,) = everyone
        busier = [c if c.key == key else replace(c, since_tokens=c.since_tokens + more) for c in found]
        assert pick(*busier, tokens=tokens, seed=seed) == key


def test_load_evens_out():
    """1,000 requests over four pods, routed one by one: nobody gets more than a few more than the mean."""
    rng = random.Random(3)
    sent = dict.fromkeys("abcd", 0)
    for _ in range(1000):
        found = [pod(key, since=n, since_tokens=100 * n, pool=200_000, max_rows=2000) for key, n in sent.items()]
        sent[route(found, 100, rng.random).key] += 1
    assert max(sent.values()) - min(sent.values()) <= 45

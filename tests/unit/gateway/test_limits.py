"""Token buckets: what they let through over any time, alone and shared."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_gateway.access.rate_limits import NO_LIMITS, Accounts, KeyUsage, RateLimits


def account(**limits: int) -> KeyUsage:
    return Accounts().of("a", RateLimits(**limits), 0.0)


def test_without_limits_everything_passes() -> None:
    one = account()
    assert all(one.enter(10**9, 0.0) is None for _ in range(1000))
    assert one.open == 1000


def test_a_minutes_worth_at_once_and_then_the_rate() -> None:
    one = account(requests=60)
    assert [one.enter(1, 0.0) is None for _ in range(61)] == [True] * 60 + [False]
    refused = one.enter(1, 0.25)
    assert refused is not None
    assert (refused.kind, refused.limit, refused.retry_after) == ("requests", 60, pytest.approx(0.75))
    assert one.enter(1, 1.0) is None
    assert one.enter(1, 1.5) is not None


def test_the_real_tokens_are_paid_at_the_end() -> None:
    one = account(tokens=600)
    assert one.enter(100, 0.0) is None
    one.leave(800)
    refused = one.enter(100, 0.0)
    assert refused is not None
    assert refused.retry_after == pytest.approx(40.0)
    assert one.enter(100, 40.0) is None
    one.leave(-100)
    assert one.tokens is not None
    assert one.tokens.level == pytest.approx(100.0)


def test_a_request_larger_than_the_limit_waits_for_a_full_bucket() -> None:
    one = account(tokens=100)
    assert one.enter(1000, 0.0) is None
    assert one.enter(1, 500.0) is not None
    assert one.enter(1, 541.0) is None


def test_what_is_refused_costs_nothing() -> None:
    one = account(requests=10, tokens=50, concurrent=1)
    assert one.enter(40, 0.0) is None
    for _ in range(5):
        refused = one.enter(10, 0.0)
        assert refused is not None
        assert refused.kind == "concurrent"
    one.leave(0)
    for _ in range(5):
        refused = one.enter(40, 0.0)
        assert refused is not None
        assert refused.kind == "tokens"
    assert one.requests is not None
    assert one.requests.level == 9.0


def test_slots_are_given_back() -> None:
    one = account(concurrent=2)
    for _ in range(10):
        assert one.enter(1, 0.0) is None
        assert one.enter(1, 0.0) is None
        assert one.enter(1, 0.0) is not None
        one.leave(0)
        one.leave(0)


def test_new_limits_keep_what_was_taken() -> None:
    accounts = Accounts()
    one = accounts.of("a", RateLimits(requests=60), 0.0)
    for _ in range(60):
        one.enter(1, 0.0)
    accounts.limit_by({"a": RateLimits(requests=120, concurrent=70)}, 0.0)
    assert one.enter(1, 0.0) is not None
    assert one.enter(1, 0.5) is None
    assert one.slots is not None
    assert one.slots.mine == 61
    accounts.limit_by({"a": NO_LIMITS}, 0.5)
    assert one.enter(1, 0.5) is None
    accounts.limit_by({}, 0.5)
    assert not accounts.known


STEPS = st.lists(
    st.tuples(st.floats(0, 20), st.integers(1, 200), st.booleans(), st.integers(-50, 200)), min_size=1, max_size=120
)


@settings(max_examples=scaled(200), deadline=None)
@given(st.integers(1, 300), STEPS)
def test_requests_keep_to_the_rate_over_any_window(limit: int, steps) -> None:
    one = account(requests=limit)
    now, let_in = 0.0, []
    for pause, _, _, _ in steps:
        now += pause
        let_in.extend([now] * sum(one.enter(1, now) is None for _ in range(7)))
    for first in range(0, len(let_in), 3):
        for last in range(first, len(let_in), 3):
            window = let_in[last] - let_in[first]
            assert last - first + 1 <= limit + limit * window / 60 + 1e-6


@settings(max_examples=scaled(200), deadline=None)
@given(st.integers(50, 5000), STEPS)
def test_tokens_keep_to_the_rate_whatever_answers_turn_out_to_be(limit: int, steps) -> None:
    """Over any window no more than the rate, one bucket, and the one request whose end nobody knew."""
    one = account(tokens=limit)
    now, spent, most = 0.0, [], 0
    for pause, tokens, _, more in steps:
        now += pause
        if one.enter(tokens, now) is None:
            real = max(0, tokens + more)
            one.leave(real - tokens)
            spent.append((now, real))
            most = max(most, real)
    for first in range(len(spent)):
        for last in range(first, len(spent)):
            window = spent[last][0] - spent[first][0]
            total = sum(real for _, real in spent[first : last + 1])
            assert total <= limit + limit * window / 60 + most + 1e-6


@settings(max_examples=scaled(100), deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.floats(0, 5)), max_size=200))
def test_nothing_is_refused_below_the_limits(steps) -> None:
    """Who waits as long as told is let in."""
    one = account(requests=30)
    now = 0.0
    for _, pause in steps:
        now += pause
        refused = one.enter(1, now)
        if refused is not None:
            now += refused.retry_after + 1e-6
            assert one.enter(1, now) is None

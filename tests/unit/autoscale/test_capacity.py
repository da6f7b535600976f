"""The closed form of what a replica does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_common.step_cost import StepCost
from octavo_operator.autoscale.capacity import ReplicaLimits, RequestSizes, capacity

MODEL = StepCost(base=0.012, prefill=1e-4, row=3e-4, context=1e-7)
CHAT = RequestSizes(prompt=1155, answer=211, hit=0.0, resident=1260)
LIMITS = ReplicaLimits(tokens=1e6, rows=256, budget=2048)


def test_a_target_per_token_bounds_the_rows():
    found = capacity(MODEL, CHAT, replace(LIMITS, tpot=0.05))
    prompts = 3 * MODEL.prefill * CHAT.prompt / CHAT.answer * found.rows**0.5
    assert found.step + prompts == pytest.approx(0.05)
    assert found.rate == pytest.approx(found.rows / (211 * found.step))
    assert found.service == pytest.approx(211 * found.step)
    assert found.feasible


def test_each_limit_binds():
    free = capacity(MODEL, CHAT, LIMITS)
    assert free.rows == 256
    assert capacity(MODEL, CHAT, replace(LIMITS, rows=8)).rows == 8
    tight = capacity(MODEL, CHAT, replace(LIMITS, tokens=20 * 1260))
    assert tight.rows == pytest.approx(20)
    long = RequestSizes(prompt=8000, answer=20, hit=0.0, resident=8010)
    assert capacity(MODEL, long, LIMITS).rows == pytest.approx(2048 / (1 + 8000 / 20))


def test_cached_prompts_cost_nothing():
    half = capacity(MODEL, replace(CHAT, hit=0.5), replace(LIMITS, tpot=0.05))
    assert half.rate > capacity(MODEL, CHAT, replace(LIMITS, tpot=0.05)).rate


def test_a_target_that_one_row_misses_is_said():
    found = capacity(MODEL, CHAT, replace(LIMITS, tpot=0.01))
    assert not found.feasible
    assert found.rows == 1


def test_prefill_left_beside_decoding_is_at_least_what_the_rate_brings():
    found = capacity(MODEL, CHAT, replace(LIMITS, tpot=0.05, rows=8))
    assert found.prefill > found.rate * CHAT.uncached
    assert capacity(MODEL, CHAT, LIMITS).prefill == pytest.approx(capacity(MODEL, CHAT, LIMITS).rate * CHAT.uncached)


def test_nothing_known_is_no_capacity():
    assert capacity(StepCost(), CHAT, LIMITS) is None
    assert capacity(MODEL, CHAT, replace(LIMITS, rows=0)) is None


positive = st.floats(1e-9, 1.0)


@given(
    st.builds(StepCost, positive, positive, positive, positive),
    st.builds(RequestSizes, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1), st.floats(0, 1e6)),
    st.builds(ReplicaLimits, st.floats(0, 1e9), st.integers(1, 4096), st.integers(0, 10**6), st.floats(0, 10)),
)
def test_it_is_always_some_positive_number(model, sizes, limits):
    found = capacity(model, sizes, limits)
    assert found is not None
    assert found.rate > 0
    assert found.rows >= 1
    assert found.prefill >= 0

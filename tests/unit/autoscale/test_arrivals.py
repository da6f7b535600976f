"""Rates of arrivals: how soon a change is believed, and how little chance moves them."""

from __future__ import annotations

import random

import pytest

from octavo_operator.autoscale.arrivals import Arrivals, count, dispersion, forecast, mean_rate, sure

NOW = 1_000_000.0


def feed(rate, seconds, known=None, now=NOW, tick=2.0):
    """Arrivals after `seconds` at `rate(t)` requests per second; and the time then."""
    known = known or Arrivals()
    for step in range(int(seconds / tick)):
        now += tick
        known = count(known, rate(step * tick), tick, now)
    return known, now


def noisy(mean, seed=1):
    rng = random.Random(seed)
    return lambda _: max(0.0, rng.gauss(2 * mean, (2 * mean) ** 0.5)) / 2


def test_a_steady_rate_is_itself_from_the_first_tick_on():
    known, now = feed(lambda _: 3.0, 2)
    assert forecast(known, dispersion(known), 1.0, 60.0, now) == pytest.approx(3.0)
    known, now = feed(lambda _: 3.0, 1000)
    assert forecast(known, dispersion(known), 1.0, 60.0, now) == pytest.approx(3.0)
    assert len(known.buckets) == 60


def test_chance_moves_the_forecast_by_less_than_half_a_replica():
    for mean, capacity in ((2.0, 1.0), (10.0, 0.5), (50.0, 2.0)):
        seen = []
        known, now = feed(noisy(mean), 700)
        for seed in range(100):
            known, now = feed(noisy(mean, seed), 20, known, now)
            seen.append(forecast(known, dispersion(known), capacity, 60.0, now) / capacity)
        assert max(seen) - min(seen) < max(1.0, 0.15 * mean / capacity), (mean, capacity)


def test_a_step_is_followed_within_a_minute():
    known, now = feed(noisy(4.0), 700)
    known, now = feed(noisy(20.0), 60, known, now)
    assert forecast(known, dispersion(known), 1.0, 60.0, now) > 16


def test_a_slow_rise_is_seen_ahead():
    known, now = feed(lambda t: 2 + t / 100, 600)
    assert forecast(known, dispersion(known), 1.0, 120.0, now) > 2 + 600 / 100 + 0.2
    falling, now = feed(lambda t: 8 - t / 100, 600)
    assert forecast(falling, dispersion(falling), 1.0, 120.0, now) < 3


def test_a_load_that_falls_is_taken_where_it_is_now_and_never_below():
    """A mean over ten minutes would be five minutes late."""
    rng = random.Random(3)
    known, now = feed(lambda t: max(0.0, rng.gauss(2 * (8 - t / 120), (2 * (8 - t / 120)) ** 0.5)) / 2, 600)
    rate = 8 - 600 / 120
    assert mean_rate(known, now, 60) > rate + 2
    assert rate - 0.3 < forecast(known, dispersion(known), 0.2, 60.0, now) < rate + 0.8


def test_a_step_down_is_no_slope():
    known, now = feed(lambda t: 8.0 if t < 500 else 2.0, 600)
    assert forecast(known, dispersion(known), 0.2, 60.0, now) >= 2.0


def test_dispersion_of_chance_is_one_and_of_bursts_many():
    chance, _ = feed(noisy(10.0), 600)
    assert dispersion(chance) == pytest.approx(1.0, abs=0.6)
    bursts, _ = feed(lambda t: 40.0 if t % 60 < 10 else 0.0, 600)
    assert dispersion(bursts) > 20
    ramp, _ = feed(lambda t: t / 10, 600)
    assert dispersion(ramp) < 2
    step, _ = feed(lambda t: 2.0 if t < 300 else 10.0, 600)
    assert dispersion(step) < 2


def test_a_step_is_no_trend():
    known, now = feed(noisy(4.0), 500)
    most = 0.0
    for seed in range(15):
        known, now = feed(noisy(20.0, seed), 20, known, now)
        most = max(most, forecast(known, dispersion(known), 1.0, 240.0, now))
    assert most < 1.1 * 20


def test_after_a_long_silence_nothing_old_is_left():
    known, now = feed(lambda _: 5.0, 100)
    known = count(known, 0.0, 2.0, now + 5000)
    assert mean_rate(known, now + 5000, 6) == 0.0


def test_what_is_sure_of_a_rate_is_less_and_grows_with_it():
    values = [sure(rate / 10, 1.0, 6.0) for rate in range(200)]
    assert values == sorted(values)
    assert values[0] == 0
    assert all(value <= rate / 10 for rate, value in enumerate(values))

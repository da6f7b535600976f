"""Rotary positions, with frequencies for which each scaling can be computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from octavo_inference.models.rope import (
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    Rope,
    YarnScaling,
    long_magnitude,
    yarn_magnitude,
)


def test_a_table_is_cosines_then_sines_of_position_times_frequency() -> None:
    # theta ** (-0 / 4) = 1 and theta ** (-2 / 4) = 0.01.
    expected = [math.cos(3.0), math.cos(0.03), math.sin(3.0), math.sin(0.03)]
    np.testing.assert_allclose(Rope(theta=10_000.0, dim=4).table(4)[3], expected, rtol=1e-6)


def test_linear_scaling_divides_positions() -> None:
    rope = Rope(theta=10_000.0, dim=4, scaling=LinearScaling(3.0))
    np.testing.assert_allclose(rope.table(7)[6], Rope(theta=10_000.0, dim=4).table(3)[2], rtol=1e-6)


@pytest.mark.parametrize(
    ("turns", "factor"),
    [
        (5.0, 1.0),  # turns of the pair within the original context: 4 and more are kept
        (4.0, 1.0),
        (2.5, 0.5 + 0.5 / 8),  # halfway from 1 to 4
        (1.0, 1 / 8),
        (0.5, 1 / 8),
    ],
)
def test_llama3_keeps_pairs_that_turn_often_and_stretches_those_that_do_not(turns: float, factor: float) -> None:
    scaling = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192)
    frequency = np.array([turns * 2 * math.pi / 8192])
    np.testing.assert_allclose(scaling.apply(frequency, 1), factor * frequency)


def test_yarn_keeps_the_first_pairs_stretches_the_last_and_mixes_between() -> None:
    # Frequencies exp(-i). 2 * pi * 32 * exp(2) = 1486 positions: pair 2 turns 32 times, and 2 + ln(32) = 5.5 once, so
    # that pairs up to 2 are kept and those from 6 on divided by 4.
    frequencies = np.exp(-np.arange(8.0))
    scaling = YarnScaling(factor=4.0, original_max_position=1486, magnitude=1.0)
    shares = [1, 1, 1, 1 - 0.75 / 4, 1 - 1.5 / 4, 1 - 2.25 / 4, 1 / 4, 1 / 4]
    np.testing.assert_allclose(scaling.apply(frequencies, 1), shares * frequencies)


@pytest.mark.parametrize(("positions", "divisor"), [(4096, 2.0), (4097, 5.0)])
def test_longrope_takes_the_long_divisors_beyond_the_original_context(positions: int, divisor: float) -> None:
    scaling = LongScaling(short=(2.0,), long=(5.0,), original_max_position=4096, magnitude=1.0)
    assert scaling.apply(np.array([1.0]), positions) == [1 / divisor]


def test_cosines_and_sines_grow_with_the_context() -> None:
    assert yarn_magnitude(1.0) == long_magnitude(1.0, 4096) == 1.0
    assert yarn_magnitude(math.e) == pytest.approx(1.1)
    assert yarn_magnitude(math.e, 0.5) == pytest.approx(1.05)
    assert long_magnitude(4096.0, 4096) == pytest.approx(math.sqrt(2))
    assert Rope(10_000.0, 2, LinearScaling(1.0, magnitude=1.25)).table(1).tolist() == [[1.25, 0.0]]

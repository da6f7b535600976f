"""The solver of the step model: any numbers, and never an exception."""

from __future__ import annotations

from math import isfinite

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_common.least_squares import non_negative, possible

numbers = st.floats(0, 1e60) | st.sampled_from([0.0, 1.0, 64.0])


@settings(max_examples=scaled(200))
@given(
    st.lists(numbers, min_size=10, max_size=10),
    st.lists(numbers, min_size=4, max_size=4),
    st.sampled_from([1e-6, 1e-3]),
)
def test_sums_that_no_steps_have_stop_nothing(upper, moment, ridge):
    a, b, c, d, e, f, g, h, i, j = upper
    gram = ((a, b, c, d), (b, e, f, g), (c, f, h, i), (d, g, i, j))
    found = non_negative(gram, tuple(moment), (0.0,) * 4, ridge)
    assert all(value >= 0 for value in found if isfinite(value))
    assert possible(gram, tuple(moment)) in (True, False)


@settings(max_examples=scaled(100))
@given(
    st.lists(st.tuples(st.integers(0, 2048), st.integers(0, 99), st.integers(0, 10**6)), min_size=1, max_size=30),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_real_sums_are_possible_and_what_fits_them_is_not_negative(steps, truth):
    vectors = [(1.0, *map(float, step)) for step in steps]
    seconds = [1e-9 + sum(x * v for x, v in zip(vector, truth, strict=True)) for vector in vectors]
    gram = tuple(tuple(sum(v[i] * v[j] for v in vectors) for j in range(4)) for i in range(4))
    moment = tuple(sum(t * v[i] for t, v in zip(seconds, vectors, strict=True)) for i in range(4))
    assert possible(gram, moment)
    found = non_negative(gram, moment, (0.0,) * 4, 1e-6)
    assert min(found) >= 0
    predicted = sum(sum(x * v for x, v in zip(vector, found, strict=True)) for vector in vectors)
    assert abs(predicted - sum(seconds)) <= 0.35 * sum(seconds) + 1e-6

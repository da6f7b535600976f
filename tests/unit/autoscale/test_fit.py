"""Step times learned from sums: the truth is found again, and what the data does not tell is left alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_common import least_squares
from octavo_operator.autoscale import step_cost
from octavo_protocol.load import StepSums

TRUTH = (0.012, 2e-5, 3e-4, 1e-7)


def sums(steps, truth=TRUTH, noise=0.0, seed=1):
    """The sums a pod reports after steps of (prefill, rows, context)."""
    rng = random.Random(seed)
    out = dict.fromkeys(StepSums.__struct_fields__, 0.0)
    names = ("prefill", "rows", "context")
    for x in steps:
        seconds = (truth[0] + sum(v * c for v, c in zip(x, truth[1:], strict=True))) * (1 + noise * rng.gauss(0, 1))
        out["count"] += 1
        out["seconds"] += seconds
        for i, a in enumerate(names):
            out[a] += x[i]
            out[f"seconds_{a}"] += seconds * x[i]
            for j, b in enumerate(names[i:], i):
                out[f"{a}_{b}"] += x[i] * x[j]
    return StepSums(**{k: v if k.startswith("seconds") else round(v) for k, v in out.items()})


def taught(*lessons, elapsed=10.0, forget=1.0):
    known = step_cost.Fit()
    for lesson in lessons:
        known = step_cost.solve(step_cost.learn(known, *step_cost.between(lesson, StepSums()), forget), elapsed)
    return known


def mixed(count, seed=2):
    rng = random.Random(seed)
    return [
        (rng.choice([0, 0, 256, 512]), n := rng.randrange(1, 64), n * rng.randrange(100, 900)) for _ in range(count)
    ]


def test_the_truth_is_found_through_noise():
    model = taught(sums(mixed(2000), noise=0.05)).model
    found = (model.base, model.prefill, model.row, model.context)
    assert found == pytest.approx(TRUTH, rel=0.1)


def test_rows_and_context_that_move_together_still_predict_their_own_kind():
    steps = [(0, n, 600 * n) for n in (1, 5, 9, 20, 33)] * 100
    model = taught(sums(steps)).model
    assert model.seconds(0, 60, 36_000) == pytest.approx(TRUTH[0] + 60 * TRUTH[2] + 36_000 * TRUTH[3], rel=0.02)


def test_what_new_data_says_nothing_of_stays():
    known = taught(sums(mixed(2000)))
    before = known.model
    for _ in range(300):
        lesson = step_cost.between(sums([(0, 8, 8 * 500)] * 50), StepSums())
        known = step_cost.solve(step_cost.learn(known, *lesson, 0.97), 10.0)
    after = known.model
    assert after.prefill == pytest.approx(before.prefill, rel=0.05)
    assert after.seconds(0, 60, 30_000) == pytest.approx(before.seconds(0, 60, 30_000), rel=0.1)


def test_a_server_becomes_another_one_slowly():
    known = taught(*[sums(mixed(500, seed)) for seed in range(40)])
    assert known.age > 300
    before = known.model.seconds(100, 30, 15_000)
    slow = sums(mixed(500), truth=tuple(3 * value for value in TRUTH))
    lengths = []
    for _ in range(60):
        known = step_cost.solve(step_cost.learn(known, *step_cost.between(slow, StepSums()), 0.9), 10.0)
        lengths.append(known.model.seconds(100, 30, 15_000))
    assert lengths[5] <= before * 1.15
    assert lengths[-1] > 1.5 * before


@examples(max_examples=scaled(60))
@given(
    st.lists(st.tuples(st.integers(0, 4096), st.integers(0, 512), st.integers(0, 10**6)), min_size=1, max_size=30),
    st.tuples(*[st.floats(0, 1, allow_subnormal=False)] * 4),
)
def test_coefficients_are_never_negative(steps, truth):
    gram, moment = step_cost.between(sums(steps, truth), StepSums())
    known = step_cost.solve(step_cost.learn(step_cost.Fit(), gram, moment, 1.0), 10.0)
    assert known.model is None or min(known.model.base, known.model.prefill, known.model.row, known.model.context) >= 0


@pytest.mark.parametrize(
    "changes",
    [{"seconds": -1.0}, {"count": -5}, {"rows_rows": 0}, {"seconds_rows": float("nan")}, {"context": 10**18}],
    ids=["seconds", "count", "products", "nan", "context"],
)
def test_sums_that_no_steps_can_have_are_seen(changes):
    good = sums(mixed(100))
    assert least_squares.possible(*step_cost.between(good, StepSums()))
    values = {name: getattr(good, name) for name in StepSums.__struct_fields__} | changes
    assert not least_squares.possible(*step_cost.between(StepSums(**values), StepSums()))

"""What a pod's steps cost, learned from its sums."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_common.step_cost import StepCost
from octavo_gateway.routing.step_cost import MIN_STEPS, SAME_PACE, Steps, fit, paced
from octavo_protocol.load import StepSums


def run(sums, steps):
    """The sums after further steps of (seconds, prefill, rows, context)."""
    names = StepSums.__struct_fields__
    total = {name: getattr(sums, name) for name in names}
    for seconds, *counts in steps:
        pairs = dict(zip(("prefill", "rows", "context"), counts, strict=True))
        total["count"] += 1
        total["seconds"] += seconds
        for one, value in pairs.items():
            total[one] += value
            total[f"seconds_{one}"] += seconds * value
            for other, factor in pairs.items():
                if f"{one}_{other}" in total:
                    total[f"{one}_{other}"] += value * factor
    return StepSums(**total)


def steps(count, base=0.02, prefill=0.0001, row=0.0003, context=2e-7, seed=0, noise=0.0):
    rng = random.Random(seed)
    for _ in range(count):
        rows = rng.randrange(1, 60)
        held = rows * rng.randrange(200, 3000)
        new = rng.choice([0, 0, 0, 512, 2048])
        seconds = base + prefill * new + row * rows + context * held
        yield seconds * (1 + noise * rng.uniform(-1, 1)), new, rows, held


def fed(*batches):
    pod, sums = Steps(), StepSums()
    assert pod.feed(sums)
    for batch in batches:
        sums = run(sums, batch)
        assert pod.feed(sums)
    return pod


def learned(*batches):
    return fit([fed(*batches)])


def predicted(found, new, rows, held):
    return found.base + found.prefill * new + found.row * rows + found.context * held


@settings(max_examples=scaled(15), deadline=None)
@given(
    st.floats(0.001, 0.1), st.floats(1e-5, 1e-2), st.floats(0, 1e-3), st.floats(0, 1e-6), st.integers(0, 99)
)  # fmt: skip
def test_steps_are_predicted_as_they_were(base, prefill, row, context, seed):
    found = learned(list(steps(200, base, prefill, row, context, seed)))
    assert min(found.base, found.prefill, found.row, found.context) >= 0
    for seconds, *counts in steps(20, base, prefill, row, context, seed=seed + 1):
        assert predicted(found, *counts) == pytest.approx(seconds, rel=0.1)


def test_noise_averages_out():
    found = learned(list(steps(2000, noise=0.1)))
    for seconds, *counts in steps(100, seed=7):
        assert predicted(found, *counts) == pytest.approx(seconds, rel=0.15)


def test_costs_follow_a_change():
    found = learned(
        *(list(steps(2000, seed=n)) for n in range(4)), *(list(steps(2000, 0.08, seed=n)) for n in range(9))
    )
    assert found.base == pytest.approx(0.08, rel=0.1)


@pytest.mark.parametrize(
    "batch",
    [[], list(steps(MIN_STEPS - 1)), [(0.02, 0, 3, 900)] * 500, [(0.02, 512, 0, 0)] * 500],
    ids=["nothing", "few", "no prompts", "no rows"],
)
def test_too_little_gives_no_cost(batch):
    assert learned(batch) is None


def test_what_was_before_the_first_report_counts_for_nothing():
    pod = Steps()
    assert pod.feed(run(StepSums(), steps(500)))
    assert fit([pod]) is None


def test_pods_that_saw_little_each_are_learned_from_together():
    pods = [fed(list(steps(MIN_STEPS // 2, seed=seed))) for seed in range(8)]
    assert fit(pods[:1]) is None
    assert fit(pods).base == pytest.approx(0.02, rel=0.01)


@settings(max_examples=scaled(20), deadline=None)
@given(st.integers(0, 999))
def test_equal_pods_have_equal_costs_whatever_the_noise_and_their_mix(seed):
    pods = [fed(list(steps(200, seed=seed + n, noise=0.15))) for n in range(4)]
    pods.append(fed([(0.021, 0, 1, 400)] * 300))
    common = fit(pods)
    assert {paced(common, pod) for pod in pods} == {common}


def test_a_slow_pod_is_slow_and_a_fast_one_fast():
    common = fit([fed(list(steps(2000)))])
    for pace in (0.3, 0.5, 2.0, 5.0):
        pod = fed([(seconds * pace, *counts) for seconds, *counts in steps(300, seed=5)])
        found = paced(common, pod)
        expected = pace / SAME_PACE if pace > 1 else pace * SAME_PACE
        assert found.prefill == pytest.approx(common.prefill * expected, rel=0.05)
    frozen = fed([(seconds * 1000, *counts) for seconds, *counts in steps(300)])
    assert paced(common, frozen).base == pytest.approx(8 * common.base)


def test_a_pod_that_has_hardly_begun_is_like_the_others():
    common = StepCost(0.02, 0.0001, 0.0003, 2e-7)
    assert paced(common, fed([(9.0, 1, 1, 1)] * (MIN_STEPS - 1))) == common


@pytest.mark.parametrize("field", ["seconds", "count", "seconds_rows", "context_context"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_sums_that_cannot_be_are_left_out(field, value):
    pod, sums = Steps(), run(StepSums(), steps(500))
    pod.feed(StepSums())
    pod.feed(sums)
    before = fit([pod])
    lie = {name: getattr(sums, name) for name in StepSums.__struct_fields__} | {field: value}
    assert not pod.feed(StepSums(**lie))
    assert fit([pod]) == before

"""The choice of experts: the same as numpy's for any logits, with ties, groups, corrections and bad numbers."""

from __future__ import annotations

from ctypes import byref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo_inference.backends.cpu.native.experts import routing
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.packing import address
from octavo_inference.models.layers import Experts, Scoring

from .mixture_oracle import Float32, choose

SMALL = st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 30.0])  # few values, so that some are equal
ROWS = 5


@st.composite
def mixtures(draw: st.DrawFn) -> Experts:
    groups = draw(st.sampled_from([1, 1, 2, 4, 8]))
    size = draw(st.integers(1, 9))
    chosen_groups = draw(st.integers(1, groups))
    return Experts(
        count=groups * size,
        chosen=draw(st.integers(1, chosen_groups * size)),
        intermediate=16,
        scoring=draw(st.sampled_from(["softmax", "sigmoid"] if groups > 1 else list(SCORINGS))),
        normalized=draw(st.booleans()),
        scale=draw(st.sampled_from([1.0, 2.5])),
        groups=groups,
        chosen_groups=chosen_groups,
        group_score=draw(st.sampled_from(["best", "best_two"])),
        near=draw(st.sampled_from([0.02, 0.8, 3.0])),
    )


SCORINGS: tuple[Scoring, ...] = ("softmax", "sigmoid", "softmax_of_chosen", "softmax_of_near")


def route(
    kernels: Kernels, experts: Experts, logits: Float32, correction: Float32 | None
) -> tuple[NDArray[np.int32], Float32]:
    scores = np.ascontiguousarray(logits, np.float32).copy()
    ids = np.full((len(logits), experts.chosen), -1, np.int32)
    weights = np.full(ids.shape, np.nan, np.float32)
    added = None if correction is None else address(correction)
    structure = routing(experts)
    kernels.library.octavo_route(byref(structure), added, address(scores), len(logits), address(ids), address(weights))
    return ids, weights


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_the_choice_is_that_of_the_description(kernels: Kernels, data: st.DataObject) -> None:
    experts = data.draw(mixtures())
    row = st.lists(SMALL, min_size=experts.count, max_size=experts.count)
    logits = np.array(data.draw(st.lists(row, min_size=ROWS, max_size=ROWS)), np.float32)
    # Differences of corrections are larger than what the two exponential functions differ by.
    corrected = not experts.scoring.startswith("softmax_of") and data.draw(st.booleans())
    correction = np.array(data.draw(row), np.float32) if corrected else None
    ids, weights = route(kernels, experts, logits, correction)
    for token in range(ROWS):
        expected, scales = choose(experts, logits[token], correction)
        assert ids[token].tolist() == expected
        np.testing.assert_allclose(weights[token], scales, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("scoring", SCORINGS)
def test_equal_scores_go_to_the_first_experts(kernels: Kernels, scoring: Scoring) -> None:
    experts = Experts(count=8, chosen=3, intermediate=16, scoring=scoring)
    ids, weights = route(kernels, experts, np.zeros((1, 8), np.float32), None)
    assert ids.tolist() == [[0, 1, 2]]
    shares = [1 / 8, 1 / 7, 1 / 6] if scoring == "softmax_of_near" else [1 / 3] * 3
    np.testing.assert_allclose(weights, [shares], rtol=1e-6)
    grouped = replace(experts, groups=4, chosen_groups=2, group_score="best_two", scoring="sigmoid")
    assert route(kernels, grouped, np.zeros((1, 8), np.float32), None)[0].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, -3e38])
def test_bad_logits_still_choose_experts(kernels: Kernels, scoring: str, bad: float) -> None:
    """A damaged token must not read outside of the experts' weights."""
    experts = Experts(count=8, chosen=3, intermediate=16, scoring=scoring, groups=1)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((50, 8)).astype(np.float32)
    logits[rng.random(logits.shape) < 0.4] = bad
    logits[0] = bad
    for mixture in (experts, replace(experts, groups=4, chosen_groups=2, group_score="best_two")):
        ids, _ = route(kernels, mixture, logits, None)
        assert ids.min() >= 0
        assert ids.max() < 8
        assert (np.diff(ids, axis=1) > 0).all()


def test_scores_of_zero_have_weights_of_zero(kernels: Kernels) -> None:
    experts = Experts(count=4, chosen=2, intermediate=16, scoring="sigmoid")
    _, weights = route(kernels, experts, np.full((1, 4), -200, np.float32), None)
    assert weights.tolist() == [[0, 0]]

"""The comparison of formats: values are rounded to the nearest level, and the table is that of the code."""

from __future__ import annotations

import numpy as np
import pytest

from bench.lib.processes import ROOT
from bench.lib.rounding import E2M1, NF4, Round, codes, fp8, half_quadratic, integers, mxfp4, nearest, nvfp4
from bench.quality import evidence
from bench.quality.published import published

WEIGHTS = np.random.default_rng(0).standard_normal((8, 128)).astype(np.float32)


@pytest.mark.parametrize("levels", [NF4, E2M1])
def test_the_nearest_level_is_chosen(levels: tuple[float, ...]) -> None:
    values = np.linspace(-14, 14, 999, dtype=np.float32)
    distance = np.abs(values[:, None] - np.array(levels, np.float32))
    chosen = nearest(values, levels)
    np.testing.assert_allclose(distance[np.arange(999), chosen], distance.min(axis=1), atol=1e-6)


@pytest.mark.parametrize("minimum", [False, True])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 64), (8, 0)])
def test_integers_are_off_by_half_a_step_at_most(bits: int, group: int, minimum: bool) -> None:
    matrix = integers(bits, group, minimum=minimum)(WEIGHTS)
    groups = matrix.read(0, 8)
    step = groups.scale.repeat(128 // groups.scale.shape[1], axis=1)
    off = np.abs(matrix.dequantize() - WEIGHTS) / step
    # Zero points are rounded, too, and fp16 scales may be too small for the largest weight.
    assert off.max() < (1.1 if minimum else 0.6)


def test_half_quadratic_steps_are_better_than_rounding() -> None:
    def error(how: Round) -> float:
        return float(np.abs(how(WEIGHTS).dequantize() - WEIGHTS).mean())

    assert error(half_quadratic(4, 64)) < error(integers(4, 64, minimum=True))


@pytest.mark.parametrize(
    ("how", "bound"), [(codes(NF4, 64), 0.12), (mxfp4, 0.15), (nvfp4, 0.12), (fp8(0, 0), 0.04), (fp8(4, 64), 0.04)]
)
def test_floats_of_few_bits(how: Round, bound: float) -> None:
    error = how(WEIGHTS).dequantize() - WEIGHTS
    assert np.linalg.norm(error) < bound * np.linalg.norm(WEIGHTS)


def test_zeros_stay_zeros() -> None:
    for how in (integers(4, 32, minimum=False), integers(4, 32, minimum=True), codes(NF4, 64), mxfp4, fp8(1, 0)):
        assert not how(np.zeros((2, 64), np.float32)).dequantize().any()


def test_the_table_is_that_of_the_code_and_the_results() -> None:
    assert evidence.table(evidence.results()) in evidence.PAGE.read_text(encoding="utf-8")


def test_the_tests_in_the_table_exist() -> None:
    assert {entry.test for entry in published() if not (ROOT / entry.test).exists()} == set()

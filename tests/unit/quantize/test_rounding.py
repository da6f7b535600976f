"""Rounding to a grid: bounds of the errors, and what GPTQ and AWQ promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_inference.tools.quantize.awq import StageInputs, search
from octavo_inference.tools.quantize.e4m3 import from_e4m3, to_e4m3
from octavo_inference.tools.quantize.gptq import gptq
from octavo_inference.tools.quantize.grid import Grid, round_to_nearest

GRIDS = [Grid(4, 32), Grid(4, 64, symmetric=False), Grid(8), Grid(8, 128), Grid(8, floating=True)]


def weights(seed: int, rows: int = 24, columns: int = 128) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def correlated(seed: int, columns: int, tokens: int = 512) -> np.ndarray:
    """StageInputs with a few strong directions, as those of a trained model have."""
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((8, columns)) * np.exp(rng.standard_normal(columns))
    return (rng.standard_normal((tokens, 8)) @ directions + 0.3 * rng.standard_normal((tokens, columns))).astype("f4")


def output_error(inputs: np.ndarray, exact: np.ndarray, rounded: np.ndarray) -> float:
    return float(np.square(inputs @ (rounded - exact).T).sum(dtype=np.float64))


@pytest.mark.parametrize("grid", GRIDS)
def test_no_weight_is_off_by_more_than_its_grid_allows(grid: Grid) -> None:
    exact = weights(0)
    rounded = round_to_nearest(exact, grid)
    error = np.abs(rounded.values() - exact).reshape(24, -1, grid.group or 128)
    if grid.floating:
        # 3 bits of mantissa, and steps of 2**-9 near zero.
        allowed = np.maximum(np.abs(exact) * 2.0**-4, rounded.scales * 2.0**-10)
        assert (error[:, 0] <= allowed * 1.01).all()
        return
    # The largest weight of a symmetric group may be half a step above the last level; scales and zeros are rounded too.
    assert (error <= 1.05 * rounded.scales[..., None]).all()
    assert np.mean(error <= 0.51 * rounded.scales[..., None]) > 0.98


@pytest.mark.parametrize("grid", GRIDS)
def test_zeros_stay_zeros(grid: Grid) -> None:
    assert not round_to_nearest(np.zeros((4, 128), np.float32), grid).values().any()


def test_scales_are_exact_in_bfloat16() -> None:
    scales = round_to_nearest(weights(1), Grid(4, 32), np.ones(128, np.float32)).scales
    assert not np.any(scales.view(np.uint32) & 0xFFFF)


@pytest.mark.parametrize("grid", [grid for grid in GRIDS if grid.bits == 4])
def test_a_search_over_clipped_ranges_lowers_the_weighted_error(grid: Grid) -> None:
    exact, importance = weights(2), np.exp(np.random.default_rng(3).standard_normal(128)).astype(np.float32)

    def error(values: np.ndarray) -> float:
        return float((np.square(values - exact) * importance).sum())

    plain, searched = round_to_nearest(exact, grid), round_to_nearest(exact, grid, importance)
    assert error(searched.values()) < error(plain.values())


def test_fp8_codes_are_those_of_torch() -> None:
    rng = np.random.default_rng(0)
    middles = (from_e4m3(np.arange(126, dtype=np.uint8)) + from_e4m3(np.arange(1, 127, dtype=np.uint8))) / 2
    values = np.concatenate([rng.standard_normal(4000) * 100, rng.standard_normal(4000) * 0.01, middles, -middles, [0]])
    values = np.clip(values, -448, 448).astype(np.float32)
    expected = torch.from_numpy(values).to(torch.float8_e4m3fn)
    np.testing.assert_array_equal(to_e4m3(values), expected.view(torch.uint8).numpy())
    np.testing.assert_array_equal(from_e4m3(to_e4m3(values)), expected.float().numpy())
    assert from_e4m3(to_e4m3(np.array([1e9, -1e9], np.float32))).tolist() == [448, -448]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), grid=st.sampled_from([g for g in GRIDS if not g.floating]), order=st.booleans())
def test_gptq_has_less_error_than_rounding_to_nearest(seed: int, grid: Grid, order: bool) -> None:
    exact, inputs = weights(seed, columns=256), correlated(seed, 256)
    found = gptq(exact, inputs.T @ inputs / len(inputs), grid, by_activation=order)
    plain = round_to_nearest(exact, grid)
    assert output_error(inputs, exact, found.values()) < output_error(inputs, exact, plain.values())


def test_gptq_of_uncorrelated_inputs_is_rounding_to_nearest() -> None:
    exact, moments = weights(4), np.linspace(1, 2, 128, dtype=np.float32)
    for order in (True, False):
        found = gptq(exact, np.diag(moments), Grid(4, 32), by_activation=order)
        nearest = round_to_nearest(exact, Grid(4, 32), moments)
        np.testing.assert_array_equal(found.codes, nearest.codes)
        np.testing.assert_array_equal(found.scales, nearest.scales)


def test_gptq_of_inputs_that_are_always_zero() -> None:
    exact, inputs = weights(5), correlated(5, 128)
    inputs[:, 40:50] = 0
    found = gptq(exact, inputs.T @ inputs / len(inputs), Grid(4, 32))
    assert np.isfinite(found.values()).all()
    nearest = round_to_nearest(exact, Grid(4, 32))
    assert output_error(inputs, exact, found.values()) < output_error(inputs, exact, nearest.values())


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_scales_of_awq_lower_the_error_of_large_inputs(seed: int) -> None:
    exact, inputs = weights(seed), correlated(seed, 128)
    inputs[:, :2] *= 30
    grid = Grid(4, 128)
    scale = search(exact, StageInputs(np.abs(inputs).mean(axis=0), inputs), grid)
    scaled = round_to_nearest(exact * scale, grid).values() / scale
    assert output_error(inputs, exact, scaled) < output_error(inputs, exact, round_to_nearest(exact, grid).values())

"""Products of float8 activations and float8 weights: what rounding activations costs, and that nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.device import Device, multiplies_fp8
from octavo_inference.backends.cuda.kernels.launch_configs import WORKSPACE
from octavo_inference.backends.cuda.kernels.quantize import quantize
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix
from octavo_inference.backends.cuda.linear import FP8_ROWS, Linear, quantize_rows
from octavo_inference.backends.cuda.packing import FP8_BY_ROW, Quantization


def quantized(x: Torch) -> tuple[Torch, Torch]:
    values, scales = torch.zeros(x.shape, dtype=torch.uint8), torch.full((len(x),), float("nan"))
    quantize(x, values, scales)
    return values, scales


def decoded(values: Torch, scales: Torch) -> Torch:
    return values.view(torch.float8_e4m3fn).double() * scales.double()[:, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantize(record: Any, dtype: torch.dtype) -> None:
    # Longer than one tile, rows at a distance, of any size, one of zeros.
    wide = torch.randn(7, 2100, generator=torch.Generator().manual_seed(0)) * torch.logspace(-20, 20, 7)[:, None]
    wide[3] = 0
    x = wide.to(dtype)[:, 3:2063]
    values, scales = quantized(x)
    expected, expected_scales = quantize_rows(x)
    assert torch.equal(scales, expected_scales)
    found, exact = decoded(values, scales), x.double()
    assert ((found - exact).abs() <= exact.abs() / 16 + scales.double()[:, None] * 2**-10 * 1.001).all()
    assert not found[3].any()
    # As weights are rounded, to the bit.
    assert torch.equal(values, expected)
    record(
        "quantize",
        (7, 2060),
        dtype,
        float(((found - exact).abs().amax(1) / exact.abs().amax(1).clamp(min=1e-30)).max()),
    )


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_spoils_its_row_alone(bad: float) -> None:
    x = torch.ones(3, 64)
    x[1, 5] = bad
    found = decoded(*quantized(x))
    assert found[1].isnan().all()
    np.testing.assert_allclose(found[[0, 2]], np.ones((2, 64)), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("m", "n", "k"), [(FP8_ROWS, 70, 608), (130, 33, 96)])
def test_a_layer_multiplies_many_rows_in_float8(record: Any, m: int, n: int, k: int) -> None:
    random = torch.Generator().manual_seed(m)
    values, scales = quantize_rows(torch.randn(n, k, generator=random) * torch.logspace(-3, 3, n)[:, None])
    x = torch.randn(m, k, generator=random) * torch.logspace(-3, 3, m)[:, None]
    bias = torch.randn(n, generator=random)
    eight, workspace = torch.zeros(m * k, dtype=torch.uint8), torch.empty(WORKSPACE)
    layer = Linear((DeviceMatrix(FP8_BY_ROW, k, values, factors=scales),), (bias,), workspace, eight)
    out = layer(x)
    rounded, weights = decoded(*quantized(x)), decoded(values, scales)
    assert torch.equal(eight.view(m, k), quantized(x)[0])
    # Products of three bits by three are exact, so what is rounded is the sum in float32.
    terms = rounded.abs() @ weights.abs().T + bias.abs().double()
    error = (out.double() - (rounded @ weights.T + bias.double())).abs()
    assert (error <= 2e-6 * terms).all()
    record("linear fp8 x fp8", (m, n, k), "float32", float((error / terms).max()))
    # Beside activations that are not rounded: a sixteenth of each term at most, 2.6 % of their root square sum mostly.
    exact = x.double() @ weights.T + bias.double()
    off = (out.double() - exact).abs()
    assert (off <= 2**-4 * (x.double().abs() @ weights.abs().T) + 1e-3 * terms).all()
    sizes = (x.double().square() @ weights.square().T).sqrt()
    assert 0.02 < float((off / sizes).square().mean().sqrt()) < 0.04


def test_few_rows_and_other_cards_keep_their_activations() -> None:
    values, scales = quantize_rows(torch.randn(8, 64))
    matrix, x = DeviceMatrix(FP8_BY_ROW, 64, values, factors=scales), torch.randn(FP8_ROWS, 64)
    eight, workspace = torch.zeros(64 * 128, dtype=torch.uint8), torch.empty(WORKSPACE)
    with_eight, without = Linear((matrix,), (None,), workspace, eight), Linear((matrix,), (None,), workspace)
    assert torch.equal(with_eight(x[:-1]), without(x[:-1]))
    assert not eight.any()
    assert not torch.equal(with_eight(x), without(x))


@pytest.mark.parametrize(
    ("capability", "quantization", "dtype", "expected"),
    [
        ((8, 9), "fp8", torch.bfloat16, True),
        ((9, 0), "fp8", torch.bfloat16, True),
        ((8, 6), "fp8", torch.bfloat16, False),
        ((9, 0), "auto", torch.bfloat16, False),
        ((9, 0), "fp8", torch.float32, False),
    ],
)
def test_who_multiplies_in_float8(
    capability: tuple[int, int], quantization: Quantization, dtype: torch.dtype, expected: bool
) -> None:
    device = Device(torch.device("cpu"), "a card", capability, 1, 0, 0)
    assert multiplies_fp8(device, quantization, dtype) is expected


def test_rounding_is_the_same_wherever_a_row_stands() -> None:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((4, 100), np.float32))
    values, scales = quantized(x)
    alone, scale = quantized(x[2:3])
    assert torch.equal(values[2], alone[0])
    assert scales[2] == scale[0]

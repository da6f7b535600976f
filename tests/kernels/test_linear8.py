"""Products of float8 activations and float8 weights: what rounding activations costs, and that nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.device import Device, Fp8Products, fp8_products
from octavo_inference.backends.cuda.kernels.launch_configs import WORKSPACE
from octavo_inference.backends.cuda.kernels.quantize import quantize, quantize_groups
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix, Layout
from octavo_inference.backends.cuda.library_products import GROUP
from octavo_inference.backends.cuda.linear import FP8_ROWS, Linear, _many_for_fp8, quantize_rows
from octavo_inference.backends.cuda.packing import FP8_BY_ROW


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
    ("capability", "cuda", "dtype", "expected"),
    [
        ((8, 9), "13.0", torch.bfloat16, Fp8Products(rows=True)),
        ((9, 0), "13.0", torch.bfloat16, Fp8Products(rows=True, groups=True)),
        ((9, 0), "12.9", torch.bfloat16, Fp8Products(rows=True, groups=True)),
        ((9, 0), "12.8", torch.bfloat16, Fp8Products(rows=True)),
        ((10, 0), "13.0", torch.bfloat16, Fp8Products(rows=True)),
        ((9, 0), None, torch.bfloat16, Fp8Products(rows=True)),
        ((8, 6), "13.0", torch.bfloat16, Fp8Products()),
        ((9, 0), "13.0", torch.float32, Fp8Products()),
    ],
)
def test_who_multiplies_in_float8(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    cuda: str | None,
    dtype: torch.dtype,
    expected: Fp8Products,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert fp8_products(Device(torch.device("cpu"), "a card", capability, 1, 0, 0), dtype) == expected


def grouped_in_fp8(x: Torch) -> tuple[Torch, Torch]:
    values, scales = torch.zeros(x.shape, dtype=torch.uint8), torch.full((x.shape[1] // GROUP, len(x)), float("nan"))
    quantize_groups(x, values, scales, GROUP)
    return values, scales


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantize_groups(record: Any, dtype: torch.dtype) -> None:
    # More groups than one program has, rows at a distance, groups of any size, one of zeros.
    random = torch.Generator().manual_seed(1)
    wide = torch.randn(5, 18, GROUP, generator=random) * torch.logspace(-20, 20, 90).view(5, 18, 1)
    wide[2, 3] = 0
    x = torch.zeros(5, 18 * GROUP + 7, dtype=dtype)[:, 3 : 18 * GROUP + 3]
    x.copy_(wide.reshape(5, -1))
    values, scales = grouped_in_fp8(x)
    # A group is a row of its own.
    expected, expected_scales = quantize_rows(x.reshape(-1, GROUP))
    assert torch.equal(scales.t().reshape(-1), expected_scales)
    assert torch.equal(values.view(-1, GROUP), expected)
    found = decoded(values.view(-1, GROUP), expected_scales)
    exact = x.double().reshape(-1, GROUP)
    error = ((found - exact).abs().amax(1) / exact.abs().amax(1).clamp(min=1e-30)).max()
    record("quantize groups", (5, 18 * GROUP), dtype, float(error))


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_multiplies_many_rows_in_float8_by_groups(bias: bool) -> None:
    random = torch.Generator().manual_seed(2)
    m, n, k = 132, 48, 3 * GROUP
    values, scales = quantize_rows(torch.randn(n * 3, GROUP, generator=random) * torch.logspace(-3, 3, n * 3)[:, None])
    values, scales = values.view(n, k), scales.view(n, 3)
    x = torch.randn(m, k, generator=random) * torch.logspace(-3, 3, m)[:, None]
    given = torch.randn(n, generator=random) if bias else None
    matrix = DeviceMatrix(Layout("fp8", GROUP), k, values, scales)
    eight = torch.zeros(m * k, dtype=torch.uint8)
    layer = Linear((matrix,), (given,), torch.full((WORKSPACE,), float("nan")), eight)
    out = layer(x)
    x_values, x_scales = grouped_in_fp8(x)
    assert torch.equal(eight.view(m, k), x_values)
    rounded = decoded(x_values.view(-1, GROUP), x_scales.t().reshape(-1)).view(m, k)
    weights = decoded(values.view(-1, GROUP), scales.reshape(-1)).view(n, k)
    terms = rounded.abs() @ weights.abs().T + (0 if given is None else given.abs().double())
    expected = rounded @ weights.T + (0 if given is None else given.double())
    assert ((out.double() - expected).abs() <= 2e-6 * terms).all()
    # Fewer rows, or no multiple of 4 of them, keep their activations.
    without = Linear((matrix,), (given,), torch.empty(WORKSPACE))
    assert torch.equal(layer(x[:128]), without(x[:128]))
    assert torch.equal(layer(x[:131]), without(x[:131]))
    assert not torch.equal(out, without(x))
    # So do those whose scales have no room: 3 groups of 132 rows of x and 48 of weights.
    assert _many_for_fp8(m, matrix, torch.empty(3 * 180))
    assert not _many_for_fp8(m, matrix, torch.empty(3 * 180 - 1))


def test_rounding_is_the_same_wherever_a_row_stands() -> None:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((4, 100), np.float32))
    values, scales = quantized(x)
    alone, scale = quantized(x[2:3])
    assert torch.equal(values[2], alone[0])
    assert scales[2] == scale[0]

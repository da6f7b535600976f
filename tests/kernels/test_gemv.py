"""Products of very few rows against the dequantised weights in float64, and against the products of many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.gemv import gemv, suits
from octavo_inference.backends.cuda.kernels.launch_configs import WORKSPACE, GemvTile
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix, Layout
from octavo_inference.backends.cuda.linear import Linear, quantize_rows
from octavo_inference.backends.cuda.packing import FP8_BY_ROW
from octavo_inference.models.weights import Format, dequantize

from .stored import FORMATS, stored
from .test_linear import K_FORMATS, compare, on_device, tolerance

# One warp, so that there is more than one step, and the last is not full.
TILE = GemvTile(outputs=2, warps=1)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def run(x: Torch, matrix: DeviceMatrix, bias: Torch | None, out: Torch, tile: GemvTile = TILE) -> None:
    assert suits(x, matrix)
    gemv(x, matrix, bias, out, tile=tile)


@pytest.mark.parametrize(
    ("format_", "m"), [(f, 1 + i % 3) for i, f in enumerate(FORMATS) if f not in {"f32", "f16"}], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gemv(rng: np.random.Generator, record: Any, format_: Format, m: int, dtype: torch.dtype) -> None:
    # More columns than a step of any form has, and outputs that are no multiple of a program's.
    n, k = 3, 1280 if format_ in K_FORMATS else 1184 if "4" in format_ else 608
    tensor = stored(rng, format_, n, k)
    matrix = on_device(tensor)
    x = torch.from_numpy(rng.standard_normal((m, k), np.float32)).to(dtype)
    bias = torch.from_numpy(rng.standard_normal(n, np.float32)) if m == 1 else None
    wide = torch.full((m + 1, n + 4), float("nan"))
    run(x, matrix, bias, wide[:m, 1 : n + 1])
    assert wide[m:].isnan().all()
    assert wide[:, 0].isnan().all()
    assert wide[:, n + 1 :].isnan().all()
    weights = dequantize(tensor)
    expected = x.double().numpy() @ weights.T.astype(np.float64) + (0 if bias is None else bias.double().numpy())
    # What makes integers floats is up to 64 times the weight, and goes off again: float32 sums lose that much more.
    bound = tolerance(x, weights, 2**-10 if format_ in K_FORMATS else 1e-5) + 1e-6
    error = compare(wide[:m, 1 : n + 1], expected, bound)
    record(f"gemv {format_}", (m, n, k), dtype, error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gemv_fp8(rng: np.random.Generator, record: Any, dtype: torch.dtype) -> None:
    dense = torch.from_numpy(rng.standard_normal((4, 608), np.float32)) * torch.logspace(-6, 3, 4)[:, None]
    values, scales = quantize_rows(dense)
    x = torch.from_numpy(rng.standard_normal((2, 608), np.float32)).to(dtype)
    # Both ends of what activations may be: weights are read 2**120 too small on the way.
    x[0] *= 2.0**30
    x[1] *= 2.0**-40
    out, bias = torch.empty(2, 4), torch.zeros(4)
    run(x, DeviceMatrix(FP8_BY_ROW, 608, values, factors=scales), bias, out)
    kept = (values.view(torch.float8_e4m3fn).float() * scales[:, None]).numpy()
    error = compare(out, x.double().numpy() @ kept.T.astype(np.float64), tolerance(x, kept, 2e-6))
    record("gemv fp8", (2, 4, 608), dtype, error)


def test_every_byte_of_fp8_means_what_torch_says() -> None:
    values = torch.arange(256, dtype=torch.uint8).view(64, 4)
    out = torch.empty(4, 64)
    run(torch.eye(4), DeviceMatrix(FP8_BY_ROW, 4, values, factors=torch.ones(64)), None, out, GemvTile(32, 1))
    expected = values.view(torch.float8_e4m3fn).float().T
    # There is no NaN among weights: its bits give 480.
    assert torch.equal(out, torch.where(expected.isnan(), torch.where(values.T >= 128, -480.0, 480.0), expected))


def test_how_many_rows_are_together_changes_nothing(rng: np.random.Generator) -> None:
    matrix = on_device(stored(rng, "q4_k", 3, 512))
    x = torch.from_numpy(rng.standard_normal((3, 512), np.float32)).to(torch.bfloat16)
    together, alone = torch.empty(3, 3), torch.empty(3, 3)
    run(x, matrix, None, together)
    for i in range(3):
        run(x[i : i + 1], matrix, None, alone[i : i + 1])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("format_", ["q4_0", "bf16"])
def test_a_layer_takes_it_for_few_rows_and_gives_what_it_gives_for_many(
    rng: np.random.Generator, format_: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    monkeypatch.setattr(
        "octavo_inference.backends.cuda.linear.gemv", lambda *a, **k: (called.append(len(a[0])), gemv(*a, **k))
    )
    layer = Linear((on_device(stored(rng, format_, 8, 256)),), (None,), torch.empty(WORKSPACE))
    x = torch.from_numpy(rng.standard_normal((17, 256), np.float32)).to(torch.bfloat16)
    many = layer(x)
    for rows in (1, 2):
        few = layer(x[:rows])
        assert (few.float() - many[:rows].float()).abs().max() <= 2**-6 * many.abs().max()
    assert called == [1, 2]


def test_rows_that_are_no_whole_words_are_left_to_others() -> None:
    def dense(values: Torch) -> DeviceMatrix:
        return DeviceMatrix(Layout("bf16"), values.shape[1], values)

    x, values = torch.empty((1, 66), dtype=torch.bfloat16), torch.empty((4, 66), dtype=torch.bfloat16)
    assert not suits(x, dense(values))
    assert suits(x[:, :64], dense(values[:, :64])) is False  # its next row starts within a word
    assert not suits(torch.empty(1, 64), dense(torch.empty(4, 64)))

"""RMSNorm and LayerNorm kernels against float64 arithmetic in torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor as Torch

from bench.gpu.cases.case import Place
from bench.gpu.cases.elementwise import EPS, add_norm, norm, normed
from octavo_inference.backends.cuda.kernels.norm import DeviceNorm, add_normalize, normalize

# Of a value: the roundings of float32 sums, or the one of the store (the interpreter cuts bfloat16 off, a GPU rounds).
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2**-7, torch.float16: 2**-11}
SHAPES = [(1, 80), (3, 576), (5, 1000), (2, 1), (7, 64)]


def error(found: Torch, expected: Torch) -> float:
    """Largest relative error; of values below 0.1, which a sum may leave behind, as if they were 0.1."""
    return float(((found.double() - expected).abs() / expected.abs().clamp(min=0.1)).max())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rms_norm(shape: tuple[int, int], dtype: torch.dtype, record: Callable[..., None]) -> None:
    torch.manual_seed(sum(shape))
    trial = norm(Place(torch.device("cpu"), dtype, tiny=True), *shape)
    trial.launch()
    [(out, expected)] = trial.pairs()
    worst = error(out, expected)
    record("rms_norm", shape, dtype, worst)
    assert worst <= TOLERANCE[dtype]


def test_rms_norm_of_rows_that_lie_apart(record: Callable[..., None]) -> None:
    """As the heads of a projected row do, in the type of the activations and in place."""
    torch.manual_seed(0)
    rows = torch.randn(6, 200).bfloat16()
    before, x = rows.clone(), rows[:, 40:136]
    normalize(x, DeviceNorm(torch.ones(96).bfloat16()), EPS, x)
    worst = error(x, normed(before[:, 40:136], DeviceNorm(torch.ones(96))))
    record("rms_norm", "(6, 96) of 200", torch.bfloat16, worst)
    assert worst <= TOLERANCE[torch.bfloat16]
    assert torch.equal(rows[:, :40], before[:, :40])
    assert torch.equal(rows[:, 136:], before[:, 136:])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("dtype", "output_norm"), [(torch.float32, True), (torch.float32, False), (torch.bfloat16, True)]
)
def test_add_rms_norm(
    shape: tuple[int, int], dtype: torch.dtype, output_norm: bool, record: Callable[..., None]
) -> None:
    torch.manual_seed(sum(shape))
    trial = add_norm(Place(torch.device("cpu"), dtype, tiny=True), *shape, output_norm=output_norm, factor=0.7)
    trial.launch()
    (out, expected), (residual, total) = trial.pairs()
    worst = error(out, expected)
    record("add_rms_norm", shape, dtype, worst)
    assert worst <= TOLERANCE[dtype]
    assert error(residual, total) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm(shape: tuple[int, int], record: Callable[..., None]) -> None:
    torch.manual_seed(sum(shape))
    place = Place(torch.device("cpu"), torch.float32, tiny=True)
    alone, added = norm(place, *shape, centred=True), add_norm(place, *shape, centred=True, output_norm=True)
    for name, trial in (("layer_norm", alone), ("add_layer_norm", added)):
        trial.launch()
        # Sums of values around one, of which the mean is subtracted: an absolute error.
        worst = max(float((found.double() - wanted).abs().max()) for found, wanted in trial.pairs())
        record(name, shape, torch.float32, worst)
        assert worst <= 1e-5


@pytest.mark.parametrize(
    "flags",
    [{"norm": False}, {"norm": False, "output_norm": True}, {"keep": True}, {"keep": True, "centred": True}],
    ids=["no norm", "output norm alone", "after the sum", "LayerNorm after the sum"],
)
def test_where_the_norms_of_a_sum_are(flags: dict[str, bool]) -> None:
    torch.manual_seed(0)
    trial = add_norm(Place(torch.device("cpu"), torch.float32, tiny=True), 5, 300, **flags)
    trial.launch()
    for found, wanted in trial.pairs():
        assert float((found.double() - wanted).abs().max()) <= 1e-5


def test_a_norm_without_weights() -> None:
    torch.manual_seed(0)
    x, out = 3 + torch.randn(4, 100), torch.empty(4, 100)
    normalize(x, DeviceNorm(None, centred=True), EPS, out)
    assert (out - torch.nn.functional.layer_norm(x, (100,), eps=EPS)).abs().max() < 1e-5


def test_no_rows() -> None:
    weight = DeviceNorm(torch.ones(8))
    normalize(torch.empty(0, 8), weight, EPS, torch.empty(0, 8))
    add_normalize(torch.empty(0, 8), torch.empty(0, 8), 1.0, weight, EPS, torch.empty(0, 8))

"""The gated activation against torch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch

from bench.gpu.cases.case import Place
from bench.gpu.cases.elementwise import activation as case
from octavo_inference.backends.cuda.kernels.activation import gated

# Of a value: a few roundings in float32, or the one of the store (the interpreter cuts bfloat16 off, a GPU rounds it).
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-11}


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(
    ("dtype", "rows", "width"),
    [
        (torch.float32, 1, 1536),
        (torch.float32, 3, 80),
        (torch.float32, 2, 1025),
        (torch.bfloat16, 3, 216),
        (torch.float16, 2, 1),
    ],
)
def test_gated(
    dtype: torch.dtype, rows: int, width: int, activation: Literal["silu", "gelu_tanh"], record: Callable[..., None]
) -> None:
    torch.manual_seed(width)
    trial = case(Place(torch.device("cpu"), dtype, tiny=True), activation, rows, width)
    trial.launch()
    [(out, expected)] = trial.pairs()
    # Relative; of values below 1e-3 as if they were that, because float16 has few digits for the smallest.
    worst = float(((out.double() - expected).abs() / expected.abs().clamp(min=1e-3)).max())
    record(f"gated {activation}", (rows, width), dtype, worst)
    assert worst <= TOLERANCE[dtype]


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of positive values, which take the other branch
def test_xielu(record: Callable[..., None]) -> None:
    """Close to zero, at the border of its series and far away; without a gate and with one."""
    x = torch.cat([torch.randn(400), torch.tensor([0.0, -1e-4, 1e-4, -0.499, -0.501, -90.0, 200.0]).repeat(3)])
    factors = torch.tensor([0.8, 0.4])
    wide = x.double()
    wanted = torch.where(wide > 0, 0.8 * wide**2, 0.4 * (torch.expm1(wide) - wide)) + 0.5 * wide
    out, twice = torch.empty(1, len(x)), torch.empty(1, len(x))
    gated(x[None], out, "xielu", factors)
    gated(torch.cat([x, 3 * torch.ones_like(x)])[None], twice, "xielu", factors)
    worst = float(((out[0] - wanted).abs() / wanted.abs().clamp(min=1e-3)).max())
    record("gated xielu", tuple(out.shape), torch.float32, worst)
    assert worst <= TOLERANCE[torch.float32]
    assert torch.equal(twice, 3 * out)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # on the way to 1 / (1 + infinity)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_far_values_saturate(activation: Literal["silu", "gelu_tanh"]) -> None:
    x = torch.tensor([[-1e4, -200.0, 200.0, 1e4, 1.0, 1.0, 1.0, 1.0]])
    out = torch.empty(1, 4)
    gated(x, out, activation)
    assert out.tolist() == [[0.0, 0.0, 200.0, 1e4]]

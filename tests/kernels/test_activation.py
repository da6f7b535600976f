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


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # on the way to 1 / (1 + infinity)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_far_values_saturate(activation: Literal["silu", "gelu_tanh"]) -> None:
    x = torch.tensor([[-1e4, -200.0, 200.0, 1e4, 1.0, 1.0, 1.0, 1.0]])
    out = torch.empty(1, 4)
    gated(x, out, activation)
    assert out.tolist() == [[0.0, 0.0, 200.0, 1e4]]

"""Kernels of state layers against the same sums token by token in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from bench.gpu.cases.case import Place
from bench.gpu.cases.state_layers import Batch, StateCase, norm_of_groups
from bench.gpu.experiments.check import error
from octavo_inference.backends.cuda.kernels.delta_solve import inverse
from octavo_inference.backends.cuda.kernels.gated_norm import sigmoid_gate

PLACE = Place(torch.device("cpu"), torch.float32, tiny=False)
BATCHES: dict[str, Batch] = {
    "decodes": ((1, 5), (1, 0), (1, 1), (1, 2)),
    "prompts": ((2, 0), (3, 1), (33, 0), (64, 40)),
    "both": ((1, 0), (1, 7), (31, 0), (1, 9), (32, 2), (65, 0)),
}
MAMBA = StateCase("mamba2", (2, 20, 24, 1), BATCHES["both"])
DELTA = StateCase("delta", (2, 24, 20, 1), BATCHES["both"])
CONV = StateCase("convolve", (130, 4, 0, 0), BATCHES["both"])
Record = Callable[..., None]


def check(case: StateCase, record: Record, dtype: torch.dtype = torch.float32) -> None:
    torch.manual_seed(0)
    trial = case.prepare(replace(PLACE, dtype=dtype))
    trial.launch()
    _, worst = error(trial.pairs())
    record(case.kernel, case, dtype, worst)
    assert worst <= trial.bound


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("taps", [2, 4, 7])
@pytest.mark.parametrize("gates", [False, True], ids=["", "gates"])
def test_convolution(batch: str, taps: int, gates: bool, record: Record) -> None:
    check(replace(CONV, size=(130, taps, 0, 0), batch=BATCHES[batch], gates=gates), record)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("size", [(2, 20, 24, 1), (4, 16, 16, 2), (3, 5, 40, 3), (1, 70, 130, 1)], ids=str)
def test_mamba2(batch: str, size: tuple[int, int, int, int], record: Record) -> None:
    check(replace(MAMBA, size=size, batch=BATCHES[batch]), record)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("size", [(2, 24, 20, 1), (4, 16, 16, 2), (3, 5, 40, 3), (1, 20, 130, 1)], ids=str)
def test_delta(batch: str, size: tuple[int, int, int, int], record: Record) -> None:
    check(replace(DELTA, size=size, batch=BATCHES[batch]), record)


@pytest.mark.parametrize("case", [CONV, MAMBA, DELTA], ids=lambda case: case.kernel)
def test_in_bfloat16(case: StateCase, record: Record) -> None:
    check(case, record, torch.bfloat16)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    ("groups", "shared", "normed"), [(1, False, True), (4, False, True), (4, True, True), (1, False, False)]
)
def test_gated_norm(norm_first: bool, groups: int, shared: bool, normed: bool, record: Record) -> None:
    torch.manual_seed(0)
    place = replace(PLACE, tiny=True)
    trial = norm_of_groups(place, groups, 40, norm_first=norm_first, shared=shared, normed=normed)
    trial.launch()
    _, worst = error(trial.pairs())
    record("gated_norm", f"{groups} groups", torch.float32, worst)
    assert worst <= trial.bound


def test_sigmoid_gate() -> None:
    x, gate = torch.randn(3, 50), torch.randn(3, 70)[:, 20:]
    expected = x * torch.sigmoid(gate)
    sigmoid_gate(x, gate)
    assert torch.allclose(x, expected, atol=1e-6)


@triton.jit
def _invert(lower, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    places = at[:, None] * SIZE + at[None, :]
    tl.store(out + places, inverse(tl.load(lower + places), SIZE))


def test_an_inverse_whose_powers_are_large() -> None:
    """Equal keys and full updates: the powers of such a matrix have entries up to 3e8, the inverse none above 1."""
    lower = torch.ones(32, 32).tril(-1)
    expected = torch.linalg.inv((torch.eye(32) + lower).double())
    found = torch.empty(32, 32)
    _invert[(1,)](lower, found, SIZE=32)
    assert (found - expected).abs().max() < 1e-6

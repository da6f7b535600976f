"""The bounds of `bench.gpu check` hold for what a card computes: in bfloat16, with operands and results rounded to it.

The interpreter multiplies in float32 and truncates results; `round_as_a_card` makes it round as a card does. The order
of sums remains its own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from bench.gpu.cases import every
from bench.gpu.cases.case import Case, Place
from bench.gpu.experiments.check import error

from .interpreter import round_as_a_card

PLACE = Place(torch.device("cpu"), torch.bfloat16, tiny=True)


def case_id(case: Case) -> str:
    return f"{case.kernel} {case.variant}"


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case.quick else [pytest.mark.full]) for case in every()], ids=case_id
)
def test_a_card_stays_within_the_bound(monkeypatch: pytest.MonkeyPatch, record: Any, case: Case) -> None:
    round_as_a_card(monkeypatch)
    torch.manual_seed(0)
    trial = case.prepare(PLACE)
    trial.launch()
    _, found = error(trial.pairs())
    assert found <= trial.bound
    record(f"{case.kernel}, rounded as on a card", case.variant, PLACE.dtype, found)


@triton.jit
def _multiply(x, y, product, short, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    at = lanes[:, None] * SIZE + lanes[None, :]
    result = tl.dot(tl.load(x + at), tl.load(y + at), input_precision="ieee")
    tl.store(product + at, result)
    tl.store(short + at, result.to(tl.bfloat16))


@pytest.mark.parametrize("as_a_card", [False, True])
def test_operands_and_results_are_rounded_to_the_nearest(monkeypatch: pytest.MonkeyPatch, as_a_card: bool) -> None:
    if as_a_card:
        round_as_a_card(monkeypatch)
    x, y = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(0))
    product, short = torch.empty(16, 16), torch.empty(16, 16, dtype=torch.bfloat16)
    _multiply[(1,)](x, y, product, short, SIZE=16)
    rounded = x.bfloat16().float() @ y.bfloat16().float()
    assert torch.allclose(product, rounded if as_a_card else x @ y, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(product, x @ y if as_a_card else rounded, rtol=1e-5, atol=1e-6)
    assert torch.equal(short, product.bfloat16()) is as_a_card

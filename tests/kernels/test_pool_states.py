"""Sums of hidden states against a loop over tokens: the same bits."""

from __future__ import annotations

import pytest
import torch

from octavo_inference.backends.cuda.kernels.pool import add_states


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden", [1, 100, 128, 300])
def test_add_states(dtype: torch.dtype, hidden: int) -> None:
    torch.manual_seed(hidden)
    states, sums = torch.randn(23, hidden).to(dtype), torch.randn(6, hidden)
    items = [(4, 0, 9, 0), (1, 9, 10, 1), (0, 10, 23, 1), (5, 3, 3, 0)]
    expected = sums.clone()
    for row, first, end, fresh in items:
        total = torch.zeros(hidden) if fresh else expected[row].clone()
        for token in range(first, end):
            total += states[token].float()
        expected[row] = total
    add_states(states, torch.tensor(items, dtype=torch.int32), sums)
    assert torch.equal(sums, expected)


def test_nothing_to_add() -> None:
    sums = torch.ones(2, 8)
    add_states(torch.ones(3, 8), torch.empty(0, 4, dtype=torch.int32), sums)
    assert torch.equal(sums, torch.ones(2, 8))

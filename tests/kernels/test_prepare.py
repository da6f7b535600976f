"""Batch preparation against the loop that says what it means."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from bench.gpu.cases.case import Place
from bench.gpu.cases.elementwise import prepared


@pytest.mark.parametrize(
    ("queries", "lengths", "block_size", "padding"),
    [
        ([1], [1], 16, 0),
        ([5, 1, 1], [5, 33, 16], 16, 0),  # a prompt among decodes, one at the end of a block
        ([0, 3, 0, 0, 1, 0], [4, 35, 0, 9, 97, 1], 32, 6),  # sequences without a token, first and last too
        ([200, 1, 70], [300, 1, 70], 16, 3),  # more than a tile
        ([0, 0], [7, 8], 16, 2),  # nothing but padding
        ([1] * 33, list(range(1, 34)), 16, 31),
    ],
)
def test_prepare(
    queries: list[int], lengths: list[int], block_size: int, padding: int, record: Callable[..., None]
) -> None:
    trial = prepared(Place(torch.device("cpu"), torch.float32, tiny=True), queries, lengths, block_size, padding)
    trial.launch()
    found, expected = zip(*trial.pairs(), strict=True)
    assert [part.tolist() for part in found] == [part.tolist() for part in expected]
    record("prepare", f"{len(queries)} sequences, {len(found[0])} tokens", torch.int64, 0.0)

"""Batch preparation against the loop that says what it means."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from octavo_inference.backends.cuda.kernels.prepare_inputs import prepare


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
    random = np.random.default_rng(len(queries))
    starts = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    width = max(lengths) // block_size + 2
    table = random.integers(0, 2**31 - 1, (len(queries) + 2, width), dtype=np.int32)
    history = random.integers(-1, 9, (len(queries) + 2, max(lengths) + 3), dtype=np.int32)
    rows = random.permutation(len(queries) + 2)[: len(queries)].astype(np.int32)
    positions = [0] * (int(starts[-1]) + padding)
    tokens, slots = [0] * len(positions), [-1] * len(positions)
    for i, (count, length) in enumerate(zip(queries, lengths, strict=True)):
        for n in range(count):
            position = length - count + n
            positions[starts[i] + n] = position
            tokens[starts[i] + n] = max(0, int(history[rows[i], position]))  # -1 where logits were no numbers
            slots[starts[i] + n] = int(table[rows[i], position // block_size]) * block_size + position % block_size
    found = [torch.full((len(slots),), 77, dtype=dtype) for dtype in (torch.int32, torch.int32, torch.int64)]
    prepare(
        torch.from_numpy(rows),
        torch.from_numpy(starts),
        torch.tensor(lengths, dtype=torch.int32),
        torch.from_numpy(history),
        torch.from_numpy(table),
        block_size,
        *found,
    )
    assert [part.tolist() for part in found] == [tokens, positions, slots]
    record("prepare", f"{len(queries)} sequences, {len(slots)} tokens", torch.int64, 0.0)

"""Copies of whole blocks against indexing in torch: equal to the bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.block_copy import copy_blocks, gather_blocks, scatter_blocks
from octavo_inference.backends.cuda.pool import KV_TYPES, allocate_pool


def noise(*shape: int, dtype: torch.dtype) -> Torch:
    """Any bytes: a copy must not look at what it copies."""
    return torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8).view(dtype)


def same(a: Torch, b: Torch) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", KV_TYPES)
def test_blocks_of_a_pool(dtype: torch.dtype, record: Callable[..., None]) -> None:
    pool = allocate_pool(
        layers=2, num_blocks=7, kv_heads=3, block_size=16, head_dim=80, dtype=dtype, device=torch.device("cpu")
    ).data
    pool.copy_(noise(*pool.shape, dtype=dtype))
    before = pool.clone()
    copy_blocks(pool, torch.tensor([[5, 0], [5, 2], [1, 6]], dtype=torch.int32))
    expected = before.clone()
    expected[:, [0, 2, 6]] = before[:, [5, 5, 1]]
    assert same(pool, expected)

    ids = torch.tensor([6, 0, 3])
    saved = torch.empty(3, *pool[:, 0].shape, dtype=dtype)
    gather_blocks(pool, ids, saved)
    assert same(saved, pool[:, ids].transpose(0, 1))

    scatter_blocks(saved, ids.flip(0), pool)
    expected[:, [6, 0, 3]] = saved.flip(0).transpose(0, 1)
    assert same(pool, expected)
    record("copy, gather, scatter blocks", tuple(pool.shape), dtype, 0.0)


@pytest.mark.parametrize("size", [1, 3, 4097, 20000])
def test_blocks_of_odd_sizes(size: int) -> None:
    pool = noise(3, 4, size, dtype=torch.uint8)
    expected = pool.clone()
    expected[:, 1] = pool[:, 3]
    copy_blocks(pool, torch.tensor([[3, 1]]))
    assert same(pool, expected)


def test_a_block_in_pieces_is_refused() -> None:
    """Instead of a copy of the pool being changed."""
    with pytest.raises(RuntimeError, match="view"):
        copy_blocks(torch.zeros(2, 3, 4, 5).transpose(2, 3), torch.tensor([[0, 1]]))


def test_no_blocks() -> None:
    pool = torch.zeros(2, 3, 4)
    copy_blocks(pool, torch.empty(0, 2, dtype=torch.int32))
    gather_blocks(pool, torch.empty(0, dtype=torch.int32), torch.empty(0, 2, 4))

"""The KV pool: what a block takes is what is allocated."""

from __future__ import annotations

import pytest
import torch

from octavo_inference.backends.cuda.pool import KV_TYPES, allocate_pool, block_bytes


@pytest.mark.parametrize("dtype", KV_TYPES)
def test_block_takes_what_is_allocated(dtype: torch.dtype) -> None:
    shape = {"layers": 3, "kv_heads": 2, "block_size": 16, "head_dim": 80, "dtype": dtype}
    pool = allocate_pool(num_blocks=5, device=torch.device("cpu"), **shape)
    assert sum(t.nbytes for t in (pool.data, pool.scales) if t is not None) == 5 * block_bytes(**shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_layer_is_a_view(dtype: torch.dtype) -> None:
    pool = allocate_pool(
        layers=2, num_blocks=4, kv_heads=1, block_size=16, head_dim=8, dtype=dtype, device=torch.device("cpu")
    )
    data, scales = pool.layer(1)
    data[3, 1, 0, 15, 7] = 5
    assert pool.data[1, 3, 1, 0, 15, 7] == 5
    assert (scales is None) == (dtype == torch.float32)


def test_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match=r"torch\.float64; expected one of torch\.float32"):
        allocate_pool(
            layers=1,
            num_blocks=1,
            kv_heads=1,
            block_size=16,
            head_dim=8,
            dtype=torch.float64,
            device=torch.device("cpu"),
        )

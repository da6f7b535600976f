"""Blocks on their way to the host and back in many pieces, over a device whose copies end late."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from octavo_inference.backends.cuda import transfer
from octavo_inference.backends.cuda.pool import KvPool, allocate_pool, block_bytes
from octavo_inference.backends.cuda.staging import Ring
from octavo_inference.backends.cuda.transfer import Transfer

SIZES = {"layers": 3, "kv_heads": 2, "block_size": 4, "head_dim": 8}


@pytest.fixture(params=[torch.float32, torch.int8])
def pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KvPool:
    """Random bytes, of which three blocks are a piece."""
    made = allocate_pool(num_blocks=20, dtype=request.param, device=torch.device("cpu"), **SIZES)
    for tensor in (made.data, made.scales):
        if tensor is not None:
            tensor.view(torch.uint8).random_(generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(transfer, "_BUFFER_BYTES", 3 * block_bytes(dtype=request.param, **SIZES))
    return made


@pytest.mark.parametrize("count", [0, 1, 3, 7, 10])
def test_blocks_come_back_as_they_were(pool: KvPool, count: int) -> None:
    moves = Transfer(pool)
    order = np.random.default_rng(count).permutation(20).tolist()
    source, target, others = order[:count], order[20 - count :], order[: 20 - count]
    saved, kept = moves.to_host(source), moves.to_host(others)
    assert saved.shape == (count, block_bytes(dtype=pool.data.dtype, **SIZES))
    moves.from_host(saved, target)
    assert np.array_equal(moves.to_host(target), saved)
    assert np.array_equal(moves.to_host(others), kept)


class Late:
    """An event: the copies before it are made when it is waited for."""

    def __init__(self, copies: list[Callable[[], object]]) -> None:
        self._copies, self._count = copies, len(copies)
        copies.append(lambda: None)

    def synchronize(self) -> None:
        for i in range(self._count):
            self._copies[i]()
            self._copies[i] = lambda: None


def test_blocks_are_read_after_their_copies_have_ended(pool: KvPool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Transfer(pool).to_host(range(11))
    copies: list[Callable[[], object]] = []

    def receive(ring: Ring, values: torch.Tensor) -> torch.Tensor:
        taken, host = values.clone(), plain(ring, torch.zeros_like(values))
        copies.append(lambda: host.copy_(taken))
        return host

    plain = Ring.receive
    monkeypatch.setattr(Ring, "receive", receive)
    monkeypatch.setattr(transfer, "copied", lambda _: Late(copies))
    assert np.array_equal(Transfer(pool).to_host(range(11)), expected)

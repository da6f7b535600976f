"""Transfers KV blocks to the host and back through a device buffer of fixed size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.block_copy import gather_blocks, scatter_blocks
from octavo_inference.backends.cuda.pool import KvPool

Bytes = NDArray[np.uint8]

_BUFFER_BYTES = 32 * 2**20


class Transfer:
    """Moves whole blocks of a pool, all layers, as rows of bytes: data, then scales where the pool has them."""

    def __init__(self, pool: KvPool) -> None:
        self._pools = [tensor for tensor in (pool.data, pool.scales) if tensor is not None]
        self._count = pieces(sum(_block_bytes(tensor) for tensor in self._pools))
        self._buffers = [
            torch.empty((self._count, len(tensor), *tensor.shape[2:]), dtype=tensor.dtype, device=tensor.device)
            for tensor in self._pools
        ]

    def to_host(self, blocks: Sequence[int]) -> Bytes:
        """Copy blocks to the host as bytes, [block, bytes]."""
        saved = np.empty((len(blocks), sum(map(_block_bytes, self._pools))), np.uint8)
        for first in range(0, len(blocks), self._count):
            ids = self._ids(blocks[first : first + self._count])
            start = 0
            for pool, buffer in zip(self._pools, self._buffers, strict=True):
                gather_blocks(pool, ids, buffer[: len(ids)])
                rows = _rows(buffer[: len(ids)]).cpu().numpy()
                saved[first : first + len(ids), start : start + rows.shape[1]] = rows
                start += rows.shape[1]
        return saved

    def from_host(self, saved: NDArray[np.generic], blocks: Sequence[int]) -> None:
        """Write rows of bytes into as many blocks."""
        for first in range(0, len(blocks), self._count):
            ids = self._ids(blocks[first : first + self._count])
            start = 0
            for pool, buffer in zip(self._pools, self._buffers, strict=True):
                end = start + _block_bytes(pool)
                rows = np.ascontiguousarray(saved[first : first + len(ids), start:end])
                _rows(buffer[: len(ids)]).copy_(torch.from_numpy(rows))
                scatter_blocks(buffer[: len(ids)], ids, pool)
                start = end

    def _ids(self, blocks: Sequence[int]) -> Torch:
        return torch.tensor(list(blocks), dtype=torch.int32).to(self._pools[0].device)


def pieces(block_bytes: int) -> int:
    """Blocks that one transfer moves."""
    return max(1, _BUFFER_BYTES // block_bytes)


def _block_bytes(pool: Torch) -> int:
    return len(pool) * pool[0, 0].numel() * pool.element_size()


def _rows(blocks: Torch) -> Torch:
    return blocks.view(len(blocks), -1).view(torch.uint8)

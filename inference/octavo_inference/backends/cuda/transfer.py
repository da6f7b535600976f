"""Transfers KV blocks to the host and back, through buffers of fixed size on the device and in pinned memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.block_copy import gather_blocks, scatter_blocks
from octavo_inference.backends.cuda.pool import KvPool
from octavo_inference.backends.cuda.staging import Ring, Staging, copied

Bytes = NDArray[np.uint8]

_BUFFER_BYTES = 8 * 2**20
"""Of a piece: a fraction of a millisecond on the bus. Four of them are pinned in host memory."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Blocks on their way to the host: the number of the first, their bytes in each pool, and the end of the copies."""

    first: int
    parts: list[Torch]
    done: torch.cuda.Event | None

    def take(self, saved: Bytes) -> None:
        """Wait for the copies, and write the blocks to their places."""
        if self.done is not None:
            self.done.synchronize()
        start = 0
        for rows in self.parts:
            saved[self.first : self.first + len(rows), start : start + rows.shape[1]] = rows.numpy()
            start += rows.shape[1]


class Transfer:
    """Moves whole blocks of a pool, all layers, as rows of bytes: data, then scales where the pool has them.

    They pass through pinned memory in pieces: while one is on the bus, the host copies another.
    """

    def __init__(self, pool: KvPool) -> None:
        self._pools = pool.tensors
        self._device = pool.data.device
        self._count = pieces(sum(_block_bytes(tensor) for tensor in self._pools))
        self._buffers = [
            torch.empty((self._count, len(tensor), *tensor.shape[2:]), dtype=tensor.dtype, device=tensor.device)
            for tensor in self._pools
        ]
        self._arriving = [Ring(2, buffer.nbytes, self._device) for buffer in self._buffers]
        self._leaving = [Staging(buffer.nbytes, self._device) for buffer in self._buffers]

    def to_host(self, blocks: Sequence[int]) -> Bytes:
        """Copy blocks to the host as bytes, [block, bytes]. Waits for the steps in flight."""
        saved = np.empty((len(blocks), sum(map(_block_bytes, self._pools))), np.uint8)
        before: _Piece | None = None
        for first in range(0, len(blocks), self._count):
            ids = self._ids(blocks[first : first + self._count])
            parts = []
            for pool, buffer, ring in zip(self._pools, self._buffers, self._arriving, strict=True):
                gather_blocks(pool, ids, buffer[: len(ids)])
                parts.append(ring.receive(_rows(buffer[: len(ids)])))
            piece = _Piece(first, parts, copied(self._device))
            if before is not None:
                before.take(saved)
            before = piece
        if before is not None:
            before.take(saved)
        return saved

    def from_host(self, saved: NDArray[np.generic], blocks: Sequence[int]) -> None:
        """Write rows of bytes into as many blocks, before later launches. `saved` may change when this returns."""
        for first in range(0, len(blocks), self._count):
            ids = self._ids(blocks[first : first + self._count])
            start = 0
            for pool, buffer, staging in zip(self._pools, self._buffers, self._leaving, strict=True):
                end = start + _block_bytes(pool)
                staging.send(saved[first : first + len(ids), start:end], _rows(buffer[: len(ids)]))
                scatter_blocks(buffer[: len(ids)], ids, pool)
                start = end

    def _ids(self, blocks: Sequence[int]) -> Torch:
        # From pinned memory: a copy from pageable memory waits for the steps in flight.
        host = torch.tensor(list(blocks), dtype=torch.int32, pin_memory=self._device.type == "cuda")
        return host.to(self._device, non_blocking=True)


def pieces(block_bytes: int) -> int:
    """Blocks that one transfer moves."""
    return max(1, _BUFFER_BYTES // max(1, block_bytes))


def _block_bytes(pool: Torch) -> int:
    return len(pool) * pool[0, 0].numel() * pool.element_size()


def _rows(blocks: Torch) -> Torch:
    return blocks.view(len(blocks), -1).view(torch.uint8)

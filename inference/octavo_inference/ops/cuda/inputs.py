"""What a step is told, in one copy to the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor as Torch

from octavo_inference.ops.cuda.buffers import aligned
from octavo_inference.run.batch import Batch


@dataclass(frozen=True, slots=True)
class Inputs:
    """Views of one device buffer in int32.

    `tokens` [T], `query_start` [B + 1], `seq_len` [B], `rows` [R] (sample rows), `table` [B, W] (block table).

    Positions and slots follow from these and are computed on the device.
    """

    tokens: Torch
    query_start: Torch
    seq_len: Torch
    rows: Torch
    table: Torch


class Stage:
    """Host memory that inputs are put together in, pinned where the device can copy from it by itself."""

    def __init__(self, on_device: Torch) -> None:
        self._device = on_device
        self._host = torch.empty(on_device.shape, dtype=torch.int32, pin_memory=on_device.is_cuda)
        self._array = self._host.numpy()

    def load(self, batch: Batch) -> Inputs:
        """Send a batch. The one before must have been computed: its inputs are overwritten."""
        arrays = (batch.tokens, batch.query_start, batch.seq_len, batch.sample.row, batch.block_table)
        views, start = [], 0
        for array in arrays:
            end = start + array.size
            self._array[start:end] = np.ravel(array)
            views.append(self._device[start:end].view(array.shape))
            start += aligned(array.size)
        self._device[:start].copy_(self._host[:start], non_blocking=True)
        return Inputs(*views)

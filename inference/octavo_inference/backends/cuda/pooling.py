"""Embeddings on the device: sums of hidden states by row, and their way to the host."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.pool import add_states
from octavo_inference.backends.cuda.staging import Staging
from octavo_inference.core.model_input import RowPooling

ITEM = 4
"""Integers of an entry, as `add_states` reads them."""


class Pooler:
    """Adds hidden states to `sums` [rows, hidden], float32. `items` is int32, with room for an entry of each row."""

    def __init__(self, items: Torch, sums: Torch) -> None:
        self._items = items
        self._sums = sums
        self._staging = Staging(items.nbytes, items.device)

    def pool(self, states: Torch, pooling: RowPooling) -> Torch:
        """Add the states [T, hidden] of a step, and start copying the completed sums to the host: [D, hidden]."""
        columns = (pooling.row, pooling.first, pooling.end, pooling.fresh)
        packed = np.stack(columns, axis=1).reshape(-1)
        items = self._items[: len(packed)]
        self._staging.send(packed, items)
        add_states(states, items.view(-1, ITEM), self._sums)
        rows = pooling.row[pooling.done > 0].tolist()
        host = torch.empty(
            (len(rows), self._sums.shape[1]), dtype=self._sums.dtype, pin_memory=self._sums.device.type == "cuda"
        )
        for place, row in zip(host, rows, strict=True):
            place.copy_(self._sums[row], non_blocking=True)
        return host

"""Copies of whole rows of the tensors that hold a pool: [rows, elements] each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as Torch


def copy_rows(tensors: list[Torch], pairs: Sequence[tuple[int, int]]) -> None:
    """Copy rows (source, destination), one pair after another."""
    for source, target in pairs:
        for tensor in tensors:
            tensor[target] = tensor[source]


def read_rows(tensors: list[Torch], rows: Sequence[int]) -> NDArray[np.generic]:
    """A copy of some rows of all tensors: [rows, elements]."""
    parts = [torch.empty(len(rows), 0), *(tensor[list(rows)] for tensor in tensors)]
    saved: NDArray[np.float32] = torch.cat(parts, dim=1).numpy()
    return saved


def write_rows(tensors: list[Torch], saved: NDArray[np.generic], rows: Sequence[int]) -> None:
    """Write what `read_rows` returned to as many rows."""
    start = 0
    for tensor in tensors:
        end = start + tensor.shape[1]
        tensor[list(rows)] = torch.from_numpy(saved[:, start:end].copy())
        start = end

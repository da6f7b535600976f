"""Row-wise ops on tiles of one fixed shape, so that a row's bits do not depend on the other rows.

A matrix product's bits depend on its shape and on the row's place in it: libraries block large and small products
differently. The token at position p is always row p % TILE of its tile; the other rows belong to other sequences or are
zero.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor as Torch

from octavo_inference.core.model_input import Int32
from octavo_inference.models.weights import Matrix, Tensor, dequantize

TILE = 8


def place_tokens(positions: Int32) -> tuple[int, Torch]:
    """Number of tiles, and each token's row in them: row p % TILE of the first tile where that row is free."""
    used = np.zeros(TILE, np.int64)
    places = np.empty(len(positions), np.int64)
    for i, residue in enumerate((positions % TILE).tolist()):
        places[i] = used[residue] * TILE + residue
        used[residue] += 1
    return int(used.max()), torch.from_numpy(places)


def tiled(function: Callable[[Torch], Torch], x: Torch) -> Torch:
    """Apply a row-wise function tile by tile. Each tile is copied to memory of its own, for equal alignment."""
    return torch.cat([function(tile.clone()) for tile in x.chunk(len(x) // TILE)]) if len(x) else function(x)


def index(values: Int32) -> Torch:
    """Indices for torch."""
    return torch.from_numpy(values.astype(np.int64))


def float32(tensor: Matrix) -> Torch:
    """The tensor in float32; a copy, because the loader's arrays are read-only views of a file."""
    return torch.from_numpy(dequantize(tensor).copy())


def optional(tensor: Matrix | None) -> Torch | None:
    """`float32` of a tensor that the model may not have."""
    return None if tensor is None else float32(tensor)


def stacked(*tensors: Tensor | Matrix | None) -> Torch | None:
    """The rows of those tensors that the model has, None without any."""
    given = [float32(tensor) for tensor in tensors if tensor is not None]
    return torch.cat(given) if given else None

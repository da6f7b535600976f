"""A GGUF file's tensors as zero-copy views of the mapped file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.gguf_header import Header, TensorEntry, Value, damaged, read_header
from octavo_inference.common.errors import ModelError

# ggml type -> name, elements per block, bytes per block
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the file: `shape` outermost first (as numpy), `data` uint8 [rows, bytes per row], read-only."""

    name: str
    type_id: int
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    @property
    def type_name(self) -> str:
        """Ggml's name of the element format, as in `Q4_1`."""
        return TYPES[self.type_id][0]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A parsed file. `header` is everything before the tensor data; `buffer` the whole file."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, GgufTensor]
    header: NDArray[np.uint8]
    buffer: NDArray[np.uint8]


def read_gguf(path: Path) -> GgufFile:
    """Map a GGUF file (version 2 or 3, little endian). Raises `ModelError` for other or damaged files."""
    header = read_header(path)
    buffer = np.frombuffer(header.mapped, np.uint8)
    tensors: dict[str, GgufTensor] = {}
    for entry in header.entries:
        if entry.name in tensors:
            raise damaged(path, f"tensor {entry.name} occurs twice")
        tensors[entry.name] = _view(header, buffer, entry)
    placed = sorted(
        (entry.offset, entry.offset + tensors[entry.name].data.nbytes, entry.name) for entry in header.entries
    )
    for (_, end, first), (start, _, second) in pairwise(placed):
        if start < end:
            raise damaged(path, f"tensors {first} and {second} overlap")
    return GgufFile(path, header.metadata, tensors, buffer[: header.size], buffer)


def _view(header: Header, buffer: NDArray[np.uint8], entry: TensorEntry) -> GgufTensor:
    name, shape, path = entry.name, entry.shape, header.path
    if entry.type_id not in TYPES:
        known = ", ".join(known[0] for known in TYPES.values())
        raise ModelError(f"{path}: tensor {name} has the ggml type {entry.type_id}, supported are {known}")
    _, per_block, block_bytes = TYPES[entry.type_id]
    columns = shape[-1]
    rows = math.prod(shape[:-1])
    if rows <= 0 or columns <= 0 or columns % per_block:
        raise damaged(path, f"tensor {name} of shape {shape} does not fit blocks of {per_block}")
    row_bytes = columns // per_block * block_bytes
    start = header.data_start + entry.offset
    if entry.offset > len(buffer) or start + rows * row_bytes > len(buffer):
        raise damaged(path, f"tensor {name} of {rows * row_bytes} bytes at {start} reaches past the end")
    return GgufTensor(name, entry.type_id, shape, buffer[start : start + rows * row_bytes].reshape(rows, row_bytes))

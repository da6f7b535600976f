"""A GGUF file's tensors as zero-copy views of the mapped file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.gguf_header import Header, TensorEntry, Value, damaged, read_header
from octavo_inference.checkpoints.gguf_parts import read_other_parts
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
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}
# Removed from the format, or never in files.
_OTHERS = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the file `path`: `shape` outermost first (as numpy), `data` uint8 [rows, bytes per row]."""

    path: Path
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
    """A parsed model: `path` and `metadata` of its first file, tensors of all.

    `headers` are everything before the tensor data of each file, `buffers` the whole files.
    """

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, GgufTensor]
    headers: tuple[NDArray[np.uint8], ...]
    buffers: tuple[NDArray[np.uint8], ...]


def read_gguf(path: Path) -> GgufFile:
    """Map a GGUF file (version 2 or 3, little endian), or all files of a set by the first of them.

    Raises `ModelError` for other, damaged or missing files.
    """
    first = read_header(path)
    headers = [first, *read_other_parts(first)]
    buffers = [np.frombuffer(header.mapped, np.uint8) for header in headers]
    tensors: dict[str, GgufTensor] = {}
    for header, buffer in zip(headers, buffers, strict=True):
        for entry in header.entries:
            if entry.name in tensors:
                raise damaged(header.path, f"tensor {entry.name} occurs twice")
            tensors[entry.name] = _view(header, buffer, entry)
        _refuse_overlaps(header, tensors)
    before = tuple(buffer[: header.size] for header, buffer in zip(headers, buffers, strict=True))
    return GgufFile(path, first.metadata, tensors, before, tuple(buffers))


def _refuse_overlaps(header: Header, tensors: dict[str, GgufTensor]) -> None:
    placed = sorted(
        (entry.offset, entry.offset + tensors[entry.name].data.nbytes, entry.name) for entry in header.entries
    )
    for (_, end, first), (start, _, second) in pairwise(placed):
        if start < end:
            raise damaged(header.path, f"tensors {first} and {second} overlap")


def _view(header: Header, buffer: NDArray[np.uint8], entry: TensorEntry) -> GgufTensor:
    name, shape, path = entry.name, entry.shape, header.path
    if entry.type_id not in TYPES:
        other = f" ({_OTHERS[entry.type_id]})" if entry.type_id in _OTHERS else ""
        known = ", ".join(known[0] for known in TYPES.values())
        raise ModelError(f"{path}: tensor {name} has the ggml type {entry.type_id}{other}, supported are {known}")
    _, per_block, block_bytes = TYPES[entry.type_id]
    columns = shape[-1]
    rows = math.prod(shape[:-1])
    if rows <= 0 or columns <= 0 or columns % per_block:
        raise damaged(path, f"tensor {name} of shape {shape} does not fit blocks of {per_block}")
    row_bytes = columns // per_block * block_bytes
    start = header.data_start + entry.offset
    if entry.offset > len(buffer) or start + rows * row_bytes > len(buffer):
        raise damaged(path, f"tensor {name} of {rows * row_bytes} bytes at {start} reaches past the end")
    return GgufTensor(
        path, name, entry.type_id, shape, buffer[start : start + rows * row_bytes].reshape(rows, row_bytes)
    )

"""GGUF container: metadata and tensors as zero-copy views of the mapped file.

Parsed here instead of with the `gguf` package's reader: that one takes seconds for the vocabulary (a numpy view per
string) and trusts every count in the file. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from octavo_inference.errors import ModelError

Value: TypeAlias = "int | float | bool | str | list[str] | NDArray[np.generic]"

_SCALARS: dict[int, tuple[str, str]] = {
    # GGUF type -> struct code, numpy dtype
    0: ("B", "u1"),
    1: ("b", "i1"),
    2: ("<H", "<u2"),
    3: ("<h", "<i2"),
    4: ("<I", "<u4"),
    5: ("<i", "<i4"),
    6: ("<f", "<f4"),
    7: ("?", "?"),
    10: ("<Q", "<u8"),
    11: ("<q", "<i8"),
    12: ("<d", "<f8"),
}
_STRING = 8
_ARRAY = 9
_MAX_DIMENSIONS = 4
_MAX_NAME = 64 * 1024

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


class _Cursor:
    """Bounds-checked reading: no count in the file can make us read past its end or loop longer than its size."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.offset = 0

    def fail(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: damaged GGUF file: {what} (at byte {self.offset} of {len(self.data)})")

    def need(self, count: int, what: str) -> None:
        if count < 0 or count > len(self.data) - self.offset:
            raise self.fail(f"{what} needs {count} bytes, {len(self.data) - self.offset} are left")

    def scalar(self, code: str, what: str) -> int | float | bool:
        size = struct.calcsize(code)
        self.need(size, what)
        value: int | float | bool = struct.unpack_from(code, self.data, self.offset)[0]
        self.offset += size
        return value

    def count(self, what: str, item_bytes: int) -> int:
        """A u64 count of items that take at least `item_bytes` each: more than the file can hold is refused."""
        value = int(self.scalar("<Q", what))
        if value * item_bytes > len(self.data) - self.offset:
            raise self.fail(f"{what} is {value}, more than the file can hold")
        return value

    def string(self, what: str) -> str:
        length = self.count(f"length of {what}", 1)
        raw = self.data[self.offset : self.offset + length]
        self.offset += length
        # Byte-level vocabularies are valid UTF-8; damaged ones must not stop the load of the rest.
        return raw.decode("utf-8", errors="replace")

    def strings(self, what: str) -> list[str]:
        """An array of strings. A vocabulary has 100,000: `string` for each of them takes most of the load time."""
        values, data, end = [], self.data, len(self.data)
        count = self.count(f"array length of {what}", 8)
        offset = self.offset
        for _ in range(count):
            start = offset + 8
            # Short reads at the end give a small number and are found by the next line.
            offset = start + int.from_bytes(data[offset:start], "little")
            if offset > end:
                self.offset = start
                raise self.fail(f"{what} reaches past the end")
            values.append(data[start:offset].decode("utf-8", errors="replace"))
        self.offset = offset
        return values

    def value(self, type_id: int, what: str) -> Value:
        if type_id == _STRING:
            return self.string(what)
        if type_id != _ARRAY:
            if type_id not in _SCALARS:
                raise self.fail(f"{what} has the unknown value type {type_id}")
            return self.scalar(_SCALARS[type_id][0], what)
        item = int(self.scalar("<I", f"array type of {what}"))
        if item == _STRING:
            return self.strings(what)
        if item not in _SCALARS:
            raise self.fail(f"{what} is an array of the unsupported type {item}")
        dtype = np.dtype(_SCALARS[item][1])
        count = self.count(f"array length of {what}", dtype.itemsize)
        array = np.frombuffer(self.data, dtype, count, self.offset)
        self.offset += count * dtype.itemsize
        return array


def read_gguf(path: Path) -> GgufFile:
    """Map a GGUF file (version 2 or 3, little endian). Raises `ModelError` for anything else or damaged."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from error
    cursor = _Cursor(mapped, path)
    if len(mapped) < 24 or mapped[:4] != b"GGUF":
        raise ModelError(f"{path}: not a GGUF file: it starts with {bytes(mapped[:4])!r}, expected b'GGUF'")
    cursor.offset = 4
    version = int(cursor.scalar("<I", "version"))
    if version not in (2, 3):
        raise ModelError(f"{path}: GGUF version {version} is not supported (2 and 3 are, little endian)")
    # A tensor entry takes at least 24 bytes, a metadata entry at least 13.
    tensor_count = cursor.count("tensor count", 24)
    metadata_count = cursor.count("metadata count", 13)
    metadata: dict[str, Value] = {}
    for _ in range(metadata_count):
        key = cursor.string("a metadata key")
        if len(key) > _MAX_NAME:
            raise cursor.fail(f"a metadata key of {len(key)} characters")
        metadata[key] = cursor.value(int(cursor.scalar("<I", f"type of {key}")), key)
    entries = [_read_entry(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise cursor.fail(f"general.alignment is {alignment!r}, expected a power of two")
    base = -(-cursor.offset // alignment) * alignment
    buffer = np.frombuffer(mapped, np.uint8)
    tensors: dict[str, GgufTensor] = {}
    for name, type_id, shape, offset in entries:
        if name in tensors:
            raise cursor.fail(f"tensor {name} is there twice")
        tensors[name] = _view(cursor, buffer, base, name, type_id, shape, offset)
    return GgufFile(path, metadata, tensors, buffer[: cursor.offset], buffer)


def _read_entry(cursor: _Cursor) -> tuple[str, int, tuple[int, ...], int]:
    name = cursor.string("a tensor name")
    dimensions = int(cursor.scalar("<I", f"dimensions of {name}"))
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise cursor.fail(f"tensor {name} has {dimensions} dimensions, expected 1 to {_MAX_DIMENSIONS}")
    sizes = [int(cursor.scalar("<Q", f"size of {name}")) for _ in range(dimensions)]
    type_id = int(cursor.scalar("<I", f"type of {name}"))
    offset = int(cursor.scalar("<Q", f"offset of {name}"))
    return name, type_id, tuple(reversed(sizes)), offset


def _view(
    cursor: _Cursor,
    buffer: NDArray[np.uint8],
    base: int,
    name: str,
    type_id: int,
    shape: tuple[int, ...],
    offset: int,
) -> GgufTensor:
    if type_id not in TYPES:
        known = ", ".join(entry[0] for entry in TYPES.values())
        raise ModelError(f"{cursor.path}: tensor {name} has the ggml type {type_id}, supported are {known}")
    _, per_block, block_bytes = TYPES[type_id]
    columns = shape[-1]
    rows = math.prod(shape[:-1])
    if rows <= 0 or columns <= 0 or columns % per_block:
        raise cursor.fail(f"tensor {name} of shape {shape} does not fit blocks of {per_block}")
    row_bytes = columns // per_block * block_bytes
    if offset > len(buffer) or base + offset + rows * row_bytes > len(buffer):
        raise cursor.fail(f"tensor {name} of {rows * row_bytes} bytes at {base + offset} reaches past the end")
    data = buffer[base + offset : base + offset + rows * row_bytes].reshape(rows, row_bytes)
    return GgufTensor(name, type_id, shape, data)

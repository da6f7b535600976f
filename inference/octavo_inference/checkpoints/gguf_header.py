"""The header of a GGUF file: metadata and the list of tensors. No numpy, because the API process reads only this.

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

from octavo_inference.common.errors import ModelError

Value: TypeAlias = "int | float | bool | str | Strings | memoryview"

# GGUF type -> struct code; without the byte order it is also a memoryview format
_SCALARS = {
    0: "B",
    1: "b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING = 8
_ARRAY = 9
_MAX_DIMENSIONS = 4
_MAX_NAME = 64 * 1024


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor's entry: `shape` outermost first (as in numpy), `offset` in bytes from the start of the data."""

    name: str
    type_id: int
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """The parsed header. Tensor data starts at `data_start`; `size` of the header; both in bytes."""

    path: Path
    mapped: mmap.mmap
    metadata: dict[str, Value]
    entries: list[TensorEntry]
    size: int
    data_start: int


class Strings:
    """An array of strings inside `data`, decoded on first access: vocabularies have 100,000 entries and more."""

    __slots__ = ("_count", "_data", "_start", "_values")

    def __init__(self, data: mmap.mmap, start: int, count: int) -> None:
        self._data = data
        self._start = start
        self._count = count
        self._values: list[str] | None = None

    def read(self) -> list[str]:
        """All of them."""
        if self._values is None:
            values, data, offset = [], self._data, self._start
            for _ in range(self._count):
                start = offset + 8
                offset = start + int.from_bytes(data[offset:start], "little")
                values.append(data[start:offset].decode("utf-8", errors="replace"))
            self._values = values
        return self._values


def damaged(path: Path, what: str) -> ModelError:
    """The error for an inconsistent file."""
    return ModelError(f"{path}: damaged GGUF file: {what}")


class _Cursor:
    """Bounds-checked reader: no count in the file can cause a read past its end or a loop longer than its size."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.offset = 0

    def fail(self, what: str) -> ModelError:
        return damaged(self.path, f"{what} (at byte {self.offset} of {len(self.data)})")

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
        """A u64 count of items of at least `item_bytes` each; more than fit into the file are refused."""
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

    def strings(self, what: str) -> Strings:
        """An array of strings: checked, not yet decoded."""
        data, end = self.data, len(self.data)
        count = self.count(f"array length of {what}", 8)
        first = offset = self.offset
        for _ in range(count):
            start = offset + 8
            # Short reads at the end give a small number and are found by the next line.
            offset = start + int.from_bytes(data[offset:start], "little")
            if offset > end:
                self.offset = start
                raise self.fail(f"{what} reaches past the end")
        self.offset = offset
        return Strings(data, first, count)

    def value(self, type_id: int, what: str) -> Value:
        if type_id == _STRING:
            return self.string(what)
        if type_id != _ARRAY:
            if type_id not in _SCALARS:
                raise self.fail(f"{what} has the unknown value type {type_id}")
            value = self.scalar(_SCALARS[type_id], what)
            if not math.isfinite(value):
                raise self.fail(f"{what} is {value}")
            return value
        item = int(self.scalar("<I", f"array type of {what}"))
        if item == _STRING:
            return self.strings(what)
        if item not in _SCALARS:
            raise self.fail(f"{what} is an array of the unsupported type {item}")
        code = _SCALARS[item].strip("<")
        size = struct.calcsize(_SCALARS[item])
        count = self.count(f"array length of {what}", size)
        start = self.offset
        self.offset += count * size
        values: Value = memoryview(self.data)[start : self.offset].cast(code)  # type: ignore[call-overload]
        return values


def read_header(path: Path) -> Header:
    """Parse the header of a GGUF file (version 2 or 3, little endian). Raises `ModelError` for others."""
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
        if key in metadata:
            raise cursor.fail(f"{key} occurs twice")
        metadata[key] = cursor.value(int(cursor.scalar("<I", f"type of {key}")), key)
    entries = [_read_entry(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise cursor.fail(f"general.alignment is {alignment!r}, expected a power of two")
    for entry in entries:
        if entry.offset % alignment:
            raise damaged(path, f"tensor {entry.name} is at {entry.offset}, expected a multiple of {alignment}")
    return Header(path, mapped, metadata, entries, cursor.offset, -(-cursor.offset // alignment) * alignment)


def _read_entry(cursor: _Cursor) -> TensorEntry:
    name = cursor.string("a tensor name")
    dimensions = int(cursor.scalar("<I", f"dimensions of {name}"))
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise cursor.fail(f"tensor {name} has {dimensions} dimensions, expected 1 to {_MAX_DIMENSIONS}")
    sizes = [int(cursor.scalar("<Q", f"size of {name}")) for _ in range(dimensions)]
    type_id = int(cursor.scalar("<I", f"type of {name}"))
    offset = int(cursor.scalar("<Q", f"offset of {name}"))
    return TensorEntry(name, type_id, tuple(reversed(sizes)), offset)

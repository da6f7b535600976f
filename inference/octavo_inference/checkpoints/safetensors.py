"""Safetensors checkpoints, one file or sharded: tensors as zero-copy views of the mapped files, or their places.

Parsed here because the numpy interface of the `safetensors` package has no bfloat16; the header is JSON and small.
Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
import mmap
import os
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.jsonfile import decode_json, read_json
from octavo_inference.checkpoints.resolve import INDEX_NAME
from octavo_inference.common.errors import ModelError

_MAX_HEADER = 100_000_000
_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.safetensors")
# Types of whole bytes. Quantized checkpoints store smaller ones in bytes or words.
_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
_INTEGERS = {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}
_SIZES = _FLOATS | _INTEGERS


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


@dataclass(frozen=True, slots=True)
class RawTensor:
    """`data` is the tensor's bytes, uint8, read-only; `dtype` is safetensors' name, as in `BF16`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor in a file: its bytes are `begin` to `end` of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All tensors of a checkpoint by name; `headers` and `buffers` of its files in order of their names."""

    tensors: dict[str, RawTensor]
    headers: list[NDArray[np.uint8]]
    buffers: list[NDArray[np.uint8]]


def read_checkpoint(folder: Path) -> Checkpoint:
    """Map the safetensors files of a folder. Raises `ModelError` for missing, damaged or contradictory files."""
    index_path = folder / INDEX_NAME
    if index_path.exists():
        index = read_json(index_path, _Index, "a safetensors index")
        names = sorted(set(index.weight_map.values()))
        for name in names:
            if "/" in name or "\\" in name or not name.endswith(".safetensors"):
                raise ModelError(f"{index_path}: names the file {name!r}, expected a *.safetensors beside it")
            if not (folder / name).is_file():
                raise ModelError(f"{index_path}: names {name}, which is not in {folder}")
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
        _refuse_missing_shards(folder, names)
        index = _Index({})
    checkpoint = Checkpoint({}, [], [])
    places: dict[str, str] = {}
    for name in names:
        tensors, header, buffer = _read_file(folder / name)
        places |= {tensor.name: name for tensor in tensors}
        for tensor in tensors:
            if tensor.name in checkpoint.tensors:
                raise ModelError(f"{folder / name}: tensor {tensor.name} is also in another file of the folder")
            checkpoint.tensors[tensor.name] = tensor
        checkpoint.headers.append(header)
        checkpoint.buffers.append(buffer)
    for tensor_name, name in index.weight_map.items():
        if places.get(tensor_name) != name:
            raise ModelError(f"{index_path}: says that {tensor_name} is in {name}, which does not have it")
    return checkpoint


def _refuse_missing_shards(folder: Path, names: list[str]) -> None:
    """Without an index, the names of shards still tell how many there must be."""
    shards = [match for match in map(_SHARD.fullmatch, names) if match]
    for match in shards:
        found = sum(other["stem"] == match["stem"] for other in shards)
        if found != int(match["count"]):
            raise ModelError(f"{folder}: {match[0]} is one of {int(match['count'])} shards, found {found}")


def _read_file(path: Path) -> tuple[list[RawTensor], NDArray[np.uint8], NDArray[np.uint8]]:
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from error
    length = _header_length(path, mapped[:8], len(mapped))
    placed = _placed(path, mapped[8 : 8 + length], len(mapped))
    buffer = np.frombuffer(mapped, np.uint8)
    tensors = [RawTensor(each.name, each.dtype, each.shape, buffer[each.begin : each.end]) for each in placed]
    return tensors, buffer[: 8 + length], buffer


def read_placed(path: Path, file: BinaryIO) -> list[PlacedTensor]:
    """The tensors of an open file at `path`, by its header alone. Raises `ModelError` for a damaged one."""
    size = os.fstat(file.fileno()).st_size
    length = _header_length(path, file.read(8), size)
    return _placed(path, file.read(length), size)


def _header_length(path: Path, first: bytes, size: int) -> int:
    length = int.from_bytes(first, "little")
    if size < 10 or length > min(_MAX_HEADER, size - 8):
        raise ModelError(f"{path}: not a safetensors file: header of {length} bytes in a file of {size}")
    return length


def _placed(path: Path, data: bytes, size: int) -> list[PlacedTensor]:
    """The tensors in the JSON of a header, for a file of `size` bytes."""
    what = "a safetensors file, its header is damaged"
    header = decode_json(data, dict[str, msgspec.Raw], path, what)
    header.pop("__metadata__", None)
    if data.count(b'"data_offsets"') > len(header):
        raise ModelError(f"{path}: not {what}: a tensor occurs twice")
    entries = {name: decode_json(raw, _Entry, path, what) for name, raw in header.items()}
    first = 8 + len(data)
    tensors = []
    for name, entry in entries.items():
        if entry.dtype not in _SIZES:
            raise ModelError(f"{path}: tensor {name} has dtype {entry.dtype}, supported are {', '.join(_SIZES)}")
        begin, end = entry.data_offsets
        expected = math.prod(entry.shape) * _SIZES[entry.dtype]
        if min(entry.shape, default=1) < 0 or not 0 <= begin <= end <= size - first or end - begin != expected:
            raise ModelError(
                f"{path}: tensor {name} of shape {entry.shape} {entry.dtype} needs {expected} bytes, its offsets are "
                f"{begin}..{end} of {size - first}"
            )
        # The first BERTs have TensorFlow's names.
        usual = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        tensors.append(PlacedTensor(usual, entry.dtype, tuple(entry.shape), first + begin, first + end))
    placed = sorted((entry.data_offsets, name) for name, entry in entries.items())
    for ((_, end), one), ((begin, _), other) in pairwise(placed):
        if begin < end:
            raise ModelError(f"{path}: tensors {one} and {other} overlap")
    return tensors

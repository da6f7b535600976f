"""bitsandbytes checkpoints (`quant_method` bitsandbytes): NF4 and FP4 with blocks, INT8 with a scale for each row.

4 bits: blocks run over the rows one after another, and may go on in the next row.

    weight                     uint8    [rows * columns / 2, 1]   two values in a byte, the first in the high bits
    weight.absmax              float32  [blocks], or uint8: nested_quant_map[.] * nested_absmax[.] + nested_offset
    weight.quant_map           float32  [16]
    weight.nested_absmax       float32  [nested blocks]
    weight.nested_quant_map    float32  [256]
    weight.quant_state.bitsandbytes__nf4, or __fp4: JSON with block sizes and the offset

    weight = quant_map[value] * absmax

8 bits: weight int8 [rows, columns], SCB float32 [rows], weight = value * SCB / 127.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo_inference.checkpoints.jsonfile import decode_json
from octavo_inference.checkpoints.quantized.settings import setting, strings
from octavo_inference.checkpoints.quantized.source import FLOATS, QuantizedReader, Source
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.groups import Bytes, Floats, GroupedMatrix, Grouping, Groups, common_group

_TYPES = ("nf4", "fp4")
_BLOCKS = (64, 32, 128, 256, 512, 1024, 2048, 4096)
_NESTED_BLOCK = 256
_STATE = ".weight.quant_state.bitsandbytes__"
# The type of `weight` may be any (bnb_4bit_quant_storage): it is read as bytes.
_STORAGE = ("U8", "I8", "F16", "BF16", "F32", "F64")


@dataclass(frozen=True, slots=True)
class _State:
    """The JSON beside a 4-bit matrix."""

    block: int
    nested_block: int = _NESTED_BLOCK
    offset: float = 0.0


def reader(source: Source) -> QuantizedReader:
    """Reads modules of 4 and 8 bits. Raises `ModelError` and `UnsupportedModelError` for bad settings."""
    setting(source, "bnb_4bit_quant_type", source.settings.get("bnb_4bit_quant_type", "fp4"), _TYPES)
    strings(source, "llm_int8_skip_modules")  # the types of weights say the same

    def matrix(module: str, rows: int, columns: int) -> GroupedMatrix | None:
        raw = source.find(module + ".weight")
        if raw is None:
            return None
        if raw.dtype == "U8" or source.find(module + ".weight.absmax") is not None:
            return _four_bits(source, module, rows, columns)
        return _eight_bits(source, module, rows, columns) if raw.dtype == "I8" else None

    return matrix


def _eight_bits(source: Source, module: str, rows: int, columns: int) -> GroupedMatrix:
    values = source.array(module + ".weight", ("I8",), (rows, columns)).view(np.uint8)
    scales = source.numbers(module + ".SCB", FLOATS, (rows,))
    name = module + ".weight_format"
    if source.contents and source.find(name) is not None:
        found = int(source.array(name, ("U8", "I8", "I32", "I64"), (), (1,)).ravel()[0])
        if found != 0:
            raise UnsupportedModelError(f"{source.folder}: tensor {name} is {found}, supported is 0: by rows")

    def read(start: int, end: int) -> Groups:
        # Two's complement with its sign inverted counts from -128.
        scale = scales[start:end] / np.float32(127)
        return Groups(values[start:end] ^ np.uint8(128), scale[:, None])

    return GroupedMatrix("bitsandbytes int8", (rows, columns), Grouping("int8", columns), read, (values, scales.data))


def _four_bits(source: Source, module: str, rows: int, columns: int) -> GroupedMatrix:
    name = module + ".weight"
    raw = source.find(name)
    if raw is None or raw.dtype not in _STORAGE or raw.data.nbytes * 2 != rows * columns or columns % 2:
        size = 0 if raw is None else raw.data.nbytes
        raise ModelError(
            f"{source.folder}: tensor {name} has {size} bytes, expected {rows * columns // 2} "
            f"of 4 bits for {rows} rows of {columns} columns"
        )
    quant_type = next((kind for kind in _TYPES if source.find(module + _STATE + kind) is not None), None)
    if quant_type is None:
        raise ModelError(f"{source.folder}: tensor {module}{_STATE}nf4 (or fp4) is missing")
    packed = raw.data
    levels = tuple(source.scales(name + ".quant_map", (16,)).tolist())
    state = _state(source, module, quant_type, rows, columns)
    blocks = -(-rows * columns // state.block)
    absmax, stored = _absmax(source, name, blocks, state)
    group = common_group(columns, state.block)

    def read(start: int, end: int) -> Groups:
        part = packed[start * columns // 2 : end * columns // 2]
        values = np.empty((end - start, columns), np.uint8)
        values.reshape(-1)[0::2] = part >> np.uint8(4)
        values.reshape(-1)[1::2] = part & np.uint8(15)
        block_of = np.arange(start * columns, end * columns, group) // state.block
        scale = absmax(int(block_of[0]), int(block_of[-1]) + 1)[block_of - block_of[0]]
        return Groups(values, scale.reshape(end - start, -1))

    return GroupedMatrix(
        f"bitsandbytes {quant_type}", (rows, columns), Grouping("code4", group, levels=levels), read, (packed, *stored)
    )


def _absmax(
    source: Source, name: str, blocks: int, state: _State
) -> tuple[Callable[[int, int], Floats], tuple[Any, ...]]:
    """What gives the scales of some blocks, and the arrays it reads."""
    nested = source.find(name + ".nested_absmax")
    if nested is None:
        scales = source.numbers(name + ".absmax", FLOATS, (blocks,))
        return lambda first, last: scales[first:last], (scales.data,)
    codes: Bytes = source.array(name + ".absmax", ("U8",), (blocks,)).view(np.uint8)
    expected = (-(-blocks // state.nested_block),) if source.contents else nested.shape
    outer = source.scales(name + ".nested_absmax", expected)
    map_ = source.scales(name + ".nested_quant_map", (256,))

    def read(first: int, last: int) -> Floats:
        scale = map_[codes[first:last]] * outer[np.arange(first, last) // state.nested_block]
        return scale + np.float32(state.offset)

    return read, (codes,)


def _state(source: Source, module: str, quant_type: str, rows: int, columns: int) -> _State:
    """What the JSON says, or what only headers let one conclude."""
    name = module + _STATE + quant_type
    raw = source.find(name)
    if raw is None or raw.dtype != "U8":
        raise ModelError(f"{source.folder}: tensor {name} is not a JSON text in bytes (U8)")
    if not source.contents:
        absmax = source.find(module + ".weight.absmax")
        found = 0 if absmax is None else absmax.data.nbytes // (1 if absmax.dtype == "U8" else 4)
        return _State(next((size for size in _BLOCKS if -(-rows * columns // size) == found), _BLOCKS[0]))
    given = decode_json(raw.data.tobytes(), dict[str, Any], source.folder, f"JSON in tensor {name}")

    def field(key: str, valid: Callable[[Any], bool], expected: str, default: Any = None) -> Any:
        value = given.get(key, default)
        if isinstance(value, bool) or not valid(value):
            raise ModelError(f"{source.folder}: tensor {name} has {key} {value!r}, expected {expected}")
        return value

    field("quant_type", lambda value: value == quant_type, quant_type, quant_type)
    field("shape", lambda value: value == [rows, columns], str([rows, columns]), [rows, columns])
    block = field("blocksize", lambda value: value in _BLOCKS, f"one of {', '.join(map(str, sorted(_BLOCKS)))}")
    if source.find(module + ".weight.nested_absmax") is None:
        return _State(block)
    nested = field("nested_blocksize", lambda value: isinstance(value, int) and value > 0, "a size")
    offset = field("nested_offset", lambda value: isinstance(value, int | float) and abs(value) < 1e30, "a number")
    return _State(block, nested, offset)

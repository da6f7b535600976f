"""AWQ checkpoints (`quant_method` awq): 4 bits in one of AutoAWQ's layouts, by `version`.

gemm, packed along the rows, eight values in a word in the order 0 2 4 6 1 3 5 7:

    qweight  int32    [columns, rows / 8]
    qzeros   int32    [groups, rows / 8]
    scales   float16  [groups, rows]

gemv, packed along the columns in their order, with groups padded to whole words, to 2 or 4 words for small groups:

    qweight  int32    [rows, columns / 8]
    qzeros   int32    [rows, words]
    scales   float16  [rows, 8 words]

gemv_fast, four rows interleaved in pieces of 64 columns:

    qweight  int16    [rows / 4, columns]
    qzeros   float16  [8 words, rows]         -zero * scale
    scales   float16  [8 words, rows]

    weight = (value - zero) * scale

With `zero_point` false all zero points are 8, and `qzeros` may be missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.quantized.bits import unpack_bits, unpack_words
from octavo_inference.checkpoints.quantized.settings import flag, group_size, setting, strings
from octavo_inference.checkpoints.quantized.source import FLOATS, QuantizedReader, Source
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.groups import Bytes, Floats, GroupedMatrix, Grouping, Groups

_WORD = 8  # values
_MIDDLE = 8
_INTERLEAVED = 4  # rows of gemv_fast
_STRIDE = 64  # its columns
Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class _Part:
    """A module's tensors, of which each function reads some rows: [rows, columns] or [rows, groups].

    `zeros` is None without zero points in the file, `minimum` where they are not multiplied by the scales yet.
    """

    stored: tuple[Array, ...]
    values: Callable[[int, int], Bytes]
    scale: Callable[[int, int], Floats]
    zeros: Callable[[int, int], Bytes] | None = None
    minimum: Callable[[int, int], Floats] | None = None


def reader(source: Source) -> QuantizedReader:
    """Reads the modules that have a `qweight`. Raises `ModelError` and `UnsupportedModelError` for bad settings."""
    given = source.settings
    setting(source, "bits", given.get("bits", given.get("w_bit")), (4,))
    size = group_size(source, "group_size", given.get("group_size", given.get("q_group_size")))
    zero_point = flag(source, "zero_point", given.get("zero_point", not given.get("sym", False)))
    version = next((given[key] for key in ("version", "checkpoint_format", "format") if given.get(key)), "gemm")
    version = version.lower() if isinstance(version, str) else version
    layout = _LAYOUTS[setting(source, "version", version, tuple(_LAYOUTS))]
    if given.get("backend") == "llm-awq":
        raise UnsupportedModelError(
            f"{source.config}: quantization_config.backend 'llm-awq' is not supported; supported is 'autoawq'"
        )
    strings(source, "modules_to_not_convert")  # which modules have a qweight says the same

    def matrix(module: str, rows: int, columns: int) -> GroupedMatrix | None:
        if source.find(module + ".qweight") is None:
            return None
        width = size or columns
        if rows % _WORD or columns % _WORD or columns % width:
            raise ModelError(
                f"{source.folder}: {module} has {rows} rows and {columns} columns, expected multiples of 8 "
                f"and columns in groups of {width}"
            )
        part = layout(source, module, rows, columns, columns // width)
        if not zero_point:
            _require_middle(source, module, part, rows)
        elif part.zeros is None and part.minimum is None:
            raise ModelError(
                f"{source.folder}: tensor {module}.qzeros is missing, and quantization_config.zero_point is true"
            )

        def read(start: int, end: int) -> Groups:
            values, scale = part.values(start, end), part.scale(start, end)
            if part.minimum is not None:
                return Groups(values, scale, part.minimum(start, end))
            if not zero_point or part.zeros is None:
                return Groups(values, scale)
            return Groups(values, scale, part.zeros(start, end) * -scale)

        minimum = zero_point or part.minimum is not None
        return GroupedMatrix("awq", (rows, columns), Grouping("int4", width, minimum), read, part.stored)

    return matrix


def _require_middle(source: Source, module: str, part: _Part, rows: int) -> None:
    """Weights without zero points are read without them."""
    if part.zeros is None or not source.contents:
        return
    zeros = part.zeros(0, rows)
    wrong = zeros[zeros != _MIDDLE]
    if len(wrong):
        raise ModelError(
            f"{source.folder}: tensor {module}.qzeros has the zero point {wrong[0]}, expected {_MIDDLE} everywhere as "
            "quantization_config.zero_point is false"
        )


def _optional(source: Source, name: str, shape: tuple[int, ...]) -> Array | None:
    return None if source.find(name) is None else source.array(name, ("I32",), shape)


def _gemm(source: Source, module: str, rows: int, columns: int, groups: int) -> _Part:
    words = source.array(module + ".qweight", ("I32",), (columns, rows // _WORD))
    scales = source.numbers(module + ".scales", FLOATS, (groups, rows))
    packed = _optional(source, module + ".qzeros", (groups, rows // _WORD))

    def unpacked(array: Array, start: int, end: int) -> Bytes:
        first, last = start // _WORD, -(-end // _WORD)
        part = np.ascontiguousarray(array[:, first:last].T).view(np.uint8).reshape(last - first, len(array), 4)
        values = np.empty((last - first, _WORD, len(array)), np.uint8)
        for i, row in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            values[:, row] = part[:, :, i // 2] >> np.uint8(i % 2 * 4) & np.uint8(15)
        begin = start - first * _WORD
        return values.reshape(-1, len(array))[begin : begin + end - start]

    return _Part(
        tuple(array for array in (words, packed, scales.data) if array is not None),
        lambda start, end: unpacked(words, start, end),
        lambda start, end: scales[:, start:end].T,
        None if packed is None else lambda start, end: unpacked(packed, start, end),
    )


def _gemv(source: Source, module: str, rows: int, columns: int, groups: int) -> _Part:
    padded = _padded(columns // groups, groups)
    words = source.array(module + ".qweight", ("I32",), (rows, columns // _WORD))
    scales = source.numbers(module + ".scales", FLOATS, (rows, padded * _WORD))
    packed = _optional(source, module + ".qzeros", (rows, padded))
    return _Part(
        tuple(array for array in (words, packed, scales.data) if array is not None),
        lambda start, end: unpack_words(words[start:end], 4),
        lambda start, end: scales[start:end, :groups],
        None if packed is None else lambda start, end: unpack_words(packed[start:end], 4)[:, :groups],
    )


def _gemv_fast(source: Source, module: str, rows: int, columns: int, groups: int) -> _Part:
    if columns % _STRIDE:
        raise ModelError(f"{source.folder}: {module} has {columns} columns, expected a multiple of {_STRIDE}")
    padded = _padded(columns // groups, groups) * _WORD
    packed = source.array(module + ".qweight", ("I16",), (rows // _INTERLEAVED, columns))
    scales = source.numbers(module + ".scales", FLOATS, (padded, rows))
    minimums = source.numbers(module + ".qzeros", FLOATS, (padded, rows))
    # 32 columns are stored as four times 0 1, 8 9, 16 17, 24 25 (2 more each time), and of each eight the even first.
    pairs = np.arange(32).reshape(4, 4, 2).swapaxes(0, 1).reshape(4, 4, 2).swapaxes(1, 2).ravel()
    place = np.argsort(pairs)
    of_column = np.arange(columns).reshape(-1, 32)[:, place].ravel()

    def values(start: int, end: int) -> Bytes:
        first, last = start // _INTERLEAVED, -(-end // _INTERLEAVED)
        found = unpack_bits(np.ascontiguousarray(packed[first:last]).view(np.uint8), 4)
        found = found.reshape(last - first, -1, _INTERLEAVED, _STRIDE).swapaxes(1, 2).reshape(-1, columns)
        begin = start - first * _INTERLEAVED
        return found[begin : begin + end - start][:, of_column]

    return _Part(
        (packed, scales.data, minimums.data),
        values,
        lambda start, end: scales[:groups, start:end].T,
        minimum=lambda start, end: minimums[:groups, start:end].T,
    )


def _padded(width: int, groups: int) -> int:
    """Words for the zero points of a row: as many as needed, rounded up to 2 for groups of 64, to 4 for 32."""
    words, step = -(-groups // _WORD), max(1, 128 // width)
    return -(-words // step) * step


_LAYOUTS = {"gemm": _gemm, "gemv": _gemv, "gemv_fast": _gemv_fast}

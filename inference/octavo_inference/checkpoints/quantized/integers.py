"""Matrices of integers in words or in bytes, with scales and zero points of blocks, as compressed-tensors has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.quantized.bits import unpack_field_rows, unpack_fields
from octavo_inference.checkpoints.quantized.scale_grid import ScaleGrid, scale_grid
from octavo_inference.checkpoints.quantized.schemes import PACKED, LayerScheme
from octavo_inference.checkpoints.quantized.source import Source
from octavo_inference.common.errors import ModelError
from octavo_inference.models.groups import Bytes, Floats, GroupedMatrix, Grouping, Groups, Kind

_SIGNED_ZEROS = ("F32", "F16", "BF16", "F8_E4M3")
ZeroPoints = Callable[[int, int], Floats]
"""`zeros(start, end)`: [rows, groups]."""


def packed_integers(
    source: Source, format_: str, module: str, shape: tuple[int, int], scheme: LayerScheme
) -> GroupedMatrix:
    """Integers of up to 8 bits in words."""
    rows, columns = shape
    bits, name = scheme.bits, module + ".weight_packed"
    words = source.array(name, ("I32",), (rows, -(-columns // (32 // bits))))
    _check_shape(source, module + ".weight_shape", shape)
    grid = scale_grid(source, module + ".weight_scale", rows, columns, scheme.block or shape)
    order = _order(source, module, columns, scheme)
    kind: Kind = "int4" if bits <= 4 else "int8"
    grouping = Grouping(kind, grid.group, minimum=not scheme.symmetric)
    # Values of fewer bits than the kind's have the same distance to its zero.
    offset = np.uint8(grouping.zero - (1 << bits - 1)) if scheme.symmetric else np.uint8(0)
    zeros, zeros_stored = (None, ()) if scheme.symmetric else _zero_points(source, module, shape, scheme)

    def read(start: int, end: int) -> Groups:
        values = unpack_fields(words[start:end], bits, columns)
        if order is not None:
            values = values[:, order]
        if offset:
            values = values + offset
        return _groups(values, grid, zeros, start, end)

    return GroupedMatrix(format_, shape, grouping, read, (words, grid.numbers.data, *zeros_stored), order)


def signed_bytes(
    source: Source, format_: str, module: str, shape: tuple[int, int], scheme: LayerScheme
) -> GroupedMatrix:
    """Integers in bytes with a sign."""
    values = source.array(module + ".weight", ("I8",), shape).view(np.uint8)
    grid = scale_grid(source, module + ".weight_scale", *shape, scheme.block or shape)
    order = _order(source, module, shape[1], scheme)
    eight = replace(scheme, bits=8)
    zeros, zeros_stored = (None, ()) if scheme.symmetric else _zero_points(source, module, shape, eight)

    def read(start: int, end: int) -> Groups:
        part = values[start:end] ^ np.uint8(128)
        return _groups(part if order is None else part[:, order], grid, zeros, start, end)

    grouping = Grouping("int8", grid.group, minimum=not scheme.symmetric)
    return GroupedMatrix(format_, shape, grouping, read, (values, grid.numbers.data, *zeros_stored), order)


def _groups(values: Bytes, grid: ScaleGrid, zeros: ZeroPoints | None, start: int, end: int) -> Groups:
    scale = grid.rows(start, end)
    return Groups(values, scale, None if zeros is None else -zeros(start, end) * scale)


def _zero_points(
    source: Source, module: str, shape: tuple[int, int], scheme: LayerScheme
) -> tuple[ZeroPoints, tuple[NDArray[np.generic], ...]]:
    """The values whose weight is 0, of rows and groups, and their memory: packed along the rows, or with a sign."""
    rows, columns = shape
    name, half = module + ".weight_zero_point", np.float32(1 << scheme.bits - 1)
    raw = source.find(name)
    # Other strategies, and older releases, do not pack them.
    if scheme.strategy in {"group", "channel"} and scheme.format == PACKED and not (raw and raw.dtype == "I8"):
        groups = columns // scheme.block[1] if scheme.grouped and scheme.block else 1
        words = source.array(name, ("I32",), (-(-rows // (32 // scheme.bits)), groups))
        return lambda start, end: unpack_field_rows(words, scheme.bits, start, end).astype(np.float32), (words,)
    grid = scale_grid(source, name, rows, columns, scheme.block or shape, ("I8",))
    stored = grid.numbers.data.view(np.int8)
    if source.contents and stored.size and (stored.min() < -half or stored.max() >= half):
        wrong = stored.min() if stored.min() < -half else stored.max()
        raise ModelError(
            f"{source.folder}: tensor {name} has the zero point {wrong}, expected one of {scheme.bits} bits: "
            f"{-half:.0f} to {half - 1:.0f}"
        )
    return lambda start, end: grid.rows(start, end) + half, (stored,)


def refuse_zero_points(source: Source, module: str, rows: int, packed_bits: int | None = None) -> None:
    """Symmetric weights may have zero points, all of them 0.

    Those of `packed_bits` in words of 32 bits count from the middle of their range. Raises `ModelError` for others.
    """
    raw = source.find(module + ".weight_zero_point")
    if raw is None or not source.contents:
        return
    stored = raw.data
    if raw.dtype == "I32" and packed_bits is not None:
        shape = (-(-rows // (32 // packed_bits)), raw.shape[-1] if raw.shape else 1)
        words = source.array(raw.name, ("I32",), shape)
        zero = bool((unpack_field_rows(words, packed_bits, 0, rows) == 1 << packed_bits - 1).all())
    elif raw.dtype in _SIGNED_ZEROS:
        width = stored.nbytes // max(1, math.prod(raw.shape))
        zero = not (stored.reshape(-1, width) & np.array([*[0xFF] * (width - 1), 0x7F], np.uint8)).any()
    else:
        zero = not stored.any()
    if not zero:
        raise ModelError(
            f"{source.folder}: tensor {raw.name} has zero points, although quantization_config in {source.config.name} "
            "says that the weights are symmetric"
        )


def _order(source: Source, module: str, columns: int, scheme: LayerScheme) -> NDArray[np.int32] | None:
    """The permutation that sorts columns by their group (act-order), None if they are sorted."""
    name = module + ".weight_g_idx"
    if not scheme.grouped or scheme.block is None or (source.find(name) is None and not scheme.ordered):
        return None
    index = source.array(name, ("I32", "I64"), (columns,)).astype(np.int64)
    if not source.contents:
        return np.arange(columns, dtype=np.int32)
    if (index == -1).all():  # declared, and never set
        return None
    group = scheme.block[1]
    wrong = index[(index < 0) | (index >= columns // group)]
    if len(wrong):
        raise ModelError(
            f"{source.folder}: tensor {name} has the group {wrong[0]}, expected 0 to {columns // group - 1}"
        )
    sizes = np.bincount(index, minlength=columns // group)
    if (sizes != group).any():
        uneven = int(np.flatnonzero(sizes != group)[0])
        raise ModelError(
            f"{source.folder}: tensor {name} has {sizes[uneven]} columns in group {uneven}, expected {group}"
        )
    order = np.argsort(index, kind="stable").astype(np.int32)
    return None if (order == np.arange(columns)).all() else order


def _check_shape(source: Source, name: str, shape: tuple[int, int]) -> None:
    """Raises `ModelError` if the shape that packed weights declare is not that of config.json."""
    if source.find(name) is None:
        return
    stored = source.array(name, ("I64", "I32"), (2,))
    if source.contents and stored.tolist() != list(shape):
        raise ModelError(f"{source.folder}: tensor {name} is {stored.tolist()}, config.json says {list(shape)}")

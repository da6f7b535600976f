"""Integers of a few bits inside of bytes and of 32-bit words, the lowest bits first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.groups import Bytes


def nibbles(packed: Bytes) -> Bytes:
    """Two values of each byte, the low half first: [rows, n] to [rows, 2 n]."""
    rows, width = packed.shape
    values = np.empty((rows, width, 2), np.uint8)
    np.bitwise_and(packed, 15, out=values[..., 0])
    np.right_shift(packed, 4, out=values[..., 1])
    return values.reshape(rows, 2 * width)


def fields(words: NDArray[np.generic], bits: int, columns: int) -> Bytes:
    """`columns` values of `bits` (1 to 8) bits of each row of int32 words, each of which has 32 // bits of them."""
    if bits in {4, 8}:
        octets = np.ascontiguousarray(words).view(np.uint8)
        return (octets if bits == 8 else nibbles(octets))[:, :columns]
    unsigned, count = words.view(np.uint32), 32 // bits
    values = np.empty((*words.shape, count), np.uint8)
    for place in range(count):
        values[..., place] = unsigned >> np.uint32(bits * place) & np.uint32((1 << bits) - 1)
    return values.reshape(len(words), -1)[:, :columns]


def fields_of_rows(words: NDArray[np.generic], bits: int, start: int, end: int) -> Bytes:
    """Rows `start` to `end` of values that are packed along the rows: a word has 32 // bits rows of its column."""
    count = 32 // bits
    row = np.arange(start, end)
    shifts = (row % count * bits).astype(np.uint32)[:, None]
    return (words.view(np.uint32)[row // count] >> shifts & np.uint32((1 << bits) - 1)).astype(np.uint8)

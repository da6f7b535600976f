"""Values of a few bits in bytes and words, as checkpoints pack them: the first value in the lowest bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def unpack_bits(packed: Bytes, bits: int) -> Bytes:
    """The values of 1, 2, 3, 4 or 8 bits in rows of bytes, one in each byte: [rows, bytes] to [rows, 8 bytes / bits].

    Values of 3 bits run on across bytes, eight in three of them.
    """
    if bits == 8:
        return packed
    rows, size = packed.shape
    values = np.empty((rows, size * 8 // bits), np.uint8)
    mask = (1 << bits) - 1
    if bits == 3:
        first, second, third = (packed[:, i::3].astype(np.uint32) for i in range(3))
        words = first | second << np.uint32(8) | third << np.uint32(16)
        for i in range(8):
            values[:, i::8] = words >> np.uint32(3 * i) & np.uint32(mask)
        return values
    for i in range(8 // bits):
        values[:, i :: 8 // bits] = packed >> np.uint8(bits * i) & np.uint8(mask)
    return values


def unpack_words(words: NDArray[np.generic], bits: int) -> Bytes:
    """The values in rows of 32-bit words: [rows, words] to [rows, 32 words / bits]."""
    return unpack_bits(np.ascontiguousarray(words).view(np.uint8), bits)


def unpack_fields(words: NDArray[np.generic], bits: int, columns: int) -> Bytes:
    """`columns` values of `bits` (1 to 8) bits of each row of 32-bit words, in each of which 32 // bits are whole."""
    if 32 % bits == 0:
        return unpack_words(words, bits)[:, :columns]
    unsigned, count = words.view(np.uint32), 32 // bits
    values = np.empty((*words.shape, count), np.uint8)
    for place in range(count):
        values[..., place] = unsigned >> np.uint32(bits * place) & np.uint32((1 << bits) - 1)
    return values.reshape(len(words), -1)[:, :columns]


def unpack_field_rows(words: NDArray[np.generic], bits: int, start: int, end: int) -> Bytes:
    """Rows `start` to `end` of values that are packed along the rows: a word has 32 // bits rows of its column."""
    count = 32 // bits
    row = np.arange(start, end)
    shifts = (row % count * bits).astype(np.uint32)[:, None]
    return (words.view(np.uint32)[row // count] >> shifts & np.uint32((1 << bits) - 1)).astype(np.uint8)

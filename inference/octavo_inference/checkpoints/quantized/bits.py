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

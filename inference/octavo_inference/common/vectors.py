"""Embeddings as float32 arrays, without numpy, for the API process too."""

from __future__ import annotations

import math
import operator
import sys
from array import array


def vector_of(data: bytes, *, dimensions: int | None = None, normalize: bool = True) -> array[float]:
    """The first `dimensions` numbers (None: all) of a little-endian float32 vector, scaled to length 1.

    A vector of zeros stays as it is.
    """
    vector = array("f", data)
    if sys.byteorder == "big":
        vector.byteswap()
    if dimensions is not None:
        del vector[dimensions:]
    if not normalize:
        return vector
    length = math.hypot(*vector)
    return array("f", [value / length for value in vector]) if length else vector


def little_endian(vector: array[float]) -> bytes:
    """The numbers as little-endian float32."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return vector.tobytes()


def dot(one: array[float], other: array[float]) -> float:
    """Inner product: of vectors of length 1 it is their cosine similarity."""
    return math.fsum(map(operator.mul, one, other))

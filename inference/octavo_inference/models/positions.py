"""Positions without rotation: the slopes of ALiBi (https://arxiv.org/abs/2108.12409)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def alibi_slopes(heads: int) -> NDArray[np.float32]:
    """A slope for each head, [heads]: a score falls by it for each token of distance.

    2 ** (-8 i / n) for n = heads, a power of two. For others the first come from the next smaller power, and the rest
    are every other slope of the next larger one, as in Bloom and MPT.
    """
    whole = 2 ** math.floor(math.log2(heads))
    slopes = 2.0 ** (-8 / whole * np.arange(1, whole + 1))
    between = 2.0 ** (-4 / whole * np.arange(1, 2 * (heads - whole) + 1, 2))
    return np.concatenate([slopes, between]).astype(np.float32)

"""FP8 e4m3 (the finite variant, "fn") in numpy: to bits and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.groups import Floats, e4m3_levels

LARGEST = 448.0
_SIZES = e4m3_levels()[:0x7F]  # those of codes 0 to 126, which rise
_MIDDLES = (_SIZES[1:] + _SIZES[:-1]) / 2


def to_e4m3(values: Floats) -> NDArray[np.uint8]:
    """The nearest codes, ties to even; larger magnitudes become the largest."""
    magnitude = np.abs(values)
    codes = np.searchsorted(_MIDDLES, magnitude, side="left")
    # On a tie the search returns the lower code: an odd one moves up to the even one.
    inside = np.minimum(codes, len(_MIDDLES) - 1)
    codes += (codes & 1) & (magnitude == _MIDDLES[inside]) & (codes < len(_MIDDLES))
    return (codes | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def from_e4m3(codes: NDArray[np.uint8]) -> Floats:
    """The values of codes; NaN for 0x7f and 0xff."""
    return e4m3_levels()[codes]

"""FP8 e4m3 (the finite variant, "fn") in numpy: to bits and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

LARGEST = 448.0
_NAN = 0x7F


def _magnitudes() -> Floats:
    """The values of codes 0 to 126, which rise: 3 bits of mantissa, exponent bias 7, subnormals below 2**-6."""
    codes = np.arange(_NAN)
    exponent, mantissa = codes >> 3, codes & 7
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return values.astype(np.float32)


_VALUES = _magnitudes()
_MIDDLES = (_VALUES[1:] + _VALUES[:-1]) / 2
_TABLE = np.concatenate([_VALUES, [np.nan], -_VALUES, [np.nan]]).astype(np.float32)


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
    return _TABLE[codes]

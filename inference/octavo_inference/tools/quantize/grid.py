"""Grids of quantized values, and rounding to the nearest of them.

A matrix [rows, columns] is rounded in groups along the columns. A weight is (code - zero) * scale. Scales are exact in
bfloat16, as engines read them in the type of the model: the codes are chosen for the scale that is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.weights import bf16_bits, bf16_values
from octavo_inference.tools.quantize.e4m3 import LARGEST, from_e4m3, to_e4m3

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]

# Shares of the full range that a search tries: clipping the largest weights makes all others finer.
_SHARES = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7, 0.65, 0.6)


@dataclass(frozen=True, slots=True)
class Grid:
    """`bits` 4 or 8. `group`: columns that share a scale, None for a whole row. `symmetric`: the zero is the middle.

    `floating`: codes are FP8 e4m3 with a scale per row, instead of integers.
    """

    bits: int
    group: int | None = None
    symmetric: bool = True
    floating: bool = False

    def fits(self, columns: int) -> bool:
        """Whether groups divide a row."""
        return self.group is None or columns % self.group == 0

    def stored_bits(self, columns: int) -> float:
        """Bits per weight of a row, with scale (16) and zero point."""
        extra = 16 + (0 if self.symmetric else self.bits)
        return self.bits + extra / (self.group or columns)

    @property
    def levels(self) -> int:
        """The largest integer code."""
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        """The zero of a symmetric grid."""
        return 1 << (self.bits - 1)


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix on a grid: `codes` [rows, columns], `scales` and `zeros` [rows, groups]."""

    grid: Grid
    codes: Codes
    scales: Floats
    zeros: Codes

    def values(self) -> Floats:
        """What an engine computes with, float32 [rows, columns]."""
        rows, columns = self.codes.shape
        grouped = self.codes.reshape(rows, self.scales.shape[1], -1)
        return decode(self.grid, grouped, self.scales[..., None], self.zeros[..., None]).reshape(rows, columns)

    @property
    def bits(self) -> int:
        """Stored size in bits."""
        zeros = 0 if self.grid.symmetric else self.zeros.size * self.grid.bits
        return self.codes.size * self.grid.bits + self.scales.size * 16 + zeros


def encode(grid: Grid, weights: Floats, scales: Floats, zeros: Codes) -> Codes:
    """The nearest codes; shapes broadcast."""
    if grid.floating:
        return to_e4m3(weights / scales)
    codes: Codes = np.clip(np.rint(weights / scales) + zeros, 0, grid.levels).astype(np.uint8)
    return codes


def decode(grid: Grid, codes: Codes, scales: Floats, zeros: Codes) -> Floats:
    """The values of codes; shapes broadcast."""
    if grid.floating:
        return from_e4m3(codes) * scales
    return (codes.astype(np.float32) - zeros.astype(np.float32)) * scales


def scales_of(grid: Grid, weights: Floats, importance: Floats | None = None) -> tuple[Floats, Codes]:
    """Scale and zero of each group [..., elements of a group] -> [...].

    Without `importance` they cover the group's range. With it (of each element, it broadcasts to `weights`), a search
    over clipped ranges takes the one with the least sum of importance times squared error.
    """
    high, low = weights.max(axis=-1), weights.min(axis=-1)
    best, zeros = _scales(grid, high, low, 1.0)
    if importance is None:
        return best, zeros
    least = np.full(best.shape, np.inf, np.float32)
    for share in _SHARES:
        scale, zero = _scales(grid, high, low, share)
        spread, middle = scale[..., None], zero[..., None]
        error = decode(grid, encode(grid, weights, spread, middle), spread, middle)
        error -= weights
        loss = np.einsum("...i,...i,...i->...", error, error, np.broadcast_to(importance, error.shape))
        better = loss < least
        least = np.where(better, loss, least)
        best, zeros = np.where(better, scale, best), np.where(better, zero, zeros)
    return best, zeros


def _scales(grid: Grid, high: Floats, low: Floats, share: float) -> tuple[Floats, Codes]:
    if grid.floating or grid.symmetric:
        # Between the integers at both ends, -8 and 7, as other tools choose it.
        reach = LARGEST if grid.floating else grid.levels / 2
        scale = _stored(np.maximum(high, -low) * np.float32(share / reach))
        return scale, np.full(scale.shape, 0 if grid.floating else grid.middle, np.uint8)
    high, low = np.maximum(high, 0) * np.float32(share), np.minimum(low, 0) * np.float32(share)
    scale = _stored((high - low) / np.float32(grid.levels))
    return scale, np.clip(np.rint(-low / scale), 0, grid.levels).astype(np.uint8)


def _stored(scale: Floats) -> Floats:
    """Rounded to bfloat16; 1 for a group of zeros."""
    rounded = bf16_values(bf16_bits(np.ascontiguousarray(scale, np.float32)))
    return np.where(rounded > 0, rounded, np.float32(1))


def round_to_nearest(weights: Floats, grid: Grid, importance: Floats | None = None) -> Rounded:
    """Round a matrix [rows, columns]; `importance` [columns] of each input, as in `scales_of`."""
    rows, columns = weights.shape
    size = grid.group or columns
    grouped = weights.reshape(rows, columns // size, size)
    scales, zeros = scales_of(grid, grouped, None if importance is None else importance.reshape(-1, size))
    codes = encode(grid, grouped, scales[..., None], zeros[..., None]).reshape(rows, columns)
    return Rounded(grid, codes, scales, zeros)

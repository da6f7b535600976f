"""GGUF's IQ1, IQ2 and IQ3 formats: 4 or 8 weights are an entry of a grid, with separate signs.

A grid has few magnitudes, so a weight takes 4 bits: its magnitude's number, and 8 for a minus. Tables hold the codes of
8 weights in one 64-bit word (those of 4 in a 32-bit word). The grids are those of the package `gguf`.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.ggml_dequant import half, planes
from octavo_inference.models.groups import Bytes, Floats, Grouping

Parts: TypeAlias = "tuple[Bytes, Floats, Floats | None]"
"""`values` [blocks, elements of a block], `scale` and `minimum` [blocks, groups] of `Groups`."""

_NIBBLES, _TWO_BITS = (0, 4), (0, 2, 4, 6)
_MINUS = 8


def _signed(*magnitudes: int) -> tuple[float, ...]:
    """16 levels: the magnitudes, and the negative ones from 8."""
    padded = (*magnitudes, *(0,) * (_MINUS - len(magnitudes)))
    return (*padded, *(-magnitude for magnitude in padded))


# 8 times (-1, 0, 1) + 1/8, and from code 4 the same - 1/8.
_DELTAS = (-7, 1, 9, 0, -9, -1, 7, *(0,) * 9)
ONE_BIT = Grouping("code4", 32, levels=_DELTAS)
ONE_BIT_16 = Grouping("code4", 16, levels=_DELTAS)
TWO_BIT = Grouping("code4", 32, levels=_signed(8, 25, 43))
TWO_BIT_16 = Grouping("code4", 16, levels=_signed(8, 25, 43))
THREE_BIT_XXS = Grouping("code4", 32, levels=_signed(4, 12, 20, 28, 36, 44, 52, 62))
THREE_BIT_S = Grouping("code4", 32, levels=_signed(1, 3, 5, 7, 9, 11, 13, 15))


def iq1_s(blocks: Bytes) -> Parts:
    """A scale, a sign of the offset and four times three upper bits of grid indices in 16 bits for 32 weights."""
    high = blocks[:, 34:50].copy().view(np.uint16)
    scale = half(blocks, 0) * _odd(high >> 12 & 7) * np.float32(0.125)
    upper = (high[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & np.uint16(7)).reshape(len(blocks), -1)
    entries = _grid("IQ1_S").take(blocks[:, 2:34] | upper << np.uint16(8))
    minus = np.repeat(high >> 15, 4, axis=1)
    return _codes(entries | _offsets().take(minus)), scale, None


def iq1_m(blocks: Bytes) -> Parts:
    """Three upper bits of a grid index and a sign of the offset in a nibble for 8 weights."""
    # The four upper bits of four words are the block's scale; below are four scales of three bits in each.
    words = blocks[:, 48:56].copy().view(np.uint16)
    tops = words >> np.uint16(12)
    bits = tops[:, 0] | tops[:, 1] << np.uint16(4) | tops[:, 2] << np.uint16(8) | tops[:, 3] << np.uint16(12)
    scales = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & np.uint16(7)).reshape(len(blocks), -1)
    scale = bits.view(np.float16).astype(np.float32)[:, None] * _odd(scales) * np.float32(0.125)
    high = planes(blocks[:, 32:48], _NIBBLES, 15, 1)
    entries = _grid("IQ1_S").take(blocks[:, :32] | (high & np.uint8(7)).astype(np.uint16) << np.uint16(8))
    return _codes(entries | _offsets().take(high >> np.uint8(3))), scale, None


def iq2_xxs(blocks: Bytes) -> Parts:
    """Four grid indices, four sign indices of seven bits and a scale in 8 bytes for 32 weights."""
    words = blocks[:, 2:].copy().view(np.uint32).reshape(len(blocks), 8, 2)
    entries = _grid("IQ2_XXS").take(np.ascontiguousarray(words[..., 0]).view(np.uint8))
    scale = half(blocks, 0) * _odd(words[..., 1] >> 28) * np.float32(0.125)
    return _codes(entries | _signs_of_sevens(words[..., 1])), scale, None


def iq2_xs(blocks: Bytes) -> Parts:
    """A grid index of nine bits and a sign index of seven for 8 weights."""
    words = blocks[:, 2:66].copy().view(np.uint16)
    scale = half(blocks, 0) * _odd(planes(blocks[:, 66:], _NIBBLES, 15, 1)) * np.float32(0.125)
    entries = _grid("IQ2_XS").take(words & np.uint16(511))
    return _codes(entries | _even_signs().take(words >> np.uint16(9))), scale, None


def iq2_s(blocks: Bytes) -> Parts:
    """A grid index of ten bits and 8 signs for 8 weights."""
    upper = planes(blocks[:, 66:74], _TWO_BITS, 3, 1)
    scale = half(blocks, 0) * _odd(planes(blocks[:, 74:], _NIBBLES, 15, 1)) * np.float32(0.125)
    entries = _grid("IQ2_S").take(blocks[:, 2:34] | upper.astype(np.uint16) << np.uint16(8))
    return _codes(entries | _signs().take(blocks[:, 34:66])), scale, None


def iq3_xxs(blocks: Bytes) -> Parts:
    """A grid index for 4 weights; four sign indices of seven bits and a scale in 32 bits for 32 weights."""
    words = blocks[:, 66:].copy().view(np.uint32)
    entries = _grid("IQ3_XXS").take(blocks[:, 2:66]).view(np.uint64)
    scale = half(blocks, 0) * _odd(words >> 28) * np.float32(0.25)
    return _codes(entries | _signs_of_sevens(words)), scale, None


def iq3_s(blocks: Bytes) -> Parts:
    """A grid index of nine bits for 4 weights, and 8 signs for 8."""
    ninth = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little").astype(np.uint16)
    entries = _grid("IQ3_S").take(blocks[:, 2:66] | ninth << np.uint16(8)).view(np.uint64)
    scale = half(blocks, 0) * _odd(planes(blocks[:, 106:], _NIBBLES, 15, 1))
    return _codes(entries | _signs().take(blocks[:, 74:106])), scale, None


def _codes(words: NDArray[np.uint64]) -> Bytes:
    return words.view(np.uint8)


def _odd(scales: NDArray[np.generic]) -> Floats:
    """2 * scale + 1."""
    result: Floats = scales.astype(np.float32) * np.float32(2) + np.float32(1)
    return result


def _signs_of_sevens(words: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Minuses of four indices of seven bits in each word, [blocks, 4 * words]."""
    sevens = words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32) & np.uint32(127)
    return _even_signs().take(sevens.reshape(len(words), -1))


@cache
def _signs() -> NDArray[np.uint64]:
    """Minuses by 8 bits."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return (bits * np.uint8(_MINUS)).view(np.uint64)[:, 0]


@cache
def _even_signs() -> NDArray[np.uint64]:
    """Minuses by 7 bits: the eighth makes their number even."""
    index = np.arange(128, dtype=np.uint8)
    parity = np.unpackbits(index[:, None], axis=1).sum(axis=1, dtype=np.uint8) & np.uint8(1)
    minuses: NDArray[np.uint64] = _signs()[index | parity << np.uint8(7)]
    return minuses


@cache
def _offsets() -> NDArray[np.uint64]:
    """What makes the offsets of 8 weights positive or negative."""
    return np.array([0, 0x0404040404040404], np.uint64)


@cache
def _grid(name: str) -> NDArray[np.uint64]:
    """The entries of a grid: numbers of magnitudes."""
    from gguf import quants  # noqa: PLC0415 -- 0.3 s to import, needed for these formats only

    described = getattr(quants, name)
    described.init_grid()
    size = described.grid_shape[1]
    codes = np.searchsorted(np.array(described.grid_map), described.grid.reshape(-1, size)).astype(np.uint8)
    words: NDArray[np.uint64] = codes.view(np.uint64 if size == 8 else np.uint32)[:, 0]
    return words

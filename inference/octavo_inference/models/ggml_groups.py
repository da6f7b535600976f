"""GGUF formats of up to 4 bits as matrices quantized in groups, exactly: K-quants, FP4, ternary and the IQ4 formats.

Each decoder takes blocks [blocks, bytes] and gives `Parts`. Levels are integers, so that a level times its scale is
exact in float32: weights equal those of ggml-quants.c bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from octavo_inference.models import ggml_grids
from octavo_inference.models.ggml_dequant import half, planes
from octavo_inference.models.ggml_grids import Parts
from octavo_inference.models.groups import TWICE_E2M1, Bytes, Floats, Grouping, e4m3_levels, e8m0_levels

_TWO_BITS = (0, 2, 4, 6)
_NIBBLES = (0, 4)
_E2M1 = Grouping("code4", 32, levels=TWICE_E2M1)
_IQ4 = Grouping("code4", 32, levels=(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))


@dataclass(frozen=True, slots=True)
class GroupedFormat:
    """A format whose blocks `decode` takes apart."""

    grouping: Grouping
    decode: Callable[[Bytes], Parts]


def _q2_k(blocks: Bytes) -> Parts:
    scales = blocks[:, :16]
    scale = half(blocks, 80) * (scales & 15).astype(np.float32)
    minimum: Floats = -(half(blocks, 82) * (scales >> 4).astype(np.float32))
    return planes(blocks[:, 16:80], _TWO_BITS, 3, 32), scale, minimum


def _q3_k(blocks: Bytes) -> Parts:
    # Without its third bit, a value is lower by 4.
    low = planes(blocks[:, 32:96], _TWO_BITS, 3, 32)
    third = planes(blocks[:, :32], tuple(range(8)), 1, 32)
    # 16 scales of six bits: four in 8 bytes of nibbles, two in the 4 bytes after them.
    four = planes(blocks[:, 96:104], _NIBBLES, 15, 8)
    two = planes(blocks[:, 104:108], _TWO_BITS, 3, 4)
    scale = (four | two << np.uint8(4)).astype(np.float32) - np.float32(32)
    return (low | third << np.uint8(2)) + np.uint8(4), half(blocks, 108) * scale, None


def _iq4_nl(blocks: Bytes) -> Parts:
    return planes(blocks[:, 2:], _NIBBLES, 15, 16), half(blocks, 0), None


def _iq4_xs(blocks: Bytes) -> Parts:
    shifts = np.arange(0, 16, 2, dtype=np.uint16)
    high = (blocks[:, 2:4].copy().view(np.uint16) >> shifts & np.uint16(3)).astype(np.uint8)
    scale = (planes(blocks[:, 4:8], _NIBBLES, 15, 1) | high << np.uint8(4)).astype(np.float32) - np.float32(32)
    return planes(blocks[:, 8:], _NIBBLES, 15, 16), half(blocks, 0) * scale, None


def _mxfp4(blocks: Bytes) -> Parts:
    return planes(blocks[:, 1:], _NIBBLES, 15, 16), _half_e8m0()[blocks[:, :1]], None


def _nvfp4(blocks: Bytes) -> Parts:
    scale = _half_ue4m3()[blocks[:, :4]]
    return planes(blocks[:, 4:], _NIBBLES, 15, 8), scale, None


def _tq1_0(blocks: Bytes) -> Parts:
    """Five digits of base 3 in a byte, as a fraction: times 3, what overflows a byte is the first digit."""
    parts = []
    for start, end, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        rest = np.ascontiguousarray(blocks[:, start:end])
        for _ in range(digits):
            parts.append((rest >= 86).view(np.uint8) + (rest >= 171).view(np.uint8) + np.uint8(7))
            rest = rest * np.uint8(3)
    return np.concatenate(parts, axis=1), half(blocks, 52), None


def _tq2_0(blocks: Bytes) -> Parts:
    return planes(blocks[:, :64], _TWO_BITS, 3, 32) + np.uint8(7), half(blocks, 64), None


def _q1_0(blocks: Bytes) -> Parts:
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return bits * np.uint8(2) + np.uint8(7), half(blocks, 0), None


def _q2_0(blocks: Bytes) -> Parts:
    return planes(blocks[:, 2:], _TWO_BITS, 3, 1) + np.uint8(7), half(blocks, 0), None


@cache
def _half_e8m0() -> Floats:
    """Half of 2^(byte - 127) for each byte; NaN for 255, and for those whose weights can be infinite."""
    powers = e8m0_levels() * np.float32(0.5)
    powers[253:] = np.nan
    return powers


@cache
def _half_ue4m3() -> Floats:
    """Half of the float8 of each byte, without its sign; 0 for 127, as in ggml-quants.c."""
    levels = np.resize(e4m3_levels()[:128], 256) * np.float32(0.5)
    levels[127] = 0
    return levels


GROUPED: dict[str, GroupedFormat] = {
    "Q2_K": GroupedFormat(Grouping("int4", 16, minimum=True), _q2_k),
    "Q3_K": GroupedFormat(Grouping("int4", 16), _q3_k),
    "IQ4_NL": GroupedFormat(_IQ4, _iq4_nl),
    "IQ4_XS": GroupedFormat(_IQ4, _iq4_xs),
    "MXFP4": GroupedFormat(_E2M1, _mxfp4),
    "NVFP4": GroupedFormat(Grouping("code4", 16, levels=TWICE_E2M1), _nvfp4),
    "TQ1_0": GroupedFormat(Grouping("int4", 256), _tq1_0),
    "TQ2_0": GroupedFormat(Grouping("int4", 256), _tq2_0),
    "Q1_0": GroupedFormat(Grouping("int4", 128), _q1_0),
    "Q2_0": GroupedFormat(Grouping("int4", 64), _q2_0),
    "IQ1_S": GroupedFormat(ggml_grids.ONE_BIT, ggml_grids.iq1_s),
    "IQ1_M": GroupedFormat(ggml_grids.ONE_BIT_16, ggml_grids.iq1_m),
    "IQ2_XXS": GroupedFormat(ggml_grids.TWO_BIT, ggml_grids.iq2_xxs),
    "IQ2_XS": GroupedFormat(ggml_grids.TWO_BIT_16, ggml_grids.iq2_xs),
    "IQ2_S": GroupedFormat(ggml_grids.TWO_BIT_16, ggml_grids.iq2_s),
    "IQ3_XXS": GroupedFormat(ggml_grids.THREE_BIT_XXS, ggml_grids.iq3_xxs),
    "IQ3_S": GroupedFormat(ggml_grids.THREE_BIT_S, ggml_grids.iq3_s),
}
"""Formats that a matrix keeps in 4 bits, by ggml's names."""

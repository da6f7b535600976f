"""GGUF's block formats in numpy: raw blocks to integers with scales, or to float32 bit for bit as in ggml-quants.c."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

BlockFormat = Literal["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks in parts: a weight is (value - zero) * scale + minimum.

    `values` [blocks, groups, elements of a group], `scale` and `minimum` [blocks, groups]; None where there is none.
    """

    values: Bytes
    zero: int
    scale: Floats
    minimum: Floats | None = None

    def dequantize(self) -> Floats:
        """[blocks, elements of a block]."""
        centred = self.values.astype(np.float32)
        if self.zero:
            centred -= np.float32(self.zero)
        result: Floats = centred * self.scale[..., None]
        if self.minimum is not None:
            result += self.minimum[..., None]
        return result.reshape(len(result), -1)


def split_blocks(format_: BlockFormat, data: NDArray[np.generic]) -> Blocks:
    """The parts of contiguous blocks."""
    size, split = _FORMATS[format_]
    return split(np.ascontiguousarray(data).view(np.uint8).reshape(-1, size))


def dequantize_blocks(format_: BlockFormat, data: NDArray[np.generic]) -> Floats:
    """The values of contiguous blocks, [blocks, elements per block]."""
    return split_blocks(format_, data).dequantize()


def half(blocks: Bytes, at: int) -> Floats:
    """The fp16 number at a byte of each block, [blocks, 1]."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def planes(packed: Bytes, shifts: tuple[int, ...], mask: int, run: int) -> Bytes:
    """Bits of [blocks, bytes] in order: of each `run` bytes first those at the first shift, then at the next."""
    blocks, width = packed.shape
    result = np.empty((blocks, width // run, len(shifts), run), np.uint8)
    contiguous = np.ascontiguousarray(packed)
    for i, shift in enumerate(shifts):
        result[:, :, i] = (contiguous >> np.uint8(shift) & np.uint8(mask)).reshape(blocks, -1, run)
    return result.reshape(blocks, -1)


def _nibbles(packed: Bytes) -> Bytes:
    """16 bytes, [blocks, 1, 32]: the low nibbles are elements 0..15, the high ones 16..31."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)[:, None]


def _five_bits(blocks: Bytes, at: int) -> Bytes:
    """4 bytes of fifth bits, then nibbles."""
    fifth = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")[:, None]
    return _nibbles(blocks[:, at + 4 :]) | (fifth << 4).astype(np.uint8)


def _q4_0(blocks: Bytes) -> Blocks:
    return Blocks(_nibbles(blocks[:, 2:]), 8, half(blocks, 0))


def _q4_1(blocks: Bytes) -> Blocks:
    return Blocks(_nibbles(blocks[:, 4:]), 0, half(blocks, 0), half(blocks, 2))


def _q5_0(blocks: Bytes) -> Blocks:
    return Blocks(_five_bits(blocks, 2), 16, half(blocks, 0))


def _q5_1(blocks: Bytes) -> Blocks:
    return Blocks(_five_bits(blocks, 4), 0, half(blocks, 0), half(blocks, 2))


def _q8_0(blocks: Bytes) -> Blocks:
    # Two's complement with its upper bit turned is the number plus 128.
    return Blocks((blocks[:, 2:] ^ np.uint8(0x80))[:, None], 128, half(blocks, 0))


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scale and minimum of the 8 sub-blocks, [blocks, 8]: six bits each, packed into bytes 4..15."""
    low, high, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = np.concatenate([low & 63, (rest & 15) | low >> 6 << 4], axis=1)
    minimum = np.concatenate([high & 63, rest >> 4 | high >> 6 << 4], axis=1)
    return half(blocks, 0) * scale.astype(np.float32), -(half(blocks, 2) * minimum.astype(np.float32))


def _k_nibbles(packed: Bytes) -> Bytes:
    """128 bytes, [blocks, 8, 32]: each 32 bytes hold one sub-block in the low nibbles, the next in the high ones."""
    pairs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)


def _q4_k(blocks: Bytes) -> Blocks:
    return Blocks(_k_nibbles(blocks[:, 16:]), 0, *_k_scales(blocks))


def _q5_k(blocks: Bytes) -> Blocks:
    # Bit j of each of the 32 bytes belongs to sub-block j.
    fifth = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None] & np.uint8(1)
    return Blocks(_k_nibbles(blocks[:, 48:]) | fifth << np.uint8(4), 0, *_k_scales(blocks))


def _q6_k(blocks: Bytes) -> Blocks:
    # Two halves of 128 elements: 64 bytes of nibbles (32 low, 32 low, the same high), 32 bytes of upper bits.
    nibbles = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    upper = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)
    scale: Floats = blocks[:, 192:208].view(np.int8).astype(np.float32) * half(blocks, 208)
    return Blocks((low | upper << np.uint8(4)).reshape(-1, 16, 16), 32, scale)


# Bytes of a block, and what takes it apart.
_FORMATS: dict[BlockFormat, tuple[int, Callable[[Bytes], Blocks]]] = {
    "q4_0": (18, _q4_0),
    "q4_1": (20, _q4_1),
    "q5_0": (22, _q5_0),
    "q5_1": (24, _q5_1),
    "q8_0": (34, _q8_0),
    "q4_k": (144, _q4_k),
    "q5_k": (176, _q5_k),
    "q6_k": (210, _q6_k),
}

"""GGUF's block formats in numpy: raw blocks to float32, bit for bit as ggml-quants.c defines them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

BlockFormat = Literal["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def dequantize_blocks(format_: BlockFormat, data: NDArray[np.generic]) -> Floats:
    """The values of contiguous blocks, [blocks, elements per block]."""
    size, decode = _DECODERS[format_]
    return decode(np.ascontiguousarray(data).view(np.uint8).reshape(-1, size))


def _half(blocks: Bytes, at: int) -> Floats:
    """The fp16 number at a byte of each block, [blocks, 1]."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """16 bytes: the low nibbles are elements 0..15, the high ones 16..31."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def _five_bits(blocks: Bytes, at: int) -> Bytes:
    """4 bytes of fifth bits, then nibbles."""
    fifth = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return _nibbles(blocks[:, at + 4 :]) | (fifth << 4).astype(np.uint8)


def _q4_0(blocks: Bytes) -> Floats:
    return (_nibbles(blocks[:, 2:]).astype(np.float32) - 8.0) * _half(blocks, 0)


def _q4_1(blocks: Bytes) -> Floats:
    return _nibbles(blocks[:, 4:]).astype(np.float32) * _half(blocks, 0) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    return (_five_bits(blocks, 2).astype(np.float32) - 16.0) * _half(blocks, 0)


def _q5_1(blocks: Bytes) -> Floats:
    return _five_bits(blocks, 4).astype(np.float32) * _half(blocks, 0) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks, 0)


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scale and minimum of the 8 sub-blocks, [blocks, 8, 1]: six bits each, packed into bytes 4..15."""
    low, high, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = np.concatenate([low & 63, (rest & 15) | low >> 6 << 4], axis=1)
    minimum = np.concatenate([high & 63, rest >> 4 | high >> 6 << 4], axis=1)
    return (
        (_half(blocks, 0) * scale.astype(np.float32))[:, :, None],
        (_half(blocks, 2) * minimum.astype(np.float32))[:, :, None],
    )


def _k_nibbles(packed: Bytes) -> Bytes:
    """128 bytes, [blocks, 8, 32]: each 32 bytes hold one sub-block in the low nibbles, the next in the high ones."""
    pairs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)


def _q4_k(blocks: Bytes) -> Floats:
    scale, minimum = _k_scales(blocks)
    return (scale * _k_nibbles(blocks[:, 16:]).astype(np.float32) - minimum).reshape(-1, 256)


def _q5_k(blocks: Bytes) -> Floats:
    scale, minimum = _k_scales(blocks)
    # Bit j of each of the 32 bytes belongs to sub-block j.
    fifth = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None] & 1
    values = _k_nibbles(blocks[:, 48:]) | fifth << 4
    return (scale * values.astype(np.float32) - minimum).reshape(-1, 256)


def _q6_k(blocks: Bytes) -> Floats:
    # Two halves of 128 elements: 64 bytes of nibbles (32 low, 32 low, the same high), 32 bytes of upper bits.
    nibbles = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    upper = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
    values = (low | upper << 4).astype(np.float32).reshape(-1, 16, 16) - 32.0
    scale: Floats = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks, 208)
    result: Floats = (scale[:, :, None] * values).reshape(-1, 256)
    return result


# Bytes of a block, and its decoder.
_DECODERS: dict[BlockFormat, tuple[int, Callable[[Bytes], Floats]]] = {
    "q4_0": (18, _q4_0),
    "q4_1": (20, _q4_1),
    "q5_0": (22, _q5_0),
    "q5_1": (24, _q5_1),
    "q8_0": (34, _q8_0),
    "q4_k": (144, _q4_k),
    "q5_k": (176, _q5_k),
    "q6_k": (210, _q6_k),
}

"""Linear layers of GPTQ, AWQ, bitsandbytes and HQQ as random tensors, packed by the formats' definitions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from .conftest import Typed

Layer = tuple[dict[str, Typed], np.ndarray]
"""Tensors of a linear layer by the last part of their name, and the weights that they stand for."""

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
BNB_LEVELS = {
    "nf4": [
        *(-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0),
        *(0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0),
    ],
    "fp4": [
        *(0.0, 0.0052083, 0.6666667, 1.0, 0.3333333, 0.5, 0.1666667, 0.25),
        *(-0.0, -0.0052083, -0.6666667, -1.0, -0.3333333, -0.5, -0.1666667, -0.25),
    ],
}
HQQ_PER_ELEMENT = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}


def pack(values: np.ndarray, bits: int) -> np.ndarray:
    """Values along the first axis as a stream of bits, the first in the lowest, in words of 32."""
    words = np.zeros((values.shape[0] * bits // 32, values.shape[1]), np.uint32)
    for i, row in enumerate(values):
        for bit in range(bits):
            place = i * bits + bit
            words[place // 32] |= (row.astype(np.uint32) >> np.uint32(bit) & np.uint32(1)) << np.uint32(place % 32)
    return words.view(np.int32)


def gptq(
    rows: int,
    columns: int,
    bits: int = 4,
    group: int = 32,
    *,
    symmetric: bool = True,
    act_order: bool = False,
    v2: bool = False,
) -> Layer:
    """(value - zero) * scale, with the zero point stored minus 1 except in version 2."""
    rng = np.random.default_rng(rows)
    width = columns if group == -1 else group
    groups = -(-columns // width)
    values = rng.integers(0, 2**bits, (columns, rows))
    # In version 1 the packers never write 0.
    zeros = rng.integers(0 if v2 else 1, 2**bits, (groups, rows))
    if symmetric:
        zeros[:] = 2 ** (bits - 1)
    scales = rng.uniform(0.01, 0.02, (groups, rows)).astype(np.float16)
    group_of = np.arange(columns) // width
    if act_order:
        group_of = rng.permutation(group_of)
    weights = (values - zeros[group_of]) * scales[group_of].astype(np.float64)
    return {
        "qweight": ("I32", pack(values, bits)),
        "qzeros": ("I32", np.ascontiguousarray(pack((zeros - (not v2)).T, bits).T)),
        "scales": ("F16", scales),
        "g_idx": ("I32", group_of.astype(np.int32)),
    }, np.ascontiguousarray(weights.T).astype(np.float32)


def awq_gemm(values: np.ndarray) -> np.ndarray:
    """[n, rows] to [n, rows / 8]: the i-th four bits of a word are row AWQ_ORDER[i]."""
    words = np.zeros((values.shape[0], values.shape[1] // 8), np.uint32)
    for word in range(words.shape[1]):
        for i, row in enumerate(AWQ_ORDER):
            words[:, word] |= values[:, 8 * word + row].astype(np.uint32) << np.uint32(4 * i)
    return words.view(np.int32)


def awq_gemv(values: np.ndarray, words: int) -> np.ndarray:
    """[rows, n] to [rows, words]."""
    padded = np.zeros((len(values), words * 8), np.uint8)
    padded[:, : values.shape[1]] = values
    return np.ascontiguousarray(pack(padded.T, 4).T)


def awq_fast(values: np.ndarray) -> np.ndarray:
    """[rows, columns] to [rows / 4, columns]: each 256 values of four rows and 64 columns are 64 words of 16 bits."""
    rows, columns = values.shape
    words = np.zeros((rows // 4, columns), np.uint16)
    for row in range(rows):
        for column in range(columns):
            # Of 32 columns, those of a tensor core's thread come together: 0 1 8 9 16 17 24 25, 2 3 10 11 ...
            chunk, pair, half = column % 32 // 8, column % 8 // 2, column % 2
            inside = pair * 8 + chunk * 2 + half
            # ... and of each eight of them the even ones first.
            eight, at = divmod(inside, 8)
            inside = eight * 8 + (at // 2 if at % 2 == 0 else 4 + at // 2)
            flat = row % 4 * 64 + column % 64 // 32 * 32 + inside
            word = column // 64 * 64 + flat // 4
            words[row // 4, word] |= np.uint16(values[row, column]) << np.uint16(4 * (flat % 4))
    return words.view(np.int16)


def awq_words(group: int, groups: int) -> int:
    """Words for the zero points of a row in AutoAWQ's gemv."""
    step = {32: 4, 64: 2}.get(group, 1)
    words = (groups + 7) // 8
    return (words + step - 1) // step * step


def awq(rows: int, columns: int, version: str = "gemm", group: int = 32, *, symmetric: bool = False) -> Layer:
    """(value - zero) * scale in one of three layouts."""
    rng = np.random.default_rng(rows)
    width = columns if group == -1 else group
    groups = columns // width
    values = rng.integers(0, 16, (rows, columns)).astype(np.uint8)
    zeros = np.full((rows, groups), 8) if symmetric else rng.integers(0, 16, (rows, groups))
    scales = rng.uniform(0.01, 0.02, (rows, groups)).astype(np.float16)
    wide = scales.repeat(width, axis=1).astype(np.float64)
    weights = (values - zeros.repeat(width, axis=1)) * wide
    if version == "gemm":
        return {
            "qweight": ("I32", awq_gemm(values.T)),
            "qzeros": ("I32", awq_gemm(zeros.T)),
            "scales": ("F16", scales.T),
        }, weights.astype(np.float32)
    words = awq_words(width, groups)
    padded = np.zeros((rows, words * 8), np.float16)
    padded[:, :groups] = scales
    if version == "gemv":
        return {
            "qweight": ("I32", awq_gemv(values, columns // 8)),
            "qzeros": ("I32", awq_gemv(zeros, words)),
            "scales": ("F16", padded),
        }, weights.astype(np.float32)
    scaled = np.zeros_like(padded)
    scaled[:, :groups] = (-zeros * scales.astype(np.float32)).astype(np.float16)
    products = values.astype(np.float32) * wide.astype(np.float32)
    return {
        "qweight": ("I16", awq_fast(values)),
        "qzeros": ("F16", scaled.T),
        "scales": ("F16", padded.T),
    }, products + scaled[:, :groups].repeat(width, axis=1).astype(np.float32)


def bnb_four_bits(
    rows: int, columns: int, kind: str = "nf4", block: int = 64, *, nested: bool = False, nested_block: int = 256
) -> Layer:
    """A level times the scale of its block, which may be quantized itself."""
    rng = np.random.default_rng(rows)
    size = rows * columns
    blocks = -(-size // block)
    values = rng.integers(0, 16, size)
    levels = np.array(BNB_LEVELS[kind], np.float32)
    state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": [rows, columns]}
    typed: dict[str, Typed] = {
        "weight": ("U8", (values[0::2] << 4 | values[1::2]).astype(np.uint8)[:, None]),
        "weight.quant_map": ("F32", levels),
    }
    if nested:
        codes = rng.integers(0, 256, blocks).astype(np.uint8)
        outer = rng.uniform(0.1, 0.2, -(-blocks // nested_block)).astype(np.float32)
        code = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
        state |= {"nested_blocksize": nested_block, "nested_dtype": "float32", "nested_offset": 0.375}
        typed |= {
            "weight.absmax": ("U8", codes),
            "weight.nested_absmax": ("F32", outer),
            "weight.nested_quant_map": ("F32", code),
        }
        absmax = np.array([code[c] * outer[i // nested_block] for i, c in enumerate(codes)], np.float32)
        absmax += np.float32(0.375)
    else:
        absmax = rng.uniform(0.1, 0.2, blocks).astype(np.float32)
        typed["weight.absmax"] = ("F32", absmax)
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    typed[f"weight.quant_state.bitsandbytes__{kind}"] = ("U8", text)
    weights = np.array([levels[v] * absmax[i // block] for i, v in enumerate(values)], np.float32)
    return typed, weights.reshape(rows, columns)


def bnb_eight_bits(rows: int, columns: int) -> Layer:
    """int8 times the largest weight of its row / 127."""
    rng = np.random.default_rng(rows)
    values = rng.integers(-128, 128, (rows, columns)).astype(np.int8)
    absmax = rng.uniform(0.5, 2, rows).astype(np.float32)
    return {
        "weight": ("I8", values),
        "SCB": ("F32", absmax),
        "weight_format": ("U8", np.zeros((), np.uint8)),
    }, values * (absmax / np.float32(127))[:, None]


def hqq_pack(values: np.ndarray, bits: int) -> np.ndarray:
    """Rows of the first part of the height are in the highest bits."""
    many = HQQ_PER_ELEMENT[bits]
    step = -(-len(values) // many)
    packed = np.zeros((step, values.shape[1]), np.int32 if bits == 3 else np.uint8)
    for row, line in enumerate(values):
        packed[row % step] |= line.astype(packed.dtype) << bits * (many - 1 - row // step)
    return packed


def hqq(rows: int, columns: int, bits: int = 4, group: int = 64, axis: int = 1) -> Layer:
    """(value - zero) * scale, with a zero point that is no whole number."""
    rng = np.random.default_rng(rows)
    groups = rows * columns // group
    shape, column = ((groups, group), (groups, 1)) if axis == 1 else ((group, groups), (1, groups))
    values = rng.integers(0, 2**bits, shape)
    scale = rng.uniform(0.01, 0.02, column).astype(np.float16)
    zero = rng.uniform(0, 2**bits - 1, column).astype(np.float16)
    weights = values * scale.astype(np.float32) + (-zero.astype(np.float32) * scale.astype(np.float32))
    return {
        "W_q": ("I32" if bits == 3 else "U8", hqq_pack(values, bits)),
        "scale": ("F16", scale),
        "zero": ("F16", zero),
        "nbits": ("I32", np.array(bits, np.int32)),
        "group_size": ("I32", np.array(group, np.int32)),
        "axis": ("I32", np.array(axis, np.int32)),
        "shape": ("I64", np.array([rows, columns])),
    }, weights.astype(np.float32).reshape(rows, columns)

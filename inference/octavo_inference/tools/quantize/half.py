"""16 bits: what is not quantized keeps its format if it has 16 bits, and becomes bfloat16 otherwise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.weights import Matrix, Tensor, bf16_bits, bf16_values, dequantize

Floats = NDArray[np.float32]

_ROWS = 4096  # that are converted at a time


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as it is written; `dtype` is safetensors' name."""

    dtype: str
    data: NDArray[np.generic]


def half_tensor(tensor: Matrix) -> Tensor:
    """A matrix in 16 bits: itself if it has them."""
    if isinstance(tensor, Tensor) and tensor.format in {"bf16", "f16"}:
        return tensor
    bits = np.empty(tensor.shape, np.uint16)
    for at in range(0, len(bits), _ROWS):
        values = dequantize(tensor.rows(at, min(at + _ROWS, len(bits))))
        bits[at : at + _ROWS] = bf16_bits(np.ascontiguousarray(values))
    return Tensor("bf16", tensor.shape, bits)


def store_tensor(tensor: Tensor) -> Stored:
    """A tensor in 16 bits."""
    return Stored("F16" if tensor.format == "f16" else "BF16", tensor.data.reshape(tensor.shape))


def store_half(values: Floats) -> Stored:
    """As BF16 or F16 if no value changes by it, else as BF16, rounded."""
    bits = bf16_bits(np.ascontiguousarray(values, np.float32))
    if not np.array_equal(bf16_values(bits), values):
        # Overflow is a change like any other.
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float16)
        if np.array_equal(narrow.astype(np.float32), values):
            return Stored("F16", narrow)
    return Stored("BF16", bits)


def half_values(values: Floats) -> Floats:
    """The values of `store_half`."""
    stored = store_half(values)
    if stored.dtype == "F16":
        return stored.data.astype(np.float32)
    return bf16_values(stored.data.astype(np.uint16, copy=False))


def store_exact(values: Floats) -> Stored:
    """As BF16 if no value changes by it, else as F32."""
    bits = bf16_bits(np.ascontiguousarray(values, np.float32))
    return Stored("BF16", bits) if np.array_equal(bf16_values(bits), values) else Stored("F32", values)

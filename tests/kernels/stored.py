"""Random weights in every stored format."""

from __future__ import annotations

import numpy as np

from octavo_inference.models.ggml_dequant import BlockFormat
from octavo_inference.models.weights import Format, Tensor, bf16_bits

# Bytes of a block, elements of it, and where its fp16 numbers stand.
BLOCKS: dict[BlockFormat, tuple[int, int, tuple[int, ...]]] = {
    "q4_0": (18, 32, (0,)),
    "q4_1": (20, 32, (0, 2)),
    "q4_k": (144, 256, (0, 2)),
    "q5_0": (22, 32, (0,)),
    "q5_1": (24, 32, (0, 2)),
    "q5_k": (176, 256, (0, 2)),
    "q6_k": (210, 256, (208,)),
    "q8_0": (34, 32, (0,)),
}
FORMATS: list[Format] = ["f32", "bf16", "f16", *BLOCKS]


def stored(rng: np.random.Generator, format_: Format, rows: int, cols: int) -> Tensor:
    """A matrix of random floats, or of blocks with every bit pattern but for their fp16 numbers."""
    if format_ == "f32":
        return Tensor("f32", (rows, cols), rng.standard_normal((rows, cols), np.float32))
    if format_ == "f16":
        return Tensor("f16", (rows, cols), rng.standard_normal((rows, cols), np.float32).astype(np.float16))
    if format_ == "bf16":
        return Tensor("bf16", (rows, cols), bf16_bits(rng.standard_normal((rows, cols), np.float32)))
    size, elements, halves = BLOCKS[format_]
    blocks = rng.integers(0, 256, (rows, cols // elements, size), dtype=np.uint8)
    for at in halves:
        values = (rng.standard_normal((rows, cols // elements, 1)) * 0.01).astype(np.float16)
        blocks[..., at : at + 2] = values.view(np.uint8)
    return Tensor(format_, (rows, cols), blocks.reshape(rows, -1))


def vector(rng: np.random.Generator, size: int) -> Tensor:
    return Tensor("f32", (size,), rng.standard_normal(size, np.float32))

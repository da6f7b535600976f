"""Random blocks of GGUF's formats, and their values by ggml's rules."""

from __future__ import annotations

import gguf
import numpy as np

from octavo_inference.checkpoints.gguf import TYPES

IDS = {name: number for number, (name, _, _) in TYPES.items()}
# Where the fp16 numbers of a block are, if not at its start.
_HALVES: dict[str, tuple[int, ...]] = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "MXFP4": (),
    "NVFP4": (),
    "IQ1_M": (),
}


def random_blocks(rng: np.random.Generator, name: str, rows: int, columns: int, scale: float = 0.01) -> np.ndarray:
    """uint8 [rows, bytes]: every bit pattern, but for scales, which are numbers of about `scale`."""
    _, width, size = TYPES[IDS[name]]
    blocks = rng.integers(0, 256, (rows * columns // width, size), dtype=np.uint8)
    halves = (rng.standard_normal((len(blocks), 2)) * scale).astype(np.float16)
    for i, at in enumerate(_HALVES.get(name, (0,))):
        blocks[:, at : at + 2] = halves[:, i : i + 1].view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = 127 + np.log2(scale).astype(int) + rng.integers(-2, 3, len(blocks))
    if name == "NVFP4":
        blocks[:, :4] = rng.integers(0, 40, (len(blocks), 4))
    if name == "IQ1_M":
        words = blocks[:, 48:56].copy().view(np.uint16) & 0x0FFF
        words |= (halves[:, :1].view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) & 15) << 12
        blocks[:, 48:56] = words.view(np.uint8)
    return blocks.reshape(rows, -1)


def values(name: str, data: np.ndarray) -> np.ndarray:
    """float32 [rows, columns]."""
    if name not in {"Q1_0", "Q2_0"}:
        return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])
    # Younger than the package's code: a bit is a sign, two bits are a number from -1 to 2.
    blocks = data.reshape(-1, 18)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32)
    numbers = bits * 2 - 1 if name == "Q1_0" else bits[:, ::2] + bits[:, 1::2] * 2 - 1
    return (numbers * blocks[:, :2].copy().view(np.float16).astype(np.float32)).reshape(len(data), -1)

"""The one description of a decoder: sizes and flags that cover a family of models."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama-3 style frequency scaling (`rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int

    def apply(self, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scaled rotary frequencies: low ones divided by `factor`, high ones kept, a ramp in between."""
        turns = self.original_max_position * frequencies / (2 * math.pi)
        ramp = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = np.clip(ramp, 0.0, 1.0)
        return kept * frequencies + (1 - kept) * frequencies / self.factor


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama-family decoder: RMSNorm, rotary positions, grouped-query attention, gated SiLU MLP.

    Sizes are counts of elements. `digest` identifies the weights (root of the block hash chain).
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    rope_theta: float
    norm_eps: float
    tied_embeddings: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None = None
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    digest: str = ""

    @property
    def qkv_width(self) -> int:
        """Columns of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Size of one token's K and V over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_element

    def rope_frequencies(self) -> NDArray[np.float64]:
        """Radians per position of each rotary pair, [head_dim / 2]."""
        plain = self.rope_theta ** (-np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim)
        return plain if self.rope_scaling is None else self.rope_scaling.apply(plain)

    def rope_table(self, positions: int) -> NDArray[np.float32]:
        """Cosines then sines, [positions, head_dim]: computed in float64, rounded once."""
        angles = np.arange(positions, dtype=np.float64)[:, None] * self.rope_frequencies()
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

"""Canonical weights: what loaders produce and backends pack. numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Format = Literal["f32", "bf16", "q4_0", "q4_1", "q8_0"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One matrix [rows, cols] or vector [rows] as stored: bf16 as uint16 bits, f32 as float32, q* as raw GGUF blocks.

    `data` of a quantised matrix is uint8 [rows, bytes per row], blocks of 32 along the columns.
    """

    format: Format
    shape: tuple[int, ...]
    data: NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; rows of q and k are in half-split rotary order (as in safetensors checkpoints).

    Matrices are [out, in]: q [heads*head_dim, hidden], k and v [kv_heads*head_dim, hidden], o [hidden, heads*head_dim],
    gate and up [intermediate, hidden], down [hidden, intermediate]. Norms are float32 [hidden].
    """

    input_norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    post_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    v_bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a decoder. `lm_head` is `embedding` itself when tied."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    lm_head: Tensor

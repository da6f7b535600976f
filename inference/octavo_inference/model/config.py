"""The one description of a decoder: sizes and flags that cover a family of models."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama-3 style frequency scaling (`rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


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
    extra_stop_ids: tuple[int, ...] = field(default=())

    @property
    def qkv_width(self) -> int:
        """Columns of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Size of one token's K and V over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_element

"""The configuration of a decoder: sizes and flags that cover all natively supported families."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo_inference.models.rope import Rope, RopeScaling

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder: RMSNorm, rotary positions, grouped-query attention, gated MLP. Flags are neutral by default.

    Sizes are counts of elements. `digest` identifies the weights (root of the block hash chain).

    `query_scale` multiplies scores (default head_dim ** -0.5); a softcap c bends x to c * tanh(x / c).
    `windows[layer]`: sliding window in tokens, the token itself included (None or no tuple: full attention).
    `rotated[layer]` is false for layers without rotary positions (no tuple: all have them). Layers with a window use
    `local_rope_theta`, unscaled, if given. `rotary_dim`: leading elements of a head that are rotated (default all).
    `qk_norm`: RMSNorm over each head of q and k before the rotation. `output_norms`: RMSNorm of the outputs of
    attention and MLP before they are added to the residual stream, times `residual_scale`.
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
    rotary_dim: int | None = None
    local_rope_theta: float | None = None
    rotated: tuple[bool, ...] = ()
    windows: tuple[int | None, ...] = ()
    query_scale: float | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    output_norms: bool = False
    digest: str = ""

    @property
    def score_scale(self) -> float:
        """Factor on the products of queries and keys."""
        return self.head_dim**-0.5 if self.query_scale is None else self.query_scale

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Size of one token's K and V over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_element

    def window(self, layer: int) -> int | None:
        """The layer's sliding window in tokens, None for full attention."""
        return self.windows[layer] if self.windows else None

    def rope(self, layer: int) -> Rope | None:
        """The rotation of a layer, None where there is none."""
        if self.rotated and not self.rotated[layer]:
            return None
        dim = self.rotary_dim or self.head_dim
        if self.local_rope_theta is not None and self.window(layer) is not None:
            return Rope(self.local_rope_theta, dim)
        return Rope(self.rope_theta, dim, self.rope_scaling)

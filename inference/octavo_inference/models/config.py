"""The configuration of a decoder or encoder: sizes and flags that cover all natively supported families."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo_inference.models.layers import Experts, LatentAttention, LayerParts, StateLayer
from octavo_inference.models.rope import Rope, RopeScaling
from octavo_inference.models.task import Task
from octavo_protocol.engine_settings import PoolingName

Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu2", "xielu"]
QkNorm = Literal["head", "whole"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model: RMSNorm, rotary positions, grouped-query attention, gated MLP. Flags are neutral by default.

    Sizes are counts of elements. `digest` identifies the weights (root of the block hash chain).

    `query_scale` multiplies scores (default head_dim ** -0.5); a softcap c bends x to c * tanh(x / c).
    `windows[layer]`: sliding window in tokens, the token itself included (None or no tuple: full attention).
    `rotated[layer]` is false for layers without rotary positions (no tuple: all have them). Layers with a window use
    `local_rope_theta`, unscaled, if given. `rotary_dim`: leading elements of a head that are rotated (default all).
    `qk_norm`: norm over each head of q and k before the rotation, or over all heads together ("whole"); with
    `qk_norm_rotated`, after the rotation, in layers that have one. `output_norms`: norm of the outputs of attention and
    MLP before they are added to the residual stream, times `residual_scale`. `input_norms` is false where nothing is
    normed before them.
    `layer_norm`: LayerNorm (the mean subtracted) in the place of RMSNorm. `post_residual_norms` (BERT): the norms come
    after the sum with the residual stream, which they replace; there is none before attention and MLP.

    `parts[layer]`: what a layer consists of, where not attention and a dense MLP of the model's sizes. `experts`,
    `latent` and `state` describe the model's mixture of experts, latent attention and state layers. With `latent`,
    `kv_heads` is 1, because all heads share the latents, `head_dim` is that of queries, and `rotary_dim` that of the
    shared key.
    `chunks[layer]`: tokens attend only within chunks of so many positions (Llama 4; None: no chunks). `sinks`: each
    head has a logit that takes part in its softmax without a value. `attention_gate`: the output of attention is
    multiplied by the sigmoid of a product with the layer's input. `alibi`: scores fall with distance, by each head's
    slope times this factor (0: no ALiBi). `learned_positions`: the embedding of positions has so many rows, 0 for none.
    `bidirectional`: a token attends to all tokens of its sequence, or to those at most half a window away; all of them
    are in one step. `parallel`: attention and MLP both read the residual stream before the layer; `shared_norm`: one
    norm for both. `gated` is false for MLPs of two matrices. `qkv_clip`: limit of the values of q, k and v, after their
    norm. `query_temperature` (Llama 4): (floor positions, factor) of layers without rotation:
    q *= 1 + factor * ln(1 + floor((p + 1) / floor)).

    `task`: "generate" for models that predict tokens; "embed" for those without such a head, "score" for those with a
    head that scores a pair of texts (`models.pooled_head`). `pooling`: that of their hidden states, where neither
    settings nor files of sentence-transformers name one. `added_ids`: so many of the last ids of `vocab` are not the
    model's (`models.added_ids`).
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
    head_bias: bool = False
    qk_norm: QkNorm | None = None
    qk_norm_rotated: bool = False
    input_norms: bool = True
    output_norms: bool = False
    layer_norm: bool = False
    post_residual_norms: bool = False
    embedding_norm: bool = False
    parallel: bool = False
    shared_norm: bool = False
    gated: bool = True
    sinks: bool = False
    attention_gate: bool = False
    alibi: float = 0.0
    learned_positions: int = 0
    bidirectional: bool = False
    qkv_clip: float | None = None
    query_temperature: tuple[float, float] | None = None
    chunks: tuple[int | None, ...] = ()
    parts: tuple[LayerParts, ...] = ()
    experts: Experts | None = None
    latent: LatentAttention | None = None
    state: StateLayer | None = None
    task: Task = "generate"
    pooling: PoolingName = "last"
    digest: str = ""
    added_ids: int = 0

    @property
    def own_vocab(self) -> int:
        """Number of token ids of the model itself: those behind are for tokens that adapters add."""
        return self.vocab - self.added_ids

    @property
    def score_scale(self) -> float:
        """Factor on the products of queries and keys."""
        return self.head_dim**-0.5 if self.query_scale is None else self.query_scale

    @property
    def value_dim(self) -> int:
        """Elements of a head's value, which are those of its output."""
        return self.head_dim if self.latent is None else self.latent.value_dim

    def part(self, layer: int) -> LayerParts:
        """What a layer consists of, with the model's sizes where it has none of its own."""
        part = self.parts[layer] if self.parts else LayerParts()
        return LayerParts(
            part.attention,
            part.state,
            part.feed_forward,
            part.heads or self.heads,
            part.kv_heads or self.kv_heads,
            part.intermediate or self.intermediate,
            part.input_norm,
        )

    @property
    def attention_layers(self) -> int:
        """Number of layers with K and V, or latents, in the pool."""
        return sum(part.attention for part in self.parts) if self.parts else self.layers

    @property
    def state_layers(self) -> int:
        """Number of layers with a state per sequence."""
        return sum(part.state for part in self.parts)

    @property
    def state_bytes(self) -> int:
        """Size of the states of one sequence over all layers, in float32."""
        return 0 if self.state is None else 4 * self.state.shape.elements * self.state_layers

    def attention_index(self, layer: int) -> int:
        """The number of a layer among those with attention: its place in the pool."""
        return sum(part.attention for part in self.parts[:layer]) if self.parts else layer

    def state_index(self, layer: int) -> int:
        """The number of a layer among those with a state."""
        return sum(part.state for part in self.parts[:layer])

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Size of one token's K and V, or latents, over all layers."""
        if self.latent is not None:
            return self.attention_layers * self.latent.cached_dim * bytes_per_element
        heads = sum((part.kv_heads or self.kv_heads) * part.attention for part in self.parts)
        return 2 * (heads if self.parts else self.layers * self.kv_heads) * self.head_dim * bytes_per_element

    def window(self, layer: int) -> int | None:
        """The layer's sliding window in tokens, None for full attention."""
        return self.windows[layer] if self.windows else None

    def chunk(self, layer: int) -> int | None:
        """The size of the layer's chunks in tokens, None where attention crosses them."""
        return self.chunks[layer] if self.chunks else None

    def rope(self, layer: int) -> Rope | None:
        """The rotation of a layer, None where there is none."""
        if self.rotated and not self.rotated[layer]:
            return None
        dim = self.rotary_dim or self.head_dim
        if self.local_rope_theta is not None and self.window(layer) is not None:
            return Rope(self.local_rope_theta, dim)
        return Rope(self.rope_theta, dim, self.rope_scaling)

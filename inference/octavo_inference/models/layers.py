"""The kinds of layer that a decoder is made of, besides grouped-query attention and a dense MLP. Sizes are elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FeedForward = Literal["dense", "experts", "none"]


@dataclass(frozen=True, slots=True)
class LayerParts:
    """What one layer consists of: mixers, whose outputs are added, then a feed-forward part.

    `attention`: it has softmax attention (of the model's kind: grouped-query, or latent). `state`: it has the model's
    state layer. A size of None is the model's own; pruned models have layers of unlike sizes. `input_norm` is false
    for a layer that has none before its mixers, where others have one (the first of ModernBERT).
    """

    attention: bool = True
    state: bool = False
    feed_forward: FeedForward = "dense"
    heads: int | None = None
    kv_heads: int | None = None
    intermediate: int | None = None
    input_norm: bool = True


Scoring = Literal["softmax", "sigmoid", "softmax_of_chosen", "softmax_of_near"]


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in the place of the MLP: a router chooses `chosen` of `count` gated MLPs for each token.

    scores = `scoring`(router(x)): softmax or sigmoid over all experts, or a softmax over the chosen logits alone.
    The experts with the largest scores (plus a correction, where the model has one) are chosen. If `groups` > 1, only
    from the `chosen_groups` groups with the largest score: that of their best expert, or the sum of their best two.
    Weights are the scores of the chosen without the correction; `normalized`: divided by their sum; times `scale`.
    `softmax_of_near` (PhiMoE, https://arxiv.org/abs/2409.12136): the experts are chosen one after another. Each one's
    weight is a softmax over those that are left and near it: (best - logit) / max(|logit|, best) is at most `near`.
    `input_scaled` (Llama 4): the weight multiplies an expert's input instead of its output.

    `shared`: inner elements of an MLP that every token uses, 0 for none; `shared_gate`: its output is multiplied by
    the sigmoid of a product with the input (Qwen2-MoE). `clamp` (gpt-oss): gate at most, up within ± this limit, and
    the activation is gate * sigmoid(1.702 gate) * (up + 1).
    """

    count: int
    chosen: int
    intermediate: int
    scoring: Scoring = "softmax"
    normalized: bool = True
    scale: float = 1.0
    groups: int = 1
    chosen_groups: int = 1
    group_score: Literal["best", "best_two"] = "best"
    input_scaled: bool = False
    shared: int = 0
    shared_gate: bool = False
    clamp: float | None = None
    near: float = 0.0


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek V2): the cache of a token is one vector for all heads.

    It has `kv_rank` elements of the normed latent, then `rope_dim` rotated elements of a shared key. A head's key is
    [`nope_dim` elements from the latent, the shared rotated key], its value `value_dim` elements from the latent.
    Queries come from a latent of `query_rank` elements, or directly (None). `norm_eps` is that of the norms of both
    latents.
    """

    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    query_rank: int | None = None
    norm_eps: float = 1e-6

    @property
    def cached_dim(self) -> int:
        """Elements that the pool holds for a token."""
        return self.kv_rank + self.rope_dim

    @property
    def key_dim(self) -> int:
        """Elements of a head's query and key."""
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True, slots=True)
class StateShape:
    """What a state layer keeps of a sequence, in float32.

    The last `conv_tokens` inputs of its convolution [conv_tokens, channels], and a recurrent state [heads, rows,
    columns] (no elements: none).
    """

    channels: int
    conv_tokens: int
    heads: int = 0
    rows: int = 0
    columns: int = 0

    @property
    def elements(self) -> int:
        """Elements of one layer's state of one sequence."""
        return self.channels * self.conv_tokens + self.heads * self.rows * self.columns


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A Mamba-2 mixer (https://arxiv.org/abs/2405.21060).

    `heads` of `head_dim`, a state of `state` elements for each element of a head; B and C shared by the heads of a
    group; a causal convolution over `kernel` tokens. `norm_groups`: the gated RMSNorm is over as many equal parts of
    the inner elements, 0 for no norm; `norm_first`: norm, then gate. dt is clamped to [`dt_least`, `dt_most`].
    """

    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int
    norm_groups: int = 1
    norm_first: bool = False
    dt_least: float = 0.0
    dt_most: float = float("inf")

    @property
    def inner(self) -> int:
        """Elements of all heads."""
        return self.heads * self.head_dim

    @property
    def input_rows(self) -> tuple[int, ...]:
        """Rows of the inputs: z, x, B, C, dt."""
        shared = self.groups * self.state
        return self.inner, self.inner, shared, shared, self.heads

    @property
    def shape(self) -> StateShape:
        """The convolution sees x, B and C."""
        channels = self.inner + 2 * self.groups * self.state
        return StateShape(channels, self.kernel - 1, self.heads, self.head_dim, self.state)


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """A gated delta net (https://arxiv.org/abs/2412.06464), as in Qwen3-Next.

    `key_heads` of `key_dim` for queries and keys, each shared by value_heads / key_heads adjacent heads of `value_dim`.
    A causal convolution over `kernel` tokens of queries, keys and values.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def inner(self) -> int:
        """Elements of all values."""
        return self.value_heads * self.value_dim

    @property
    def input_rows(self) -> tuple[int, ...]:
        """Rows of the inputs: queries, keys, values, z, b, a."""
        keys = self.key_heads * self.key_dim
        return keys, keys, self.inner, self.inner, self.value_heads, self.value_heads

    @property
    def shape(self) -> StateShape:
        """The convolution sees queries, keys and values."""
        channels = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
        return StateShape(channels, self.kernel - 1, self.value_heads, self.key_dim, self.value_dim)


@dataclass(frozen=True, slots=True)
class ShortConv:
    """LFM2's gated short convolution: out(C * conv(B * x)), causal over `kernel` tokens of `channels` elements."""

    channels: int
    kernel: int

    @property
    def inner(self) -> int:
        """Elements of the outputs."""
        return self.channels

    @property
    def input_rows(self) -> tuple[int, ...]:
        """Rows of the inputs: B, C, x."""
        return self.channels, self.channels, self.channels

    @property
    def shape(self) -> StateShape:
        """The convolution's inputs alone."""
        return StateShape(self.channels, self.kernel - 1)


StateLayer = Mamba2 | GatedDelta | ShortConv

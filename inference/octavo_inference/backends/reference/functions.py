"""The functions between the products of a decoder, on float32 rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor as Torch
from torch.nn.functional import gelu, relu, silu

from octavo_inference.backends.reference.tiles import optional
from octavo_inference.models.config import Activation, ModelConfig
from octavo_inference.models.weights import Tensor


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm, or LayerNorm with `centred`, over the last axis. The identity if there is no norm (`exists`)."""

    weight: Torch | None
    bias: Torch | None
    eps: float
    centred: bool
    exists: bool = True

    def __call__(self, x: Torch) -> Torch:
        """Normalize rows [..., width]; the weight may have leading axes of its own (heads)."""
        if not self.exists:
            return x
        if self.centred:
            x = x - x.mean(-1, keepdim=True)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        x = x if self.weight is None else x * self.weight
        return x if self.bias is None else x + self.bias


def norm_of(config: ModelConfig, weight: Tensor | None, bias: Tensor | None = None, *, exists: bool) -> Norm:
    """A norm of the model's kind, for rows as wide as `weight`."""
    return Norm(optional(weight), optional(bias), config.norm_eps, config.layer_norm, exists)


def activate(name: Activation, x: Torch, xielu: Torch | None = None) -> Torch:
    """An activation by its name; `xielu` is that of `LayerWeights`."""
    if xielu is not None:
        positive, negative = xielu  # https://arxiv.org/abs/2411.13010, with beta 0.5
        return torch.where(x > 0, positive * x * x, negative * (torch.expm1(x.clamp(max=-1e-6)) - x)) + 0.5 * x
    if name == "silu":
        return silu(x)
    if name == "relu":
        return relu(x)
    if name == "relu2":
        return relu(x).square()
    return gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


def softcap(x: Torch, cap: float | None) -> Torch:
    """`cap` * tanh(x / `cap`), the identity for None."""
    return x if cap is None else torch.tanh(x / cap) * cap


def rotate(x: Torch, table: Torch) -> Torch:
    """RoPE in half-split order: each pair (i, i + dim/2) of the first `dim` elements rotates by its angle.

    x [tokens, heads, head_dim], table [tokens, dim] with cosines, then sines.
    """
    dim = table.shape[1]
    cos, sin = table[:, None].chunk(2, dim=-1)
    first, second = x[..., :dim].chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, x[..., dim:]], dim=-1)

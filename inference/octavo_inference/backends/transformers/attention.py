"""Paged attention inside transformers' models: K and V go to a paged pool, each sequence sees its own blocks.

A model that calls transformers' attention interface runs over a ragged batch: all query tokens of all sequences form
one row. Every op works token by token, except attention, which a `ForwardPass` computes. The masks that the model
requests from transformers are kept as rules over positions. So every pattern of a layer (sliding, chunked) applies by
construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from octavo_inference.common.errors import UnsupportedModelError

NAME = "octavo"

Rule = Callable[[int, int, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Mask:
    """The keys that a query sees: `rule(0, 0, query position, key position)`; at most `reach` tokens back."""

    rule: Rule
    reach: int | None


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one attention call stores per token: K [heads, key_dim] and V [heads, value_dim]."""

    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class Scores:
    """How a call makes weights of its scores: `rule` is a mask, a window, or None for all earlier tokens.

    A softcap c maps a score x to c * tanh(x / c). `sinks` [heads] are logits without a value.
    """

    rule: Mask | int | None
    scale: float
    softcap: float | None
    sinks: Tensor | None


class ForwardPass(Protocol):
    """One forward pass of a batch of T query tokens."""

    @property
    def calls(self) -> int:
        """Attention calls so far: one for each layer."""
        ...

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """Store K and V of the pass's next attention call; its query tokens attend to their sequences.

        query [T, heads, dim], key [T, kv_heads, dim], value [T, kv_heads, value_dim] -> [T, heads, value_dim].
        """
        ...


_STEP: ContextVar[ForwardPass] = ContextVar("octavo step")


@contextmanager
def running(step: ForwardPass) -> Iterator[None]:
    """Attention calls inside the block use `step`."""
    token = _STEP.set(step)
    try:
        yield
    finally:
        _STEP.reset(token)


def register() -> None:
    """Register Octavo's attention with transformers as `NAME`."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, describe_mask)


def describe_mask(*, mask_function: Rule, local_size: int | None = None, use_vmap: bool = False, **_: Any) -> Mask:
    """Called by transformers to make a mask. Raises `UnsupportedModelError` for rules that depend on the content."""
    if use_vmap:
        raise UnsupportedModelError("its attention mask depends on more than positions")
    return Mask(mask_function, local_size)


def attend(
    module: torch.nn.Module,  # noqa: ARG001 -- part of the interface
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Mask | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of a layer: query [1, heads, T, dim], key and value [1, kv_heads, T, dim] -> [1, T, heads, dim].

    `s_aux` are attention sinks, one logit per head. Raises `UnsupportedModelError` for arguments without support.
    """
    if is_causal is False or position_bias is not None:
        raise UnsupportedModelError("its attention is not causal or adds a bias to the scores")
    if attention_mask is not None and not isinstance(attention_mask, Mask):
        raise UnsupportedModelError("it builds its own attention mask")
    scale = query.shape[3] ** -0.5 if scaling is None else float(scaling)
    # A mask that the model requested includes the window. Without a mask, the window is the only restriction.
    scores = Scores(attention_mask or sliding_window, scale, softcap, s_aux)
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return _STEP.get().attend(q, k, v, scores)[None], None

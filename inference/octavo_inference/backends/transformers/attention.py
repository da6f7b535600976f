"""Paged attention inside transformers' models: K and V go to a paged pool, each sequence sees its own blocks.

A model that calls transformers' attention interface runs over a ragged batch: all query tokens of all sequences form
one row. Every op works token by token, except attention, which is implemented here. The masks that the model requests
from transformers are built here too, as rules over positions. So every pattern of a layer (sliding, chunked) applies by
construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from octavo_inference.common.errors import UnsupportedModelError
from octavo_inference.core.gather import Batch
from octavo_inference.core.model_input import Int32

NAME = "octavo"
# Scores of one tile of queries: at most this many heads * queries * keys elements.
_TILE_ELEMENTS = 1 << 24
# Decoding sequences are padded to the longest of their group, which is longer by at most this factor.
_PADDING = 1.25

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

    @property
    def elements(self) -> int:
        """Elements per token."""
        return self.heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Sequences that attend together: B of them with q query tokens each, contexts padded to L tokens.

    `rows` [B * q] are their query tokens in the batch, `positions` [B, q], `context` [B, L] the slots of their tokens.
    """

    rows: Tensor
    positions: Tensor
    context: Tensor


@dataclass(slots=True)
class ForwardPass:
    """One forward pass. `pools` holds K and V [slots, heads, dim], in the order of the layers' attention calls.

    Without pools (a probe) the batch is one sequence from its start, and `shapes` records what the calls would store.
    """

    groups: list[AttentionGroup]
    slots: Tensor
    pools: list[tuple[Tensor, Tensor]] | None
    shapes: list[KvShape] = field(default_factory=list)
    calls: int = 0
    masks: dict[tuple[int, Mask | int | None], Tensor] = field(default_factory=dict)


_STEP: ContextVar[ForwardPass] = ContextVar("octavo step")


@contextmanager
def running(step: ForwardPass) -> Iterator[ForwardPass]:
    """Attention calls inside the block use `step`."""
    token = _STEP.set(step)
    try:
        yield step
    finally:
        _STEP.reset(token)


def register() -> None:
    """Register Octavo's attention with transformers as `NAME`."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, describe_mask)


def probe_step(tokens: int) -> ForwardPass:
    """A forward pass of one new sequence that stores nothing."""
    everything = torch.arange(tokens)
    return ForwardPass([AttentionGroup(everything, everything[None], everything[None])], everything, None)


def paged_step(batch: Batch, block_size: int, pools: list[tuple[Tensor, Tensor]]) -> ForwardPass:
    """The forward pass of a batch: decodes are grouped by length, every other sequence is its own group."""
    counts = np.diff(batch.query_start)
    lengths = batch.seq_len
    decoding = np.flatnonzero(counts == 1)
    decoding = decoding[np.argsort(-lengths[decoding], kind="stable")]
    members: list[NDArray[np.intp]] = []
    while len(decoding):
        near = lengths[decoding] * _PADDING >= lengths[decoding[0]]
        members.append(decoding[near])
        decoding = decoding[~near]
    members += [np.array([i]) for i in np.flatnonzero(counts > 1)]
    groups = [_group(batch, block_size, chosen, int(counts[chosen[0]])) for chosen in members]
    return ForwardPass(groups, _index(batch.slots[0]), pools)


def _group(batch: Batch, block_size: int, chosen: NDArray[np.intp], queries: int) -> AttentionGroup:
    rows = batch.query_start[chosen][:, None] + np.arange(queries)
    lengths = batch.seq_len[chosen]
    at = np.arange(int(lengths.max()))
    # A shorter sequence is padded with its own first token: no sequence reads another's memory.
    at = np.where(at < lengths[:, None], at, 0)
    table = batch.block_table[0, chosen]
    context = np.take_along_axis(table, at // block_size, axis=1) * block_size + at % block_size
    return AttentionGroup(_index(rows.reshape(-1)), _index(batch.positions[rows]), _index(context))


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
    step = _STEP.get()
    keys, values = _store(step, key[0].transpose(0, 1), value[0].transpose(0, 1))
    heads, dim = query.shape[1], query.shape[3]
    scale = dim**-0.5 if scaling is None else float(scaling)
    # A mask that the model requested includes the window. Without a mask, the window is the only restriction.
    rule = attention_mask or sliding_window
    result = torch.empty(query.shape[2], heads, value.shape[3], dtype=query.dtype)
    for number, group in enumerate(step.groups):
        allowed = _allowed(step, number, rule)
        first = group.context.shape[1] - allowed.shape[2]
        k = keys[group.context[:, first:]].transpose(1, 2)
        v = values[group.context[:, first:]].transpose(1, 2)
        count, queries = group.positions.shape
        q = query[0][:, group.rows].reshape(heads, count, queries, dim).transpose(0, 1)
        tile = max(1, _TILE_ELEMENTS // (heads * count * allowed.shape[2]))
        parts = [
            _softmax_product(q[:, :, i : i + tile], k, v, allowed[:, i : i + tile], scale, softcap, s_aux)
            for i in range(0, queries, tile)
        ]
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        result[group.rows] = mixed.transpose(1, 2).reshape(count * queries, heads, -1).to(result.dtype)
    return result[None], None


def _store(step: ForwardPass, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Store a layer's new K and V [T, heads, dim] in their slots; the pool to read from."""
    number = step.calls
    step.calls += 1
    if step.pools is None:
        step.shapes.append(KvShape(key.shape[1], key.shape[2], value.shape[2]))
        return key, value
    keys, values = step.pools[number]
    keys[step.slots] = key.to(keys.dtype)
    values[step.slots] = value.to(values.dtype)
    return keys, values


def _allowed(step: ForwardPass, number: int, rule: Mask | int | None) -> Tensor:
    """The keys that each query of a group sees, of the group's last keys: [B, q, keys]. Cached by rule."""
    cached = step.masks.get((number, rule))
    if cached is not None:
        return cached
    group = step.groups[number]
    reach = rule.reach if isinstance(rule, Mask) else rule
    first = 0 if reach is None else max(0, int(group.positions.min()) - reach + 1)
    at = torch.arange(first, group.context.shape[1])[None, None]
    positions = group.positions[:, :, None]
    allowed = at <= positions
    if isinstance(rule, Mask):
        allowed = allowed & rule.rule(0, 0, positions, at)
    elif rule is not None:
        allowed = allowed & (at > positions - rule)
    step.masks[number, rule] = allowed
    return allowed


def _softmax_product(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """softmax(q k') v of q [B, heads, q, dim] over k, v [B, kv_heads, L, dim] -> [B, heads, q, value dim]."""
    batch, heads, queries, dim = q.shape
    shared = heads // k.shape[1]
    # Heads that share a K become additional queries of it, so that K is never repeated.
    grouped = q.reshape(batch, k.shape[1], shared * queries, dim).to(k.dtype)
    mask = allowed[:, None, None].expand(-1, -1, shared, -1, -1).reshape(batch, 1, shared * queries, -1)
    if softcap is None and sinks is None:
        mixed = scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scale)
    else:
        scores = (grouped @ k.transpose(2, 3)).float() * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores.masked_fill(~mask, -torch.inf)
        if sinks is not None:
            column = sinks.float().reshape(1, k.shape[1], shared, 1).expand(batch, -1, -1, queries)
            scores = torch.cat([scores, column.reshape(batch, k.shape[1], shared * queries, 1)], dim=3)
        weights = torch.softmax(scores, dim=3)[..., : k.shape[2]]
        mixed = weights.to(v.dtype) @ v
    return mixed.reshape(batch, heads, queries, -1)


def _index(values: Int32 | NDArray[np.intp]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values).astype(np.int64))

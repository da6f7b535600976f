"""Attention in torch: the keys of each sequence are gathered from the pool, for every rule of a mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from octavo_inference.backends.transformers.attention import KvShape, Mask, Scores
from octavo_inference.core.gather import Batch

Read = Callable[[Tensor], tuple[Tensor, Tensor]]
"""K [B, L, kv_heads, dim] and V [B, L, kv_heads, value_dim] of slots [B, L]."""

# Scores of one tile of queries: at most this many heads * queries * keys elements.
_TILE_ELEMENTS = 1 << 24
# Decoding sequences are padded to the longest of their group, which is longer by at most this factor.
_PADDING = 1.25
# Keys of a group, padding included, unless one sequence has more: they are copied out of the pool.
_GATHERED = 1 << 16


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Sequences that attend together: B of them with q query tokens each, contexts padded to L tokens.

    `rows` [B * q] are their query tokens in the batch, `positions` [B, q], `context` [B, L] the slots of their tokens.
    """

    rows: Tensor
    positions: Tensor
    context: Tensor


@dataclass(slots=True)
class GatheredAttention:
    """Attention of a step's groups. Masks are computed once for all layers with the same rule."""

    groups: list[AttentionGroup]
    masks: dict[tuple[int, Mask | int | None], Tensor] = field(default_factory=dict)

    def attend(self, query: Tensor, read: Read, scores: Scores) -> Tensor:
        """Attention of query [T, heads, dim] over keys that `read` gathers: [T, heads, value_dim]."""
        heads, dim = query.shape[1:]
        parts = []
        for number, group in enumerate(self.groups):
            allowed = self._allowed(number, scores.rule)
            keys, values = read(group.context[:, group.context.shape[1] - allowed.shape[2] :])
            k, v = keys.transpose(1, 2), values.transpose(1, 2)
            count, queries = group.positions.shape
            q = query[group.rows].view(count, queries, heads, dim).transpose(1, 2)
            tile = max(1, _TILE_ELEMENTS // (heads * count * allowed.shape[2]))
            mixed = [
                _softmax_product(q[:, :, i : i + tile], k, v, allowed[:, i : i + tile], scores)
                for i in range(0, queries, tile)
            ]
            parts.append(torch.cat(mixed, dim=2).transpose(1, 2).reshape(count * queries, heads, -1))
        result = torch.empty(len(query), heads, parts[0].shape[2], dtype=query.dtype, device=query.device)
        for group, part in zip(self.groups, parts, strict=True):
            result[group.rows] = part.to(result.dtype)
        return result

    def _allowed(self, number: int, rule: Mask | int | None) -> Tensor:
        """The keys that each query of a group sees, of the group's last keys: [B, q, keys]."""
        cached = self.masks.get((number, rule))
        if cached is not None:
            return cached
        group = self.groups[number]
        reach = rule.reach if isinstance(rule, Mask) else rule
        first = 0 if reach is None else max(0, int(group.positions.min()) - reach + 1)
        at = torch.arange(first, group.context.shape[1], device=group.context.device)[None, None]
        positions = group.positions[:, :, None]
        allowed = at <= positions
        if isinstance(rule, Mask):
            allowed = allowed & rule.rule(0, 0, positions, at)
        elif rule is not None:
            allowed = allowed & (at > positions - rule)
        self.masks[number, rule] = allowed
        return allowed


@dataclass(slots=True)
class RecordedPass:
    """The forward pass of one new sequence that stores nothing: `shapes` are what its calls would store."""

    attention: GatheredAttention
    shapes: list[KvShape] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """Attention calls so far."""
        return len(self.shapes)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """Attention over the pass's own K and V."""
        self.shapes.append(KvShape(key.shape[1], key.shape[2], value.shape[2]))
        return self.attention.attend(query, lambda slots: (key[slots], value[slots]), scores)


def recorded_pass(tokens: int, device: torch.device) -> RecordedPass:
    """A pass of one new sequence of so many tokens."""
    everything = torch.arange(tokens, device=device)
    return RecordedPass(GatheredAttention([AttentionGroup(everything, everything[None], everything[None])]))


def gathered(batch: Batch, block_size: int, device: torch.device) -> GatheredAttention:
    """Attention of a batch: decodes are grouped by length, every other sequence is its own group."""
    counts = np.diff(batch.query_start)
    members = [
        *_decodes(np.flatnonzero(counts == 1), batch.seq_len),
        *(np.array([i]) for i in np.flatnonzero(counts > 1)),
    ]
    return GatheredAttention([_group(batch, block_size, chosen, int(counts[chosen[0]]), device) for chosen in members])


def _decodes(decoding: NDArray[np.intp], lengths: NDArray[np.int32]) -> Iterator[NDArray[np.intp]]:
    """Sequences of similar lengths, the longest first."""
    decoding = decoding[np.argsort(-lengths[decoding], kind="stable")]
    while len(decoding):
        longest = int(lengths[decoding[0]])
        near = int(np.count_nonzero(lengths[decoding] * _PADDING >= longest))
        taken = min(near, max(1, _GATHERED // longest))
        yield decoding[:taken]
        decoding = decoding[taken:]


def _group(
    batch: Batch, block_size: int, chosen: NDArray[np.intp], queries: int, device: torch.device
) -> AttentionGroup:
    rows = batch.query_start[chosen][:, None] + np.arange(queries)
    lengths = batch.seq_len[chosen]
    at = np.arange(int(lengths.max()))
    # A shorter sequence is padded with its own first token: no sequence reads another's memory.
    at = np.where(at < lengths[:, None], at, 0)
    table = batch.block_table[0, chosen]
    context = np.take_along_axis(table, at // block_size, axis=1) * block_size + at % block_size
    return AttentionGroup(
        as_index(rows.reshape(-1), device), as_index(batch.positions[rows], device), as_index(context, device)
    )


def as_index(values: NDArray[np.integer], device: torch.device) -> Tensor:
    """Integers as an index of tensors on `device`."""
    return torch.from_numpy(np.ascontiguousarray(values).astype(np.int64)).to(device)


def _softmax_product(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scores: Scores) -> Tensor:
    """softmax(q k') v of q [B, heads, q, dim] over k, v [B, kv_heads, L, dim] -> [B, heads, q, value dim]."""
    batch, heads, queries, dim = q.shape
    shared = heads // k.shape[1]
    # Heads that share a K become additional queries of it, so that K is never repeated.
    grouped = q.reshape(batch, k.shape[1], shared * queries, dim).to(k.dtype)
    mask = allowed[:, None, None].expand(-1, -1, shared, -1, -1).reshape(batch, 1, shared * queries, -1)
    if scores.softcap is None and scores.sinks is None:
        mixed = scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scores.scale)
    else:
        logits = (grouped @ k.transpose(2, 3)).float() * scores.scale
        if scores.softcap is not None:
            logits = torch.tanh(logits / scores.softcap) * scores.softcap
        logits = logits.masked_fill(~mask, -torch.inf)
        if scores.sinks is not None:
            column = scores.sinks.float().reshape(1, k.shape[1], shared, 1).expand(batch, -1, -1, queries)
            logits = torch.cat([logits, column.reshape(batch, k.shape[1], shared * queries, 1)], dim=3)
        weights = torch.softmax(logits, dim=3)[..., : k.shape[2]]
        mixed = weights.to(v.dtype) @ v
    return mixed.reshape(batch, heads, queries, -1)

"""Ragged batches over a paged pool, and what attention over them should give."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from octavo_inference.backends.cuda.kernels.attention import attend
from octavo_inference.backends.cuda.kernels.launch_configs import AttentionTile
from octavo_inference.backends.cuda.kernels.split_kv_reduce import partial_size, partial_views
from octavo_inference.backends.cuda.pool import KvPool, allocate_pool

CPU = torch.device("cpu")
SENTINEL = 77.0
LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}


@dataclass
class Paged:
    """Sequences of (length, query tokens) in a pool whose unused slots hold garbage."""

    q: Tensor
    pool: KvPool
    block_table: Tensor
    query_start: Tensor
    seq_len: Tensor
    row: Tensor | None = None
    """Of the block table, for each sequence; None: they are in order."""
    keys: list[Tensor] = field(default_factory=list)
    """What attention should see of each sequence: [length, kv_heads, dim], as stored."""
    values: list[Tensor] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return int(self.query_start[-1] - self.query_start[0])


def make(
    sequences: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    dim: int,
    *,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    padding: int = 0,
    seed: int = 0,
) -> Paged:
    random = torch.Generator().manual_seed(seed)
    needed = [-(-length // block_size) for length, _ in sequences]
    num_blocks = sum(needed) + 2
    pool = allocate_pool(
        layers=1,
        num_blocks=num_blocks,
        kv_heads=kv_heads,
        block_size=block_size,
        head_dim=dim,
        dtype=kv_dtype or dtype,
        device=CPU,
    )
    data, scales = pool.layer(0)
    if data.dtype == torch.int8:
        data.fill_(-128)
    else:
        data.copy_(torch.full(data.shape, float("nan")))
    if scales is not None:
        scales.fill_(float("nan"))
    # No block is where its number in the sequence would suggest, and entries behind the last one are valid blocks.
    order = torch.randperm(num_blocks, generator=random).to(torch.int32)
    table = torch.randint(0, num_blocks, (len(sequences), max(needed, default=0) + 1), generator=random).to(torch.int32)
    start = torch.tensor([0, *(count for _, count in sequences)]).cumsum(0).to(torch.int32)
    batch = Paged(
        q=torch.randn(int(start[-1]) + padding, heads, dim, generator=random).to(dtype),
        pool=pool,
        block_table=table,
        query_start=start,
        seq_len=torch.tensor([length for length, _ in sequences], dtype=torch.int32),
    )
    for i, (length, _) in enumerate(sequences):
        table[i, : needed[i]] = order[sum(needed[:i]) :][: needed[i]]
        at = torch.arange(length)
        blocks, offsets = table[i, at // block_size].long(), at % block_size
        for which, kept in enumerate((batch.keys, batch.values)):
            x = torch.randn(length, kv_heads, dim, generator=random)
            if scales is not None:
                scale = x.abs().amax(-1) / LARGEST[data.dtype]
                x = x / scale[..., None]
                x = x.round() if data.dtype == torch.int8 else x
                scales[blocks, which, :, offsets] = scale
            stored = x.to(data.dtype)
            data.view(torch.uint8)[blocks, which, :, offsets] = stored.view(torch.uint8)
            kept.append(stored.float() * scale[..., None] if scales is not None else stored.float())
    return batch


def run(
    batch: Paged, *, segments: int = 1, tile: AttentionTile | None = None, scale: float = 0.2, **how: Any
) -> Tensor:
    out = torch.full_like(batch.q, SENTINEL)
    tokens, heads, dim = batch.q.shape
    shape = {"tokens": tokens, "heads": heads, "head_dim": dim, "segments": segments}
    partial = None
    if segments > 1:  # garbage where no result is written
        partial = partial_views(torch.full((partial_size(**shape),), float("nan")), **shape)
    attend(
        batch.q,
        *batch.pool.layer(0),
        batch.block_table,
        torch.arange(len(batch.seq_len), dtype=torch.int32) if batch.row is None else batch.row,
        batch.query_start,
        batch.seq_len,
        out,
        scale=scale,
        partial=partial,
        tile=tile,
        **how,
    )
    assert (out[batch.tokens :] == SENTINEL).all(), "padding rows were written"
    return out[: batch.tokens]


def expected(
    batch: Paged,
    *,
    scale: float = 0.2,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    tree: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Attention in float64, sequence by sequence, with a mask written out."""
    out = torch.empty(batch.tokens, *batch.q.shape[1:], dtype=torch.float64)
    for i in range(len(batch.seq_len)):
        start, end = int(batch.query_start[i]), int(batch.query_start[i + 1])
        if start == end:
            continue
        q = batch.q[start:end].double()
        group = q.shape[1] // batch.keys[i].shape[1]
        k = batch.keys[i].double().repeat_interleave(group, 1)
        v = batch.values[i].double().repeat_interleave(group, 1)
        score = torch.einsum("thd,khd->htk", q, k) * scale
        if softcap is not None:
            score = torch.tanh(score / softcap) * softcap
        context = len(k) - (end - start)
        key = torch.arange(len(k))
        query = torch.arange(context, len(k))
        seen = key[None] <= query[:, None]
        if tree is not None:
            seen = (torch.arange(len(k)) < context).repeat(end - start, 1)
            mask = tree[start:end, : end - start].bool()
            seen[:, context : context + mask.shape[1]] = mask
            if positions is not None:
                query = positions[start:end].long()
                key = torch.cat([key[:context], query])
        if window is not None:
            seen &= query[:, None] - key[None] < window
        score = score.masked_fill(~seen, float("-inf"))
        if sinks is not None:
            column = sinks.double()[:, None, None].expand(-1, end - start, 1)
            weight = torch.softmax(torch.cat([score, column], -1), -1)[..., :-1]
        else:
            weight = torch.softmax(score, -1)
        out[start:end] = torch.einsum("htk,khd->thd", weight, v)
    return out

"""Ragged batches over a paged pool and the expected attention output, for the cases and for the tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo_inference.backends.cuda.kernels.attention import attend
from octavo_inference.backends.cuda.kernels.decode_parts import decode_parts
from octavo_inference.backends.cuda.kernels.launch_configs import AttentionTile
from octavo_inference.backends.cuda.kernels.split_kv_reduce import partial_size, partial_views
from octavo_inference.backends.cuda.pool import KvPool, allocate_pool

CPU = torch.device("cpu")
SENTINEL = 77.0
LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}


@dataclass
class Paged:
    """Sequences in a pool whose unused slots hold garbage."""

    q: Tensor
    pool: KvPool
    block_table: Tensor
    query_start: Tensor
    seq_len: Tensor
    row: Tensor | None = None
    """Row of the block table for each sequence; None: in order."""

    @property
    def tokens(self) -> int:
        """Number of query tokens; the rows of q after them are padding."""
        return int(self.query_start[-1] - self.query_start[0])

    def context(self, i: int) -> tuple[Tensor, Tensor]:
        """K and V of a sequence in float64, as stored: [length, kv_heads, dim]."""
        data, scales = self.pool.layer(0)
        at, size = torch.arange(int(self.seq_len[i]), device=data.device), data.shape[3]
        blocks = self.block_table[i if self.row is None else int(self.row[i])][at // size].long()
        offsets = at % size
        # Viewed as bytes: indexing does not support float8.
        kept = data.view(torch.uint8)[blocks, :, :, offsets].view(data.dtype).double()
        if scales is not None:
            kept = kept * scales[blocks, :, :, offsets].double()[..., None]
        return kept[:, 0], kept[:, 1]


def make(
    sequences: Sequence[tuple[int, int]], heads: int, kv_heads: int, dim: int, *, block_size: int = 16,
    dtype: torch.dtype = torch.float32, kv_dtype: torch.dtype | None = None, padding: int = 0, seed: int = 0,
    device: torch.device = CPU, shuffled: bool = False,
) -> Paged:  # fmt: skip
    """Sequences of (length, query tokens). `shuffled`: their rows of the block table are in random order."""
    torch.manual_seed(seed)
    needed = [-(-length // block_size) for length, _ in sequences]
    num_blocks = sum(needed) + 2
    pool = allocate_pool(
        layers=1, num_blocks=num_blocks, kv_heads=kv_heads, block_size=block_size, head_dim=dim,
        dtype=kv_dtype or dtype, device=device,
    )  # fmt: skip
    data, scales = pool.layer(0)
    if data.dtype == torch.int8:
        data.fill_(-128)
    else:
        data.copy_(torch.full((), float("nan"), device=device).expand(data.shape))
    if scales is not None:
        scales.fill_(float("nan"))
    # Blocks are in random order, and entries after a sequence's last one are valid blocks.
    order = torch.randperm(num_blocks).to(torch.int32)
    table = torch.randint(0, num_blocks, (len(sequences), max(needed, default=0) + 1)).to(torch.int32)
    for i, (length, _) in enumerate(sequences):
        table[i, : needed[i]] = order[sum(needed[:i]) :][: needed[i]]
        at = torch.arange(length)
        _store(data, scales, table[i, at // block_size].long().to(device), (at % block_size).to(device))
    start = torch.tensor([0, *(count for _, count in sequences)]).cumsum(0).to(torch.int32)
    rows = torch.randperm(len(sequences)) if shuffled else torch.arange(len(sequences))
    return Paged(
        q=torch.randn(int(start[-1]) + padding, heads, dim, device=device).to(dtype),
        pool=pool,
        block_table=table[rows].to(device),
        query_start=start.to(device),
        seq_len=torch.tensor([length for length, _ in sequences], dtype=torch.int32, device=device),
        row=rows.argsort().to(device, torch.int32) if shuffled else None,
    )


def _store(data: Tensor, scales: Tensor | None, blocks: Tensor, offsets: Tensor) -> None:
    """Store random K and V of size one in these slots."""
    for which in (0, 1):
        x = torch.randn(len(blocks), data.shape[2], data.shape[4], device=data.device)
        if scales is not None:
            scale = x.abs().amax(-1) / LARGEST[data.dtype]
            x = x / scale[..., None]
            x = x.round() if data.dtype == torch.int8 else x
            scales[blocks, which, :, offsets] = scale
        data.view(torch.uint8)[blocks, which, :, offsets] = x.to(data.dtype).view(torch.uint8)


def split(sequences: Sequence[tuple[int, int]], *, shares: int, least_keys: int, device: torch.device = CPU) -> Tensor:
    """Parts of those sequences (length, query tokens) that have one query token."""
    lengths = np.array([length if queries == 1 else 0 for length, queries in sequences], np.int32)
    return torch.from_numpy(decode_parts(lengths, shares=shares, least_keys=least_keys)).to(device)


def launcher(
    batch: Paged, *, parts: Tensor | None = None, tile: AttentionTile | None = None, scale: float = 0.2, **how: Any
) -> tuple[Tensor, Callable[[], object]]:
    """The output tensor, filled with a sentinel, and the function that launches attention."""
    out = torch.full_like(batch.q, SENTINEL)
    _, heads, dim = batch.q.shape
    partial = None
    if parts is not None and len(parts) > len(batch.seq_len):
        shape = {"parts": len(parts), "heads": heads, "head_dim": dim}
        partial = partial_views(torch.full((partial_size(**shape),), float("nan"), device=out.device), **shape)
    row = batch.row
    if row is None:
        row = torch.arange(len(batch.seq_len), dtype=torch.int32, device=out.device)

    def launch() -> None:
        attend(
            batch.q, *batch.pool.layer(0), batch.block_table, row, batch.query_start, batch.seq_len, out, scale=scale,
            parts=parts, partial=partial, tile=tile, **how,
        )  # fmt: skip

    return out, launch


def run(batch: Paged, **how: Any) -> Tensor:
    """Launch and return the output; padding rows must stay unchanged."""
    out, launch = launcher(batch, **how)
    launch()
    assert (out[batch.tokens :] == SENTINEL).all(), "padding rows were written"  # noqa: S101  for tests
    return out[: batch.tokens]


def expected(
    batch: Paged, *, scale: float = 0.2, window: int | None = None, softcap: float | None = None,
    sinks: Tensor | None = None, chunk: int | None = None, slopes: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention in float64, sequence by sequence, with an explicit mask."""
    out = torch.empty(batch.tokens, *batch.q.shape[1:], dtype=torch.float64, device=batch.q.device)
    for i in range(len(batch.seq_len)):
        start, end = int(batch.query_start[i]), int(batch.query_start[i + 1])
        if start == end:
            continue
        q = batch.q[start:end].double()
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in batch.context(i))
        score = torch.einsum("thd,khd->htk", q, k) * scale
        if softcap is not None:
            score = torch.tanh(score / softcap) * softcap
        context = len(k) - (end - start)
        key = torch.arange(len(k), device=q.device)
        query = key[context:]
        seen = key[None] <= query[:, None]
        if slopes is not None:
            score = score - slopes.double()[:, None, None] * (query[:, None] - key[None])
        if chunk is not None:
            seen &= query[:, None] // chunk == key[None] // chunk
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

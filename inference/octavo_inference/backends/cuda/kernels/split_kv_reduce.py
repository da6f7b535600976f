"""Reduces the results of split-KV attention over a sequence's segments."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor as Torch


class Partial(NamedTuple):
    """Results of segments, float32: `acc` [T, heads, segments, head_dim], `top` and `total` [T, heads, segments].

    `top` is the largest score times log2(e), `total` the sum of 2 ** (score * log2(e) - top), and `acc` the sum of the
    values with these weights. `acc` of a segment with no keys (total 0) is arbitrary.
    """

    acc: Torch
    top: Torch
    total: Torch


def partial_size(*, tokens: int, heads: int, head_dim: int, segments: int) -> int:
    """Number of float32 elements of `partial_views`."""
    return tokens * heads * segments * (head_dim + 2)


def partial_views(buffer: Torch, *, tokens: int, heads: int, head_dim: int, segments: int) -> Partial:
    """A `Partial` of views at the start of a flat float32 buffer of at least `partial_size` elements."""
    rows = tokens * heads * segments
    shape = (tokens, heads, segments)
    return Partial(
        acc=buffer[: rows * head_dim].view(*shape, head_dim),
        top=buffer[rows * head_dim :][:rows].view(shape),
        total=buffer[rows * (head_dim + 1) :][:rows].view(shape),
    )


@triton.jit(do_not_specialize=["num_seqs"], do_not_specialize_on_alignment=["top", "total", "query_start", "bounds"])
def _reduce(
    acc, top, total, query_start, bounds, out, num_seqs, HEADS: tl.constexpr, DIM: tl.constexpr, SEGMENTS: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    if bounds is None:
        first = 0
        last = num_seqs
    else:
        first = tl.load(bounds)
        last = tl.load(bounds + 1)
    if (token < tl.load(query_start + first)) | (token >= tl.load(query_start + last)):
        return
    row = token.to(tl.int64) * HEADS + tl.program_id(1)
    parts = row * SEGMENTS + tl.arange(0, SEGMENTS)
    tops = tl.load(top + parts)
    totals = tl.load(total + parts)
    peak = tl.max(tops, 0)
    weights = tl.where(totals == 0, 0.0, tl.exp2(tops - peak))
    dims = tl.arange(0, D)
    mask = (totals != 0)[:, None] & (dims < DIM)[None, :]
    accs = tl.load(acc + parts[:, None] * DIM + dims[None, :], mask=mask, other=0.0)
    whole = tl.sum(totals * weights, 0)
    mixed = tl.sum(accs * weights[:, None], 0) / tl.where(whole == 0, 1.0, whole)
    tl.store(out + row * DIM + dims, mixed.to(out.dtype.element_ty), mask=dims < DIM)


def reduce_segments(partial: Partial, query_start: Torch, out: Torch, bounds: Torch | None = None) -> None:
    """Reduce `partial` into out [T, heads, head_dim], any float type; rows from query_start[-1] on stay unchanged.

    query_start [B + 1] int32; bounds as in `attention.attend`.
    Source: the second half of split-KV decoding (Flash-Decoding, Dao et al. 2023).
    """
    tokens, heads, segments, dim = partial.acc.shape
    _reduce[tokens, heads](
        *partial, query_start, bounds, out, len(query_start) - 1, HEADS=heads, DIM=dim, SEGMENTS=segments,
        D=triton.next_power_of_2(dim), num_warps=4,
    )  # fmt: skip

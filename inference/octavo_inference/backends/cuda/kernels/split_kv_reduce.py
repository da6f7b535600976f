"""Reduces the results of split-KV attention over a sequence's parts."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.decode_parts import PART_FIELDS
from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous


class Partial(NamedTuple):
    """Results of parts, float32: `acc` [P, heads, head_dim], `top` and `total` [P, heads].

    `top` is the largest score times log2(e), `total` the sum of 2 ** (score * log2(e) - top), and `acc` the sum of the
    values with these weights. `total` of a part with no visible keys is 0.
    """

    acc: Torch
    top: Torch
    total: Torch


def partial_size(*, parts: int, heads: int, head_dim: int) -> int:
    """Number of float32 elements of `partial_views`."""
    return parts * heads * (head_dim + 2)


def partial_views(buffer: Torch, *, parts: int, heads: int, head_dim: int) -> Partial:
    """A `Partial` of views at the start of a flat float32 buffer of at least `partial_size` elements."""
    rows = parts * heads
    return Partial(
        acc=buffer[: rows * head_dim].view(parts, heads, head_dim),
        top=buffer[rows * head_dim :][:rows].view(parts, heads),
        total=buffer[rows * (head_dim + 1) :][:rows].view(parts, heads),
    )


@triton.jit(do_not_specialize_on_alignment=["top", "total", "parts", "query_start"])
def _reduce(
    acc, top, total, parts, query_start, out, HEADS: tl.constexpr, DIM: tl.constexpr, FIELDS: tl.constexpr,
    TOGETHER: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    wait_for_previous()
    place = tl.program_id(0)
    count = tl.load(parts + place * FIELDS + 2)
    # The program of a sequence's first part reduces all of them.
    if (count < 2) | (tl.load(parts + place * FIELDS + 1) > 0):
        return
    head = tl.program_id(1)
    dims = tl.arange(0, D)
    peak = float("-inf")
    whole = 0.0
    mixed = tl.zeros([D], tl.float32)
    for done in range(0, count, TOGETHER):
        nth = done + tl.arange(0, TOGETHER)
        rows = (place + nth) * HEADS + head
        tops = tl.load(top + rows, mask=nth < count, other=float("-inf"))
        totals = tl.load(total + rows, mask=nth < count, other=0.0)
        mask = (nth < count)[:, None] & (dims < DIM)[None, :]
        accs = tl.load(acc + rows[:, None] * DIM + dims[None, :], mask=mask, other=0.0)
        higher = tl.maximum(peak, tl.max(tops, 0))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(tops - safe)
        shrink = tl.exp2(peak - safe)
        whole = whole * shrink + tl.sum(totals * weights, 0)
        mixed = mixed * shrink + tl.sum(accs * weights[:, None], 0)
        peak = higher
    token = tl.load(query_start + tl.load(parts + place * FIELDS))
    mixed /= tl.where(whole == 0, 1.0, whole)
    tl.store(out + (token.to(tl.int64) * HEADS + head) * DIM + dims, mixed.to(out.dtype.element_ty), mask=dims < DIM)


def reduce_parts(partial: Partial, parts: Torch, query_start: Torch, out: Torch) -> None:
    """Reduce `partial` into out [T, heads, head_dim], any float type, for sequences with several parts.

    parts [P, 3] int32 as of `decode_parts`; only as many as `partial` has room for can belong to such sequences.
    query_start [B + 1] int32. Source: the second half of split-KV decoding (Flash-Decoding, Dao et al. 2023).
    """
    room, heads, dim = partial.acc.shape
    _reduce[min(len(parts), room), heads](
        *partial, parts, query_start, out, HEADS=heads, DIM=dim, FIELDS=PART_FIELDS, TOGETHER=16,
        D=triton.next_power_of_2(dim), num_warps=4, **launch_options(),
    )  # fmt: skip

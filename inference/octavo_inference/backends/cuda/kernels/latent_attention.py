"""Attention over latents in the paged pool: one kernel for prefill chunks and decodes in one ragged batch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.decode_parts import PART_FIELDS
from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.latent_heads import LATENT_HEADS
from octavo_inference.backends.cuda.kernels.launch_configs import AttentionTile, dot_type, latent_tile
from octavo_inference.backends.cuda.kernels.paged_indexing import block_ids, find_sequence
from octavo_inference.backends.cuda.kernels.split_kv_reduce import Partial, reduce_parts


# Arguments that vary between steps must not be specialized: a new variant would compile while requests wait.
@triton.jit(
    do_not_specialize=["num_seqs", "table_stride"],
    do_not_specialize_on_alignment=["row", "query_start", "seq_len", "bounds", "parts", "top_out", "total_out"],
)
def _attend_latents(
    q, q_rope, pool, block_table, row, query_start, seq_len, bounds, parts, out, acc_out, top_out, total_out,
    scale, num_seqs, table_stride,
    HEADS: tl.constexpr, TOGETHER: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, R: tl.constexpr, E: tl.constexpr, DOT: tl.constexpr,
    FIELDS: tl.constexpr,
):  # fmt: skip
    BLOCK_Q: tl.constexpr = BLOCK_M // TOGETHER
    CACHED: tl.constexpr = RANK + ROPE
    wait_for_previous()
    # The programs of a query block, or of a part, are neighbours: they share its latents in the L2 cache.
    group = tl.program_id(0)
    if parts is None:
        # A prompt's last query block has the most keys and starts first, so that short programs fill the last wave.
        place = tl.num_programs(1) - 1 - tl.program_id(1)
        part, count = 0, 1
        base = 0
        if bounds is not None:
            base = tl.load(bounds)
            num_seqs = tl.load(bounds + 1) - base
            if num_seqs == 0:
                return
        before = tl.load(query_start + base)
        nth_seq = find_sequence(query_start + base, before, num_seqs, place, BLOCK_Q)
        seq = base + nth_seq
        start = tl.load(query_start + seq)
        first = (place - (start - before) // BLOCK_Q - nth_seq) * BLOCK_Q
    else:
        place = tl.program_id(1)
        seq = tl.load(parts + place * FIELDS)
        part = tl.load(parts + place * FIELDS + 1)
        count = tl.load(parts + place * FIELDS + 2)
        if count == 0:
            return
        start = tl.load(query_start + seq)
        first = 0
    tokens = tl.load(query_start + seq + 1) - start
    if first >= tokens:
        return
    context = tl.load(seq_len + seq) - tokens  # keys before the step's tokens

    # Row m is query token m // TOGETHER of this program, and head m % TOGETHER of its heads.
    rows = tl.arange(0, BLOCK_M)
    nth = first + rows // TOGETHER
    head = group * TOGETHER + rows % TOGETHER
    live = (nth < tokens) & (rows < BLOCK_Q * TOGETHER) & (head < HEADS)
    ranks, ends = tl.arange(0, R), tl.arange(0, E)
    in_rank, in_rope = ranks < RANK, ends < ROPE
    row_mask = live[:, None] & in_rank[None, :]
    origin = (start + first).to(tl.int64) * HEADS  # only this may pass 2**31
    at = (rows // TOGETHER) * HEADS + head
    place_q = origin * RANK + at[:, None] * RANK + ranks[None, :]
    query = tl.load(q + place_q, mask=row_mask, other=0.0).to(DOT)
    place_rope = origin * ROPE + at[:, None] * ROPE + ends[None, :]
    turned = tl.load(q_rope + place_rope, mask=live[:, None] & in_rope[None, :], other=0.0).to(DOT)
    position = context + nth

    high = context + tl.minimum(first + BLOCK_Q, tokens)  # keys that any row sees
    tiles = tl.cdiv(high, BLOCK_N)
    begin = tiles * part // count
    end = tiles * (part + 1) // count
    ragged = (context + first + 1) // BLOCK_N  # all rows see all keys of the tiles before it

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, R], tl.float32)
    exponent = scale * 1.4426950408889634
    table = block_table + tl.load(row + seq).to(tl.int64) * table_stride
    lanes = tl.arange(0, BLOCK_N)
    # Block ids one tile ahead, as in attention.py.
    block = block_ids(table, begin * BLOCK_N + lanes, high, BLOCK_SIZE)
    for tile in range(begin, end):
        keys = tile * BLOCK_N + lanes
        stored = keys < high  # later slots are arbitrary, possibly NaN, and must not be read
        cached = pool + ((block * BLOCK_SIZE + keys % BLOCK_SIZE) * CACHED)[:, None]
        block = block_ids(table, keys + BLOCK_N, high, BLOCK_SIZE)
        latent = tl.load(cached + ranks[None, :], mask=stored[:, None] & in_rank[None, :], other=0.0).to(DOT)
        shared = tl.load(cached + RANK + ends[None, :], mask=stored[:, None] & in_rope[None, :], other=0.0).to(DOT)
        score = tl.dot(query, tl.trans(latent), input_precision="ieee")
        score = tl.dot(turned, tl.trans(shared), score, input_precision="ieee")
        if tile >= ragged:
            score = tl.where(keys[None, :] <= position[:, None], score, float("-inf"))

        higher = tl.maximum(top, tl.max(score, 1) * exponent)
        safe = tl.where(higher == float("-inf"), 0.0, higher)  # -inf while all keys of a row are masked
        weight = tl.exp2(score * exponent - safe[:, None])
        shrink = tl.exp2(top - safe)
        total = total * shrink + tl.sum(weight, 1)
        top = higher
        acc = tl.dot(weight.to(DOT), latent, acc * shrink[:, None], input_precision="ieee")

    if acc_out is not None:  # noqa: SIM102  decided when it compiles
        if count > 1:
            slot = place.to(tl.int64) * HEADS + head
            tl.store(top_out + slot, top, mask=live)
            tl.store(total_out + slot, total, mask=live)
            tl.store(acc_out + slot[:, None] * RANK + ranks[None, :], acc, mask=row_mask)
            return
    mixed = acc * (1.0 / tl.where(total == 0, 1.0, total))[:, None]
    tl.store(out + place_q, mixed.to(out.dtype.element_ty), mask=row_mask)


def attend_latents(
    q: Torch,
    q_rope: Torch,
    pool: Torch,
    block_table: Torch,
    row: Torch,
    query_start: Torch,
    seq_len: Torch,
    out: Torch,
    *,
    bounds: Torch | None = None,
    scale: float,
    parts: Torch | None = None,
    partial: Partial | None = None,
    tile: AttentionTile | None = None,
) -> None:
    """Sums of latents of a step's query tokens over their sequences' latents in the pool, the step's own included.

    q [T, heads, rank] are absorbed queries, q_rope [T, heads, rope] their rotated ends, out [T, heads, rank]. pool
    [num_blocks, block_size, rank + rope]: a layer of `KvPool`. All contiguous, and of float32, bfloat16 or float16. The
    other arguments are those of `attention.attend`. `partial` has room for sums of `rank` elements.

    Source: the absorbed form of DeepSeek-V2 (2024), section 2.1.2.
    """
    tokens, heads, rank = q.shape
    rope, sequences = q_rope.shape[2], len(seq_len)
    tile = tile or latent_tile(heads, q.dtype, decode=parts is not None)
    groups = triton.cdiv(heads, min(LATENT_HEADS, tile.rows))
    together = triton.cdiv(heads, groups)
    places = tokens // (tile.rows // together) + sequences if parts is None else len(parts)
    acc, top, total = partial or (None, None, None)
    _attend_latents[groups, places](
        q, q_rope, pool, block_table, row, query_start, seq_len, bounds, parts, out, acc, top, total,
        scale, sequences, block_table.stride(0),
        HEADS=heads, TOGETHER=together, RANK=rank, ROPE=rope, BLOCK_SIZE=pool.shape[1],
        BLOCK_M=tile.rows, BLOCK_N=tile.keys, R=triton.next_power_of_2(rank), E=max(16, triton.next_power_of_2(rope)),
        DOT=dot_type(q.dtype), FIELDS=PART_FIELDS, num_warps=tile.warps, num_stages=tile.stages, **launch_options(),
    )  # fmt: skip
    if parts is not None and partial is not None:
        reduce_parts(partial, parts, query_start, out)


def expand_heads(x: Torch, weights: Torch, out: Torch) -> None:
    """Multiply each head's rows by its own matrix: x [T, heads, K], weights [heads, K, N], out [T, heads, N].

    Tokens and heads of x and out may have any stride. All of one type.
    """
    torch.bmm(x.transpose(0, 1), weights, out=out.transpose(0, 1))

"""Paged attention: one kernel for prefill chunks, decodes and trees in one ragged batch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.launch_configs import AttentionTile, attention_tile, dot_type
from octavo_inference.backends.cuda.kernels.paged_indexing import bend, find_sequence, key_rows
from octavo_inference.backends.cuda.kernels.split_kv_reduce import Partial, reduce_segments


# Arguments that vary between steps must not be specialized: a new variant would compile while requests wait.
@triton.jit(
    do_not_specialize=["num_seqs", "table_stride", "tree_width"],
    do_not_specialize_on_alignment=["row", "query_start", "seq_len", "bounds", "positions", "top_out", "total_out"],
)
def _attend(
    q, kv, scales, block_table, row, query_start, seq_len, bounds, sinks, tree, positions, out, acc_out, top_out,
    total_out, scale, softcap, num_seqs, table_stride, tree_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    SEGMENTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = HEADS // KV_HEADS
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    LOG2E: tl.constexpr = 1.4426950408889634
    kv_head = tl.program_id(1)
    segment = tl.program_id(2)
    if bounds is None:
        base = 0
        sequences = num_seqs
    else:
        base = tl.load(bounds)
        sequences = tl.load(bounds + 1) - base
        if sequences == 0:
            return
    origin = tl.load(query_start + base)
    nth_seq = find_sequence(query_start + base, origin, sequences, tl.program_id(0), BLOCK_Q)
    seq = base + nth_seq
    start = tl.load(query_start + seq)
    count = tl.load(query_start + seq + 1) - start
    first = (tl.program_id(0) - (start - origin) // BLOCK_Q - nth_seq) * BLOCK_Q
    if first >= count:
        return
    context = tl.load(seq_len + seq) - count  # keys before the step's tokens

    # Row m is query token m // GROUP of this program, and head m % GROUP of the group that shares this KV head.
    rows = tl.arange(0, BLOCK_M)
    nth = first + rows // GROUP
    live = (nth < count) & (rows < BLOCK_Q * GROUP)
    head = kv_head * GROUP + rows % GROUP
    token = (start + nth).to(tl.int64)
    dims = tl.arange(0, D)
    inside = dims < DIM
    row_mask = live[:, None] & inside[None, :]
    at = (token * HEADS + head)[:, None] * DIM + dims[None, :]
    query = tl.load(q + at, mask=row_mask, other=0.0).to(DOT)

    if tree is None:
        position = context + nth
        earliest = context + first
        high = context + tl.minimum(first + BLOCK_Q, count)
    else:  # the tree decides which of the step's tokens are visible; `positions` has their order
        position = tl.load(positions + token, mask=live, other=0) if WINDOW else context + nth
        earliest = context
        high = context + count
    low = tl.maximum(earliest - WINDOW + 1, 0) if WINDOW else 0
    begin = low // BLOCK_N
    end = tl.cdiv(high, BLOCK_N)
    share = tl.cdiv(end - begin, SEGMENTS)

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if sinks is not None:  # a logit without a value, counted once
        top = tl.load(sinks + head).to(tl.float32) * LOG2E
        total += tl.where(segment == 0, 1.0, 0.0)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    table = block_table + tl.load(row + seq).to(tl.int64) * table_stride
    for tile in range(begin + segment * share, tl.minimum(begin + (segment + 1) * share, end)):
        keys = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        stored = keys < high  # later slots are arbitrary, possibly NaN, and must not be read
        key_row = key_rows(table, keys, stored, kv_head, KV_HEADS, BLOCK_SIZE)
        value_row = key_row + KV_HEADS * BLOCK_SIZE
        key = tl.load(
            kv + key_row[None, :] * DIM + dims[:, None], mask=stored[None, :] & inside[:, None], other=0.0
        ).to(DOT)
        score = tl.dot(query, key, input_precision="ieee") * scale
        if scales is not None:
            score *= tl.load(scales + key_row, mask=stored, other=0.0)[None, :]
        if softcap is not None:
            score = bend(score, softcap)

        if tree is None:
            seen = keys[None, :] <= position[:, None]
            key_position = keys
        else:
            nth_key = keys - context
            branch = live[:, None] & stored[None, :] & (nth_key >= 0)[None, :] & (nth_key < tree_width)[None, :]
            at_tree = token[:, None] * tree_width + nth_key[None, :]
            seen = stored[None, :] & ((nth_key < 0)[None, :] | (tl.load(tree + at_tree, mask=branch, other=0) != 0))
            key_position = keys
            if WINDOW:
                ordered = tl.load(positions + start + nth_key, mask=stored & (nth_key >= 0), other=0)
                key_position = tl.where(nth_key < 0, keys, ordered)
        if WINDOW:
            seen &= position[:, None] - key_position[None, :] < WINDOW
        score = tl.where(seen, score * LOG2E, float("-inf"))

        higher = tl.maximum(top, tl.max(score, 1))
        safe = tl.where(higher == float("-inf"), 0.0, higher)  # -inf while all keys of a row are masked
        weight = tl.exp2(score - safe[:, None])
        shrink = tl.exp2(top - safe)
        total = total * shrink + tl.sum(weight, 1)
        top = higher
        value = tl.load(
            kv + value_row[:, None] * DIM + dims[None, :], mask=stored[:, None] & inside[None, :], other=0.0
        ).to(DOT)
        if scales is not None:
            weight *= tl.load(scales + value_row, mask=stored, other=0.0)[None, :]
        acc = tl.dot(weight.to(DOT), value, acc * shrink[:, None], input_precision="ieee")

    if SEGMENTS == 1:
        mixed = acc / tl.where(total == 0, 1.0, total)[:, None]
        tl.store(out + at, mixed.to(out.dtype.element_ty), mask=row_mask)
    else:
        part = (token * HEADS + head) * SEGMENTS + segment
        tl.store(top_out + part, top, mask=live)
        tl.store(total_out + part, total, mask=live)
        tl.store(acc_out + part[:, None] * DIM + dims[None, :], acc, mask=row_mask & (total != 0)[:, None])


def attend(
    q: Torch,
    kv: Torch,
    scales: Torch | None,
    block_table: Torch,
    row: Torch,
    query_start: Torch,
    seq_len: Torch,
    out: Torch,
    *,
    bounds: Torch | None = None,
    queries: int | None = None,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Torch | None = None,
    tree: Torch | None = None,
    positions: Torch | None = None,
    partial: Partial | None = None,
    tile: AttentionTile | None = None,
) -> None:
    """Attention of a step's query tokens over their sequences' keys in the pool, the step's own included.

    q, out [T, heads, head_dim] (float32, bfloat16, float16). kv [num_blocks, 2, kv_heads, block_size, head_dim] and
    scales [num_blocks, 2, kv_heads, block_size] float32 or None: a layer of `KvPool`. block_table [rows, columns], row
    [B] of it, query_start [B + 1], seq_len [B] int32. All contiguous. Rows of `out` for tokens from query_start[B] on
    stay unchanged. Sequences without query tokens are skipped for any seq_len.

    bounds [2] int32: only sequences from the first bound up to the second, both at most B, which have at most `queries`
    tokens in total. They are read on the device, so that a graph may hold a subset that changes from step to step.

    A token attends to `window` tokens, itself included (None: all before it). A softcap c maps a score x to
    c * tanh(x / c). sinks [heads]: a logit per head that adds to the softmax's denominator and has no value. tree
    [T, width] uint8: 1 where the token attends to the j-th query token of its own sequence; all tokens attend to the
    keys before the step's tokens. With a window, positions [T] int32 give the distances between the tree's tokens.
    partial: buffers for split-KV results, if keys are split (`segments_for`); they are reduced before this returns.
    They have room for tokens up to the last one of `bounds`.

    Sources: PagedAttention (Kwon et al. 2023); FlashAttention-2 (Dao 2023) for the online softmax; one kernel for
    prefill and decode over query blocks of tokens x group: vLLM's unified Triton attention.
    """
    tokens, heads, dim = q.shape
    _, _, kv_heads, block_size, _ = kv.shape
    group = heads // kv_heads
    sequences = len(seq_len)
    tokens = tokens if queries is None else queries
    tile = tile or attention_tile(dim, group, tokens, sequences, q.dtype, tree=tree is not None)
    segments = 1 if partial is None else partial.acc.shape[2]
    grid = (tokens // (tile.rows // group) + sequences, kv_heads, segments)
    acc, top, total = partial or (None, None, None)
    _attend[grid](
        q, kv, scales, block_table, row, query_start, seq_len, bounds, sinks, tree, positions, out, acc, top, total,
        scale, softcap, sequences, block_table.stride(0), 0 if tree is None else tree.shape[1],
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, BLOCK_SIZE=block_size, WINDOW=window or 0, SEGMENTS=segments,
        BLOCK_M=tile.rows, BLOCK_N=tile.keys, D=max(16, triton.next_power_of_2(dim)), DOT=dot_type(q.dtype),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if partial is not None:
        reduce_segments(partial, query_start, out, bounds)

"""Paged attention: one kernel for prefill chunks and decodes in one ragged batch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.decode_parts import PART_FIELDS
from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.launch_configs import AttentionTile, attention_tile, dot_type
from octavo_inference.backends.cuda.kernels.paged_indexing import bend, block_ids, find_sequence, first_seen
from octavo_inference.backends.cuda.kernels.split_kv_reduce import Partial, reduce_parts


# Arguments that vary between steps must not be specialized: a new variant would compile while requests wait.
@triton.jit(do_not_specialize=["num_seqs", "table_stride"], do_not_specialize_on_alignment=[
    "block_table", "row", "query_start", "seq_len", "bounds", "parts", "top_out", "total_out",
])  # fmt: skip
def _attend(
    q, kv, scales, block_table, row, query_start, seq_len, bounds, parts, sinks, slopes, out, acc_out, top_out,
    total_out, scale, softcap, num_seqs, table_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, POOL_HEADS: tl.constexpr, DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    D: tl.constexpr, DOT: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = HEADS // KV_HEADS
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    LIMITED: tl.constexpr = WINDOW + CHUNK
    LOG2E: tl.constexpr = 1.4426950408889634
    wait_for_previous()
    if parts is None:
        # A prompt's last query block has the most keys and starts first, so that short programs fill the last wave.
        place = tl.num_programs(0) - 1 - tl.program_id(0)
        kv_head = tl.program_id(1)
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
        kv_head = tl.program_id(0)
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

    # Row m is query token m // GROUP of this program, and head m % GROUP of the group that shares this KV head.
    rows = tl.arange(0, BLOCK_M)
    nth = first + rows // GROUP
    live = (nth < tokens) & (rows < BLOCK_Q * GROUP)
    head = kv_head * GROUP + rows % GROUP
    dims = tl.arange(0, D)
    inside = dims < DIM
    row_mask = live[:, None] & inside[None, :]
    origin = (start + first).to(tl.int64) * HEADS * DIM  # only this may pass 2**31
    at = ((rows // GROUP) * HEADS + head)[:, None] * DIM + dims[None, :]
    query = tl.load(q + origin + at, mask=row_mask, other=0.0).to(DOT)
    position = context + nth

    high = context + tl.minimum(first + BLOCK_Q, tokens)  # keys that any row sees
    low = first_seen(context + first, WINDOW, CHUNK) if LIMITED else 0
    lowest = low // BLOCK_N
    tiles = tl.cdiv(high, BLOCK_N) - lowest
    begin = lowest + tiles * part // count
    end = lowest + tiles * (part + 1) // count
    # All rows see all keys of the tiles from `full` to before `ragged`.
    full = tl.cdiv(first_seen(high - 1, WINDOW, CHUNK), BLOCK_N) if LIMITED else 0
    ragged = (context + first + 1) // BLOCK_N

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if sinks is not None:  # a logit without a value, counted once
        top = tl.load(sinks + head).to(tl.float32) * LOG2E
        total += tl.where(part == 0, 1.0, 0.0)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    exponent = scale * LOG2E
    if (softcap is not None) or (slopes is not None):
        exponent = LOG2E
    if slopes is not None:
        slope = tl.load(slopes + head)[:, None]
    table = block_table + tl.load(row + seq).to(tl.int64) * table_stride
    lanes = tl.arange(0, BLOCK_N)
    # The block ids of a tile are loaded one tile ahead. So the addresses of K and V depend on no load of their own
    # iteration, and the compiler gives both num_stages - 1 buffers. Else it would pipeline the ids instead of them.
    block = block_ids(table, begin * BLOCK_N + lanes, high, BLOCK_SIZE)
    for tile in range(begin, end):
        keys = tile * BLOCK_N + lanes
        stored = keys < high  # later slots are arbitrary, possibly NaN, and must not be read
        if LIMITED:
            stored &= keys >= low  # blocks before the window may belong to another sequence by now
        key_row = (block * 2 * POOL_HEADS + kv_head) * BLOCK_SIZE + keys % BLOCK_SIZE
        value_row = key_row + POOL_HEADS * BLOCK_SIZE
        block = block_ids(table, keys + BLOCK_N, high, BLOCK_SIZE)
        mask = stored[:, None] & inside[None, :]
        key = tl.load(kv + key_row[:, None] * DIM + dims[None, :], mask=mask, other=0.0).to(DOT)
        score = tl.dot(query, tl.trans(key), input_precision="ieee")
        if scales is not None:
            score *= tl.load(scales + key_row, mask=stored, other=0.0)[None, :]
        if (softcap is not None) or (slopes is not None):
            score *= scale
        if softcap is not None:
            score = bend(score, softcap)
        if slopes is not None:
            score -= slope * (position[:, None] - keys[None, :]).to(tl.float32)
        if (tile < full) | (tile >= ragged):
            seen = keys[None, :] <= position[:, None]
            if LIMITED:
                seen &= keys[None, :] >= first_seen(position, WINDOW, CHUNK)[:, None]
            score = tl.where(seen, score, float("-inf"))

        higher = tl.maximum(top, tl.max(score, 1) * exponent)
        safe = tl.where(higher == float("-inf"), 0.0, higher)  # -inf while all keys of a row are masked
        weight = tl.exp2(score * exponent - safe[:, None])
        shrink = tl.exp2(top - safe)
        total = total * shrink + tl.sum(weight, 1)
        top = higher
        value = tl.load(kv + value_row[:, None] * DIM + dims[None, :], mask=mask, other=0.0).to(DOT)
        if scales is not None:
            weight *= tl.load(scales + value_row, mask=stored, other=0.0)[None, :]
        acc = tl.dot(weight.to(DOT), value, acc * shrink[:, None], input_precision="ieee")

    if acc_out is not None:  # noqa: SIM102  decided when it compiles
        if count > 1:
            slot = place.to(tl.int64) * HEADS + head
            tl.store(top_out + slot, top, mask=live)
            tl.store(total_out + slot, total, mask=live)
            tl.store(acc_out + slot[:, None] * DIM + dims[None, :], acc, mask=row_mask)
            return
    mixed = acc * (1.0 / tl.where(total == 0, 1.0, total))[:, None]
    tl.store(out + origin + at, mixed.to(out.dtype.element_ty), mask=row_mask)


# fmt: off
def attend(
    q: Torch, kv: Torch, scales: Torch | None, block_table: Torch, row: Torch, query_start: Torch, seq_len: Torch,
    out: Torch, *, bounds: Torch | None = None, scale: float, window: int | None = None, chunk: int | None = None,
    softcap: float | None = None, sinks: Torch | None = None, slopes: Torch | None = None, parts: Torch | None = None,
    partial: Partial | None = None, tile: AttentionTile | None = None, kv_heads: int | None = None,
) -> None:
    """Attention of a step's query tokens over their sequences' keys in the pool, the step's own included.

    q, out [T, heads, head_dim] (float32, bfloat16, float16). kv [num_blocks, 2, kv_heads, block_size, head_dim] and
    scales [num_blocks, 2, kv_heads, block_size] float32 or None: a layer of `KvPool`. `kv_heads`: those of a layer that
    has fewer than the pool. block_table [rows, columns] with rows at any stride, row [B] of it, query_start [B + 1],
    seq_len [B] int32. All others are contiguous. Rows of `out` for tokens from query_start[B] on stay unchanged.
    Sequences without query tokens are skipped for any seq_len.

    bounds [2] int32: only the sequences from the first bound up to the second, both at most B. They are read on the
    device, so that a graph may hold a subset that changes from step to step.

    A token attends to `window` tokens, itself included (None: all before it), within its own chunk of `chunk` positions
    (None: no chunks). A softcap c maps a score x to c * tanh(x / c). slopes [heads] float32 (ALiBi): the result falls
    by the head's slope with each position from key to token. sinks [heads]: a logit per head that adds to the softmax's
    denominator and has no value.

    parts [P, 3] int32 of `decode_parts`: sequences with one query token, split along their keys, instead of `bounds`.
    Tokens of sequences without a part stay unchanged. partial: buffers for the results of sequences with several parts,
    which are reduced before this returns; None if each sequence has one.

    Sources: PagedAttention (Kwon et al. 2023); FlashAttention-2 (Dao 2023) for the online softmax; one kernel for
    prefill and decode over query blocks of tokens x group: vLLM's unified Triton attention.
    """
    tokens, heads, dim = q.shape
    _, _, pool_heads, block_size, _ = kv.shape
    kv_heads = kv_heads or pool_heads
    group = heads // kv_heads
    sequences = len(seq_len)
    tile = tile or attention_tile(dim, group, q.dtype, decode=parts is not None, quantized=scales is not None)
    # KV heads of a decode run side by side: their keys are neighbours in a block. Those of a prompt follow each other,
    # because its query blocks share the keys of a head in the L2 cache.
    grid = (tokens // (tile.rows // group) + sequences, kv_heads) if parts is None else (kv_heads, len(parts))
    acc, top, total = partial or (None, None, None)
    _attend[grid](
        q, kv, scales, block_table, row, query_start, seq_len, bounds, parts, sinks, slopes, out, acc, top, total,
        scale, softcap, sequences, block_table.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, POOL_HEADS=pool_heads, DIM=dim, BLOCK_SIZE=block_size, WINDOW=window or 0,
        CHUNK=chunk or 0, BLOCK_M=tile.rows, BLOCK_N=tile.keys, D=max(16, triton.next_power_of_2(dim)),
        DOT=dot_type(q.dtype), FIELDS=PART_FIELDS, num_warps=tile.warps, num_stages=tile.stages, **launch_options(),
    )
    if parts is not None and partial is not None:
        reduce_parts(partial, parts, query_start, out)
# fmt: on

"""Rows of the embedding and of lm_head that adapters bring whole, in the place of the model's.

A slot has up to `most` of them for each matrix: `ids` [slots, most] in ascending order, `counts` [slots], and `rows`
[slots, most, hidden]. They are written over what the model's own rows and low-rank changes gave.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.adapter_configs import block_rows, shrink_tile
from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.launch_configs import dot_type

_COLUMNS = 1024


@dataclass(frozen=True, slots=True)
class SlotRows:
    """The rows of all slots for one matrix. `biases` [slots, most] are added to logits."""

    ids: Torch
    counts: Torch
    rows: Torch
    biases: Torch


# fmt: off
@triton.jit
def _embeddings(tokens, slots, ids, counts, rows, positions, learned, out, factor, hidden, MOST: tl.constexpr,
                COLUMNS: tl.constexpr):
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 0:
        return
    count = tl.load(counts + slot)
    if count == 0:
        return
    at = tl.arange(0, MOST)
    own = tl.load(ids + slot * MOST + at, mask=at < count, other=-1)
    place = tl.max(tl.where(own == tl.load(tokens + row), at, -1), axis=0)
    if place < 0:
        return
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < hidden
    values = tl.load(rows + (slot * MOST + place) * hidden + column, mask=mask, other=0.0).to(tl.float32) * factor
    if learned is not None:
        position = tl.load(positions + row).to(tl.int64)
        values += tl.load(learned + position * hidden + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + column, values, mask=mask)


@triton.jit
def _logits(x, places, blocks, ids, counts, rows, biases, logits, hidden, x_stride, logits_stride, MOST: tl.constexpr,
            DOT: tl.constexpr, ROWS: tl.constexpr, IDS: tl.constexpr, STEP: tl.constexpr):
    wait_for_previous()
    block = tl.program_id(0)
    slot = tl.load(blocks + block).to(tl.int64)
    if slot < 0:
        return
    count = tl.load(counts + slot)
    first = tl.program_id(1) * IDS
    if first >= count:
        return
    place = tl.load(places + block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    at = first + tl.arange(0, IDS)
    present, known = (place >= 0)[:, None], at < count
    own = rows + (slot * MOST + at) * hidden
    acc = tl.zeros((ROWS, IDS), tl.float32)
    for begin in range(0, hidden, STEP):
        column = begin + tl.arange(0, STEP)
        inside = column < hidden
        given = tl.load(x + place[:, None] * x_stride + column[None, :], mask=present & inside[None, :], other=0.0)
        weights = tl.load(own[:, None] + column[None, :], mask=known[:, None] & inside[None, :], other=0.0)
        acc = tl.dot(given.to(DOT), tl.trans(weights.to(DOT)), acc, input_precision="ieee")
    acc += tl.load(biases + slot * MOST + at, mask=known, other=0.0)[None, :]
    token = tl.load(ids + slot * MOST + at, mask=known, other=0).to(tl.int64)
    tl.store(logits + place[:, None] * logits_stride + token[None, :], acc, mask=present & known[None, :])
# fmt: on


def own_embeddings(
    tokens: Torch,
    slots: Torch,
    own: SlotRows,
    out: Torch,
    *,
    factor: float,
    positions: Torch | None,
    learned: Torch | None,
) -> None:
    """Write the rows of tokens that their adapters bring, times `factor`, to `out` [T, hidden] float32.

    tokens [T] int32, and slots [T] int32 of their adapters, -1 for none. `positions` and `learned` are added as by
    `embedding.embed`.
    """
    hidden = out.shape[1]
    if len(tokens):
        _embeddings[len(tokens), triton.cdiv(hidden, _COLUMNS)](
            tokens, slots, own.ids, own.counts, own.rows, positions, learned, out, factor, hidden,
            MOST=own.ids.shape[1], COLUMNS=_COLUMNS, **launch_options(),
        )  # fmt: skip


def own_logits(x: Torch, places: Torch, blocks: Torch, own: SlotRows, logits: Torch) -> None:
    """Write the logits of ids of which the adapters of rows bring rows of lm_head, to `logits` [M, ids] float32.

    x [M, hidden] and logits have rows at any stride. `places` and `blocks` are those of `expert_sort` for blocks of
    `block_rows`, by slot.
    """
    rows, hidden = x.shape
    block = block_rows(rows, x.dtype)
    tile, most = shrink_tile(block, x.dtype), own.ids.shape[1]
    _logits[len(blocks), triton.cdiv(most, tile.ranks)](
        x, places, blocks, own.ids, own.counts, own.rows, own.biases, logits, hidden, x.stride(0), logits.stride(0),
        MOST=most, DOT=dot_type(x.dtype), ROWS=block, IDS=tile.ranks, STEP=tile.step, num_warps=tile.warps,
        num_stages=tile.stages, **launch_options(),
    )  # fmt: skip

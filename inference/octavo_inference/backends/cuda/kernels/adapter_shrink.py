"""The first half of an adapter's change: x @ down.T, for blocks of rows that have one adapter (LoRA's "shrink").

Rows are sorted by adapter on the device (`expert_sort`): blocks have rows of any sequences, `down` is read once for
each of them, and rows without an adapter are in none. A fused matrix has one product, with the ranks of all its parts.
Columns may be split between programs, whose sums `expand` adds up: a product has few ranks, so few programs otherwise.

Rows of experts are choices, sorted by slot and expert (`adapter_choices`): a block has one of each.

Source: Chen et al. 2023 (Punica), Sheng et al. 2023 (S-LoRA).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.adapter_configs import shrink_tile
from octavo_inference.backends.cuda.kernels.adapter_entries import ENTRY, UNIT
from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.launch_configs import dot_type


# fmt: off
@triton.jit(do_not_specialize=["rows", "steps"])
def _shrink(x, places, blocks, entries, numbers, products, x_weights, k, x_stride, entries_stride, numbers_stride,
            products_stride, sharers, rows, steps, x_head, DOT: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr,
            STEP: tl.constexpr, EXPERTS: tl.constexpr, HEADS: tl.constexpr, ENTRY: tl.constexpr, UNIT: tl.constexpr):
    wait_for_previous()
    block = tl.program_id(0)
    key = tl.load(blocks + block).to(tl.int64)
    if key < 0:
        return
    slot = key // EXPERTS
    entries += slot * entries_stride + key % EXPERTS * ENTRY
    if HEADS:
        entries += tl.program_id(2) * ENTRY
    ranks = tl.load(entries + 1) * UNIT
    first = tl.program_id(1) * RANKS
    if first >= ranks:
        return
    if HEADS:
        x += tl.program_id(2).to(tl.int64) * x_head
    down = numbers + slot * numbers_stride + tl.load(entries).to(tl.int64) * UNIT
    place = tl.load(places + block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    rank = first + tl.arange(0, RANKS)
    present, known = (place >= 0)[:, None], rank < ranks
    row = x + (place // sharers)[:, None] * x_stride
    begin = 0 if HEADS else tl.program_id(2) * steps * STEP
    acc = tl.zeros((ROWS, RANKS), tl.float32)
    for step in range(steps):
        column = begin + step * STEP + tl.arange(0, STEP)
        inside = column < k
        given = tl.load(row + column[None, :], mask=present & inside[None, :], other=0.0)
        weights = tl.load(down + rank[:, None] * k + column[None, :], mask=known[:, None] & inside[None, :], other=0.0)
        acc = tl.dot(given.to(DOT), tl.trans(weights.to(DOT)), acc, input_precision="ieee")
    if x_weights is not None:
        acc *= tl.load(x_weights + place, mask=place >= 0, other=0.0)[:, None]
    at = products + (tl.program_id(2) * rows + place[:, None]) * products_stride + rank[None, :]
    tl.store(at, acc, mask=present & known[None, :])


@triton.jit
def _shrink_ids(ids, slots, entries, numbers, products, entries_stride, numbers_stride, products_stride, factor,
                RANKS: tl.constexpr, UNIT: tl.constexpr):
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 0:
        return
    entries += slot * entries_stride
    ranks = tl.load(entries + 1) * UNIT
    down = numbers + slot * numbers_stride + tl.load(entries).to(tl.int64) * UNIT
    rank = tl.arange(0, RANKS)
    known = rank < ranks
    found = tl.load(down + tl.load(ids + row).to(tl.int64) * ranks + rank, mask=known, other=0.0)
    tl.store(products + row * products_stride + rank, found.to(tl.float32) * factor, mask=known)
# fmt: on


def shrink(
    x: Torch,
    places: Torch,
    blocks: Torch,
    entries: Torch,
    numbers: Torch,
    products: Torch,
    *,
    most_ranks: int,
    block: int,
    experts: int = 1,
    heads: bool = False,
    x_weights: Torch | None = None,
) -> None:
    """Write the products of rows with the `down` of their adapters to `products`, split over its first dimension.

    x [M, K] or, with the row of a token for all of its choices, [T, K]; rows at any stride. `places` and `blocks` are
    those of `expert_sort` for blocks of `block` rows, by slot * `experts` + expert. entries [slots, integers] and
    numbers [slots, elements] are those of `adapter_entries` for one matrix of K columns, and for those of the experts
    behind it, whose adapters have up to `most_ranks` ranks in all. x_weights [M] float32 are factors of rows of x.
    products [splits, M, ranks] float32; those of other rows and ranks are not written. `heads`: x [M, heads, K], and
    products [heads, M, ranks] of each with its own entry.
    """
    k = x.shape[-1]
    tile = shrink_tile(block, x.dtype)
    splits, rows, _ = products.shape
    _shrink[(len(blocks), triton.cdiv(most_ranks, tile.ranks), splits)](
        x, places, blocks, entries, numbers, products, x_weights, k, x.stride(0), entries.stride(0), numbers.stride(0),
        products.stride(1), rows // max(1, len(x)), rows,
        triton.cdiv(triton.cdiv(k, tile.step), 1 if heads else splits), x.stride(1) if heads else 0,
        DOT=dot_type(x.dtype), ROWS=block, RANKS=tile.ranks, STEP=tile.step, EXPERTS=experts, HEADS=heads,
        ENTRY=ENTRY, UNIT=UNIT, num_warps=tile.warps, num_stages=tile.stages, **launch_options(),
    )  # fmt: skip


def shrink_ids(
    ids: Torch, slots: Torch, entries: Torch, numbers: Torch, products: Torch, *, factor: float, most_ranks: int
) -> None:
    """Write the columns of `down` for ids, times `factor`, to `products`: `shrink` for an embedding.

    ids [T] int32, slots [T] int32 of their adapters, -1 for none; `down` is stored column by column. The others are as
    for `shrink`, with one split.
    """
    if len(ids):
        _shrink_ids[(len(ids),)](
            ids, slots, entries, numbers, products, entries.stride(0), numbers.stride(0), products.stride(1), factor,
            RANKS=triton.next_power_of_2(most_ranks), UNIT=UNIT, **launch_options(),
        )  # fmt: skip

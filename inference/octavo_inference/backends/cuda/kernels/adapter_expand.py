"""The second half of an adapter's change: + products @ up.T + bias, into the product with the matrix (LoRA's "expand").

Blocks of rows are those of `adapter_shrink`. A tile of outputs belongs to one part of a fused matrix, and reads the
ranks of that part alone. Tiles are listed in memory, so that one launch serves parts of any sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.adapter_configs import (
    MOST_ACROSS,
    expand_outputs,
    expand_ranks,
    expand_warps,
)
from octavo_inference.backends.cuda.kernels.adapter_entries import ENTRY, HEAD, PART, TILE, TILE_FIELDS, UNIT
from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.launch_configs import dot_type


def output_tiles(rows: Sequence[int], device: torch.device) -> Torch:
    """The tiles of a matrix whose parts have so many rows, [tiles, TILE_FIELDS] int32.

    Of each its part, its first row, and the end and the start of the part's rows.
    """
    found, start = [], 0
    for part, count in enumerate(rows):
        found += [(part, first, start + count, start) for first in range(start, start + count, TILE)]
        start += count
    return torch.tensor(found, dtype=torch.int32).to(device)


# fmt: off
@triton.jit(do_not_specialize=["rows", "count"])
def _expand(products, places, blocks, entries, numbers, tiles, y, rows, count, entries_stride, numbers_stride,
            products_stride, y_stride, y_head, DOT: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
            OUTPUTS: tl.constexpr, CUTS: tl.constexpr, RANKS: tl.constexpr, EXPERTS: tl.constexpr,
            HEADS: tl.constexpr, NEW: tl.constexpr, ENTRY: tl.constexpr, UNIT: tl.constexpr, HEAD: tl.constexpr,
            PART: tl.constexpr, FIELDS: tl.constexpr):
    wait_for_previous()
    block = tl.program_id(0)
    key = tl.load(blocks + block).to(tl.int64)
    if key < 0:
        return
    slot = key // EXPERTS
    entries += slot * entries_stride + key % EXPERTS * ENTRY
    numbers += slot * numbers_stride
    if HEADS:
        head = tl.program_id(2).to(tl.int64)
        entries += head * ENTRY
        products += head * rows * products_stride
        y += head * y_head
    biased = tl.load(entries + 3)
    if (tl.load(entries + 1) == 0) & (biased == 0) & (not NEW):
        return
    bias = numbers + tl.load(entries + 2).to(tl.int64) * UNIT
    place = tl.load(places + block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    present = (place >= 0)[:, None]
    for number in range(tl.program_id(1), count, tl.num_programs(1)):
        tile = tiles + number // CUTS * FIELDS
        part = entries + HEAD + tl.load(tile) * PART
        first, ranks = tl.load(part) * UNIT, tl.load(part + 1) * UNIT
        up = numbers + tl.load(part + 2).to(tl.int64) * UNIT
        if (ranks > 0) | (biased > 0) | NEW:
            row = tl.load(tile + 1) + number % CUTS * OUTPUTS + tl.arange(0, OUTPUTS)
            end = tl.load(tile + 2)
            known = row < end
            own = (row - tl.load(tile + 3))[:, None] * ranks
            acc = tl.zeros((ROWS, OUTPUTS), tl.float32)
            for start in range(0, ranks, RANKS):
                rank = start + tl.arange(0, RANKS)[None, :]
                given = products + place[:, None] * products_stride + first + rank
                sums = tl.zeros((ROWS, RANKS), tl.float32)
                for split in tl.static_range(SPLITS):
                    sums += tl.load(given + split * rows * products_stride, mask=present & (rank < ranks), other=0.0)
                weights = tl.load(up + own + rank, mask=known[:, None] & (rank < ranks), other=0.0)
                acc = tl.dot(sums.to(DOT), tl.trans(weights.to(DOT)), acc, input_precision="ieee")
            acc += tl.load(bias + row, mask=row < end * biased, other=0.0).to(tl.float32)[None, :]
            at = y + place[:, None] * y_stride + row[None, :]
            mask = present & known[None, :]
            if not NEW:
                acc += tl.load(at, mask=mask, other=0.0).to(tl.float32)
            tl.store(at, acc.to(y.dtype.element_ty), mask=mask)
# fmt: on


def expand(
    products: Torch,
    places: Torch,
    blocks: Torch,
    entries: Torch,
    numbers: Torch,
    tiles: Torch,
    out: Torch,
    *,
    max_rank: int,
    block: int,
    experts: int = 1,
    heads: bool = False,
    new: bool = False,
) -> None:
    """Add the products of rows with the `up` of their adapters, and biases, to rows of `out`.

    products [splits, M, ranks] of `shrink`; `places` to `numbers`, `block` and `experts` as there. `tiles` are those of
    `output_tiles` for the matrix. out [M, rows] of any float type, rows at any stride; rows without an adapter are not
    written. Adapters have up to `max_rank` ranks in each part. `new`: `out` has nothing yet that they are added to.
    `heads`: out [M, heads, rows], and products and tiles are those of heads.
    """
    parts, rows, _ = products.shape
    splits, across = (1, parts) if heads else (parts, 1)
    outputs = expand_outputs(block)
    cuts = TILE // outputs
    # One stage: the loop over ranks has few turns, and buffers for more would crowd out other programs.
    _expand[(len(blocks), min(len(tiles) * cuts, MOST_ACROSS), across)](
        products, places, blocks, entries, numbers, tiles, out, rows, len(tiles) * cuts, entries.stride(0),
        numbers.stride(0), products.stride(1), out.stride(0), out.stride(1) if heads else 0,
        DOT=dot_type(numbers.dtype), SPLITS=splits, ROWS=block, OUTPUTS=outputs, CUTS=cuts,
        RANKS=expand_ranks(max_rank), EXPERTS=experts, HEADS=heads, NEW=new, ENTRY=ENTRY, UNIT=UNIT, HEAD=HEAD,
        PART=PART, FIELDS=TILE_FIELDS, num_warps=expand_warps(block), num_stages=1, **launch_options(),
    )  # fmt: skip

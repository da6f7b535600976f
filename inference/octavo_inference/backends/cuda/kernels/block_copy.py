"""Whole KV blocks of all layers: copied within the pool, gathered from it, scattered into it.

Blocks are copied as bytes, for every type of pool; a second call copies the scales of a quantized pool.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor as Torch

_TILE = 4096


@triton.jit
def _move(
    source,
    source_ids,
    source_layer,
    source_block,
    target,
    target_ids,
    target_layer,
    target_block,
    ids_stride,
    size,
    NAMED_SOURCE: tl.constexpr,
    NAMED_TARGET: tl.constexpr,
    TILE: tl.constexpr,
):
    """Copy one tile of one block of one layer. A side that is not NAMED has the blocks in the order of the ids."""
    number = tl.program_id(0).to(tl.int64)
    layer = tl.program_id(1).to(tl.int64)
    read = tl.load(source_ids + number * ids_stride).to(tl.int64) if NAMED_SOURCE else number
    write = tl.load(target_ids + number * ids_stride).to(tl.int64) if NAMED_TARGET else number
    at = tl.program_id(2) * TILE + tl.arange(0, TILE)
    words = tl.load(source + layer * source_layer + read * source_block + at, mask=at < size)
    tl.store(target + layer * target_layer + write * target_block + at, words, mask=at < size)


def copy_blocks(pool: Torch, pairs: Torch) -> None:
    """Copy blocks within the pool.

    pool [layers, num_blocks, ...], a block of a layer contiguous; pairs [n, 2] (source, target) integers. The copies
    run concurrently: no target is another pair's source or target.
    """
    _launch(pool, pairs[:, 0], pool, pairs[:, 1])


def gather_blocks(pool: Torch, ids: Torch, out: Torch) -> None:
    """Copy blocks out of the pool.

    pool [layers, num_blocks, ...], a block of a layer contiguous; ids [n] integers; out [n, layers, ...] of the same
    type.
    """
    _launch(pool, ids, out.transpose(0, 1), None)


def scatter_blocks(saved: Torch, ids: Torch, pool: Torch) -> None:
    """Copy the output of `gather_blocks` into blocks of the pool.

    saved [n, layers, ...]; ids [n] distinct integers; pool as in `gather_blocks`.
    """
    _launch(saved.transpose(0, 1), None, pool, ids)


def _launch(source: Torch, source_ids: Torch | None, target: Torch, target_ids: Torch | None) -> None:
    """Launch the copy. Both tensors are [layers, blocks, ...]."""
    ids = source_ids if source_ids is not None else target_ids
    if ids is None or not len(ids):
        return
    read, write = _words(source), _words(target)
    layers, _, size = write.shape
    _move[(len(ids), layers, triton.cdiv(size, _TILE))](
        read,
        ids if source_ids is None else source_ids,
        read.stride(0),
        read.stride(1),
        write,
        ids if target_ids is None else target_ids,
        write.stride(0),
        write.stride(1),
        ids.stride(0),
        size,
        NAMED_SOURCE=source_ids is not None,
        NAMED_TARGET=target_ids is not None,
        TILE=_TILE,
    )


def _words(blocks: Torch) -> Torch:
    """View as [layers, blocks, words]: 32-bit words where a block's size is a multiple, else bytes."""
    flat = blocks.view(*blocks.shape[:2], -1)  # raises where a view is impossible without a copy
    word = torch.int32 if flat.shape[2] * flat.element_size() % 4 == 0 else torch.uint8
    return flat.view(word)

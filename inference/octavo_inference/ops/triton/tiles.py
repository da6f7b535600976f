"""Tile sizes and the type of matrix products: the one table that a faster card would change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_MMA_ROWS = 16  # the smallest tile of a tensor core


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Rows (query tokens x heads of a group) and keys of one program, its warps and pipeline stages."""

    rows: int
    keys: int
    warps: int
    stages: int


def attention_tile(
    head_dim: int, group: int, tokens: int, sequences: int, dtype: torch.dtype, *, tree: bool = False
) -> AttentionTile:
    """The tile for `tokens` query tokens of `sequences` sequences whose heads share keys in groups of `group`.

    Decides by shapes alone: a batch with no more tokens than sequences has one token each and wants few rows; a longer
    one wants many, as each program reads all keys anew. Trees are small, and their mask takes registers. float32 has no
    tensor core, so its products take registers too: small tiles keep them from spilling. The interpreter pays for
    operations, not elements. All fit the 99 KiB of shared memory of the smallest card.
    """
    least = max(_MMA_ROWS, triton.next_power_of_2(group))
    if triton.knobs.runtime.interpret:
        return AttentionTile(rows=max(least, 64), keys=64, warps=4, stages=2)
    if dtype == torch.float32:
        return AttentionTile(rows=least, keys=16, warps=8, stages=2)
    keys = 64 if head_dim <= 128 else 32
    if tokens <= sequences:
        return AttentionTile(rows=least, keys=keys, warps=4, stages=2)
    return AttentionTile(rows=max(least, 32 if tree else 64), keys=keys, warps=4 if head_dim <= 128 else 8, stages=2)


def segments_for(
    *, sequences: int, kv_heads: int, longest: int, processors: int, keys_per_segment: int = 256, most: int = 32
) -> int:
    """Into how many parts to split each sequence's keys so that a batch of decodes fills the card: a power of two.

    `longest` is the most keys a sequence may have (the block table's width in tokens), `processors` the card's
    multiprocessors. A part has at least `keys_per_segment` keys, as its result is written and read once more.
    """
    wanted = min(2 * processors // max(1, sequences * kv_heads), longest // keys_per_segment, most)
    return 1 << (max(1, wanted).bit_length() - 1)


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """The type of a product's operands for activations of `dtype`. The interpreter's numpy has no bfloat16."""
    if dtype == torch.float32 or triton.knobs.runtime.interpret:
        return tl.float32
    return tl.bfloat16 if dtype == torch.bfloat16 else tl.float16

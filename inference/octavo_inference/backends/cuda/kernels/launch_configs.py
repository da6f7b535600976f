"""Tile sizes and the type of matrix products: the one table that a faster card would change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo_inference.backends.cuda.kernels.weight_layouts import Stored

_MMA_ROWS = 16  # the smallest tile of a tensor core
_PROGRAMS = 256  # about two for each multiprocessor of a large card
_LEAST_STEPS = 4

WORKSPACE = _PROGRAMS * 64 * 64
"""Floats that partial sums of any `linear.linear` need at most."""


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


@dataclass(frozen=True, slots=True)
class LinearTile:
    """Rows of x, rows of weights and columns of bytes at a time of one program; into how many parts sums are cut."""

    rows: int
    outputs: int
    step: int
    split: int
    warps: int
    stages: int


def linear_tile(m: int, n: int, width: int, dtype: torch.dtype) -> LinearTile:
    """The tile for `m` rows of x in `dtype` and weights of `n` rows of `width` values, or bytes of two.

    Few rows make few programs, while time goes by the bytes of the weights: sums are cut so that many programs read.
    Their number is a constant, so that sums are cut alike on every card. Sized for 99 KiB of shared memory.
    """
    rows = 16 if m <= 16 else 32 if m <= 32 else 64 if m <= 64 else 128
    outputs, step, warps, stages = (64, 128, 4, 3) if rows == 16 else (64, 64, 4, 3) if rows <= 64 else (128, 32, 8, 3)
    if dtype == torch.float32:  # multiplied without tensor cores, out of registers
        rows, outputs, step, warps, stages = min(rows, 64), 64, 32, 4 if rows <= 32 else 8, 2
    parts = min(_PROGRAMS // triton.cdiv(n, outputs), width // (step * _LEAST_STEPS)) if m <= 64 else 1
    return LinearTile(rows, outputs, step, max(1, parts), warps, stages)


LINEAR8_ROWS = 65
"""From so many rows of x on it is multiplied in fp8 where weights are and the card can. Below, reading decides."""


def linear8_tile() -> LinearTile:
    """The tile of products of 8 bits by 8: always whole sums, as there are at least `LINEAR8_ROWS` rows."""
    if triton.knobs.runtime.interpret:
        return LinearTile(rows=128, outputs=64, step=128, split=1, warps=4, stages=1)
    return LinearTile(rows=128, outputs=128, step=128, split=1, warps=8, stages=3)


@dataclass(frozen=True, slots=True)
class GemvTile:
    """Rows of weights of one program, and its warps, each of which reads 512 bytes of a row at a time."""

    outputs: int
    warps: int


def gemv_rows(form: Stored) -> int:
    """Up to how many rows of x `gemv.gemv` is for: beyond, its multiplications cost more than those of tensor cores.

    By the code compiled for 9.0, instructions a weight at 1 and 2 rows: int4 3.4 and 5.0, int8 4.3 and 5.6, fp8 4.4 and
    5.5, dense 3.0 and 4.2, at 4 rows 7.5; `linear.linear` has 7.0 to 7.7 for what is packed at up to 16 rows. Not
    measured on a card.
    """
    return 4 if form == "dense" else 2


def gemv_tile(m: int, n: int, width: int) -> GemvTile:
    """The tile for `m` rows of x and weights of `n` rows of `width` bytes.

    Where there are programs enough, one warp each: then no sum crosses warps.
    """
    outputs = 8 if m <= 2 and n >= _PROGRAMS * 8 else 4
    warps = 1 if n >= 8 * _PROGRAMS * outputs else min(4, triton.next_power_of_2(triton.cdiv(width, 512)))
    return GemvTile(outputs, warps)


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """The type of a product's operands for activations of `dtype`; uint8 stands for float8_e4m3fn.

    The interpreter's numpy has no bfloat16.
    """
    if dtype == torch.float32 or triton.knobs.runtime.interpret:
        return tl.float32
    if dtype == torch.uint8:
        return tl.float8e4nv
    return tl.bfloat16 if dtype == torch.bfloat16 else tl.float16

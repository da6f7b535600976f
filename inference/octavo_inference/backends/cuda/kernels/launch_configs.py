"""Launch configurations: tile sizes and operand types of matrix products, the one table to change for a faster GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo_inference.backends.cuda.kernels import workspace
from octavo_inference.backends.cuda.kernels.latent_heads import LATENT_HEADS
from octavo_inference.backends.cuda.kernels.target import HOPPER, capability
from octavo_inference.backends.cuda.kernels.weight_layouts import FOUR_BITS, Stored

_MMA_ROWS = 16  # the smallest tile of a tensor core
_PROGRAMS = 256  # about two for each multiprocessor of a large GPU
_LEAST_STEPS = 4
ROW_STEPS = (16, 32, 64, 128)
"""Products with a row count up to one of these share a tile; for more rows weights are dequantized first (`Linear`)."""

WORKSPACE = workspace.WORKSPACE


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Rows (query tokens x heads of a group) and keys of one program, its warps and pipeline stages."""

    rows: int
    keys: int
    warps: int
    stages: int


def attention_tile(
    head_dim: int, group: int, dtype: torch.dtype, *, decode: bool, quantized: bool = False
) -> AttentionTile:
    """The tile for one query token per sequence, or for several, of heads that share keys in groups of `group`.

    A decode needs few rows. A prompt needs many, as each program reads all keys again. K and V have `stages` - 1
    buffers each, those of prompts on Hopper `stages`; one is computed on while the others fill. Tiles fit the 99 KiB of
    shared memory of the smallest GPU. Those of Hopper were chosen on an H100 (docs/evidence/gpu.md): a decode reads at
    the speed of memory with one buffer of 128 keys. `quantized` K and V need registers to be converted. float32 has no
    tensor cores, so its products use registers too: small tiles avoid spilling. The interpreter's time depends on the
    number of operations, not of elements.
    """
    least = max(_MMA_ROWS, triton.next_power_of_2(group))
    if triton.knobs.runtime.interpret:
        return AttentionTile(rows=max(least, 64), keys=64, warps=4, stages=2)
    if dtype == torch.float32:
        return AttentionTile(rows=least, keys=16, warps=8, stages=2)
    if head_dim > 128:
        return AttentionTile(least, 32, 4, 3) if decode else AttentionTile(max(least, 64), 32, 8, 2)
    hopper = capability() == HOPPER
    if decode:
        return AttentionTile(least, 128, 4, 2) if hopper else AttentionTile(least, 64, 4, 3)
    large = hopper and not quantized
    return AttentionTile(max(least, 128), 128, 8, 3) if large else AttentionTile(max(least, 64), 64, 4, 2)


def latent_tile(heads: int, dtype: torch.dtype, *, decode: bool) -> AttentionTile:
    """The tile of latent attention for one query token per sequence, or for several: all `heads` share the latents.

    Sums of 512 elements leave room for few rows, and the latents of a tile for few keys: operands and buffers fit the
    99 KiB of shared memory of the smallest GPU. Those of Hopper fit its own, and were chosen on an H100.
    """
    least = max(_MMA_ROWS, triton.next_power_of_2(min(heads, LATENT_HEADS)))
    if triton.knobs.runtime.interpret:
        return AttentionTile(rows=max(least, 64), keys=64, warps=4, stages=2)
    if dtype == torch.float32:
        return AttentionTile(rows=_MMA_ROWS, keys=16, warps=8, stages=1)
    if decode and least == _MMA_ROWS:
        return AttentionTile(least, 32, 4, 3)
    if capability() == HOPPER:
        return AttentionTile(least, 128, 8, 2) if decode else AttentionTile(64, 64, 8, 2)
    return AttentionTile(least if decode else LATENT_HEADS, 32, 8, 2)


@dataclass(frozen=True, slots=True)
class ChunkTile:
    """Tokens of a chunk of a state layer's prompt; warps and pipeline stages of its programs."""

    tokens: int
    warps: int
    stages: int


def chunk_tile(dtype: torch.dtype) -> ChunkTile:
    """The tile for prompts of state layers: the longest chunks that stay in registers. Measured on no GPU yet.

    A program has its part of a state and the tiles of a chunk's products in registers. float32 is multiplied there,
    too, so its chunks are shorter.
    """
    if dtype == torch.float32 and not triton.knobs.runtime.interpret:
        return ChunkTile(_MMA_ROWS, 8, 1)
    return ChunkTile(workspace.CHUNK, 8, 2)


@dataclass(frozen=True, slots=True)
class LinearTile:
    """Rows of x, rows of weights and columns of bytes per iteration of one program; number of split-K parts."""

    rows: int
    outputs: int
    step: int
    split: int
    warps: int
    stages: int


def row_step(m: int) -> int:
    """The entry of `ROW_STEPS` for a product of m rows, the last one for more."""
    return next((step for step in ROW_STEPS if m <= step), ROW_STEPS[-1])


_MANY_OUTPUTS = 16_384
"""Rows of weights that make enough programs of large tiles."""


def linear_tile(form: Stored, m: int, n: int, width: int, dtype: torch.dtype) -> LinearTile:
    """The tile for `m` rows of x in `dtype` and weights of `n` rows of `width` values, or bytes of two.

    Few rows make few programs, while the weights' bytes determine the time: split-K makes many programs read. The
    target number of programs is a constant, so that sums are split alike on every GPU. Chosen on an H100 for the
    matrices of an 8B model (docs/evidence/gpu.md). Tiles fit 99 KiB of shared memory.
    """
    rows = row_step(m)
    four = form in FOUR_BITS
    programs = 2 * _PROGRAMS
    if dtype == torch.float32:  # multiplied without tensor cores, in registers
        rows, outputs, step, warps, stages = min(rows, 64), 64, 32, 4 if rows <= 32 else 8, 2
        programs = _PROGRAMS if m <= 64 else 1
    elif rows == 16 and n >= _MANY_OUTPUTS:
        outputs, step, warps, stages = 128, 128, 4, 3
    elif rows == 16:
        outputs, step, warps, stages = (64, 128, 4, 3) if four else (32, 256, 4, 3)
    elif rows == 32 and not four:
        outputs, step, warps, stages = 64, 128, 4, 3
    elif rows <= 64:
        outputs, step, warps, stages, programs = 128, 64, 4, 3, _PROGRAMS
    else:
        outputs, step, warps, stages = (256, 32, 8, 3) if four else (128, 64, 8, 3)
        programs = _PROGRAMS // 2 if m <= rows else 1
    parts = min(programs // triton.cdiv(n, outputs), width // (step * _LEAST_STEPS), WORKSPACE // (rows * n))
    return LinearTile(rows, outputs, step, max(1, parts), warps, stages)


@dataclass(frozen=True, slots=True)
class GemvTile:
    """Rows of weights of one program, and its warps, each of which reads 512 bytes of a row at a time."""

    outputs: int
    warps: int


def gemv_rows(form: Stored) -> int:
    """Most rows of x for `gemv.gemv`: above, its multiplications cost more than those of tensor cores.

    On an H100 dense products of 1 to 4 rows take 0.8 to 1.0 of the time of cuBLAS for the matrices of an 8B model, and
    0.5 to 0.9 for those of a 0.6B model (docs/evidence/gpu.md). Packed weights of more than 2 rows were not measured.
    """
    return 4 if form == "dense" else 2


def gemv_tile(form: Stored, m: int, n: int, width: int) -> GemvTile:
    """The tile for `m` rows of x and weights of `n` rows of `width` bytes: the best mean over eight shapes on an H100.

    Weights are loaded one step ahead, so a program has both steps in registers: few rows leave room for many programs.
    Unpacking takes more of them, hence fewer warps.
    """
    if form == "dense":
        return GemvTile(2 if m <= 2 else 4, 4)
    most = 4 if form not in FOUR_BITS else 1 if n >= _MANY_OUTPUTS else 2
    whole = max(1, width // 1024)  # steps of two warps
    return GemvTile(4, min(most, 1 << (whole.bit_length() - 1)))


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """The type of a product's operands for activations of `dtype`.

    The interpreter's numpy has no bfloat16.
    """
    if dtype == torch.float32 or triton.knobs.runtime.interpret:
        return tl.float32
    return tl.bfloat16 if dtype == torch.bfloat16 else tl.float16

"""Launch configurations: tile sizes and operand types of matrix products, the one table to change for a faster GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo_inference.backends.cuda.kernels.weight_layouts import Stored

_MMA_ROWS = 16  # the smallest tile of a tensor core
_PROGRAMS = 256  # about two for each multiprocessor of a large GPU
_LEAST_STEPS = 4

WORKSPACE = _PROGRAMS * 64 * 64
"""Upper bound of the floats that partial sums of any `linear.linear` need."""


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Rows (query tokens x heads of a group) and keys of one program, its warps and pipeline stages."""

    rows: int
    keys: int
    warps: int
    stages: int


def attention_tile(head_dim: int, group: int, dtype: torch.dtype, *, decode: bool) -> AttentionTile:
    """The tile for one query token per sequence, or for several, of heads that share keys in groups of `group`.

    A decode needs few rows. A prompt needs many, as each program reads all keys again. K and V have `stages` - 1
    buffers each, those of prompts on Hopper `stages`; one is computed on while the others fill. float32 has no tensor
    cores, so its products use registers too: small tiles avoid spilling. The interpreter's time depends on the number
    of operations, not of elements. All tiles fit the 99 KiB of shared memory of the smallest GPU.
    """
    least = max(_MMA_ROWS, triton.next_power_of_2(group))
    if triton.knobs.runtime.interpret:
        return AttentionTile(rows=max(least, 64), keys=64, warps=4, stages=2)
    if dtype == torch.float32:
        return AttentionTile(rows=least, keys=16, warps=8, stages=2)
    keys = 64 if head_dim <= 128 else 32
    if decode:
        return AttentionTile(rows=least, keys=keys, warps=4, stages=3)
    return AttentionTile(rows=max(least, 64), keys=keys, warps=4 if head_dim <= 128 else 8, stages=2)


@dataclass(frozen=True, slots=True)
class LinearTile:
    """Rows of x, rows of weights and columns of bytes per iteration of one program; number of split-K parts."""

    rows: int
    outputs: int
    step: int
    split: int
    warps: int
    stages: int


def linear_tile(m: int, n: int, width: int, dtype: torch.dtype) -> LinearTile:
    """The tile for `m` rows of x in `dtype` and weights of `n` rows of `width` values, or bytes of two.

    Few rows make few programs, while the weights' bytes determine the time: split-K makes many programs read. The
    target number of programs is a constant, so that sums are split alike on every GPU. Tiles fit 99 KiB of shared
    memory.
    """
    rows = 16 if m <= 16 else 32 if m <= 32 else 64 if m <= 64 else 128
    outputs, step, warps, stages = (64, 128, 4, 3) if rows == 16 else (64, 64, 4, 3) if rows <= 64 else (128, 32, 8, 3)
    if dtype == torch.float32:  # multiplied without tensor cores, in registers
        rows, outputs, step, warps, stages = min(rows, 64), 64, 32, 4 if rows <= 32 else 8, 2
    parts = min(_PROGRAMS // triton.cdiv(n, outputs), width // (step * _LEAST_STEPS)) if m <= 64 else 1
    return LinearTile(rows, outputs, step, max(1, parts), warps, stages)


@dataclass(frozen=True, slots=True)
class GemvTile:
    """Rows of weights of one program, and its warps, each of which reads 512 bytes of a row at a time."""

    outputs: int
    warps: int


def gemv_rows(form: Stored) -> int:
    """Most rows of x for `gemv.gemv`: above, its multiplications cost more than those of tensor cores.

    Instructions per weight, counted in the code for compute capability 9.0. At 1 and 2 rows: int4 3.4 and 5.0, int8 4.3
    and 5.6, fp8 4.4 and 5.5, dense 3.0 and 4.2 (at 4 rows 7.5). `linear.linear` has 7.0 to 7.7 for packed weights at up
    to 16 rows. Not measured on a GPU.
    """
    return 4 if form == "dense" else 2


def gemv_tile(m: int, n: int, width: int) -> GemvTile:
    """The tile for `m` rows of x and weights of `n` rows of `width` bytes.

    With enough programs, each has one warp: then no sum crosses warps.
    """
    outputs = 8 if m <= 2 and n >= _PROGRAMS * 8 else 4
    warps = 1 if n >= 8 * _PROGRAMS * outputs else min(4, triton.next_power_of_2(triton.cdiv(width, 512)))
    return GemvTile(outputs, warps)


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """The type of a product's operands for activations of `dtype`.

    The interpreter's numpy has no bfloat16.
    """
    if dtype == torch.float32 or triton.knobs.runtime.interpret:
        return tl.float32
    return tl.bfloat16 if dtype == torch.bfloat16 else tl.float16

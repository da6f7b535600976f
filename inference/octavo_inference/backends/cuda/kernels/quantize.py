"""Quantizes activations to float8_e4m3fn, for products on tensor cores with 8-bit operands.

Scales are those of each row, or of a group of its columns, in each step. Some FP8 checkpoints contain one scale for all
activations of a layer, which is coarser: it is not used.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.encode import encode_e4m3

_COLUMNS = 2048


@triton.jit
def _quantize(x, values, scales, x_stride, width, COLUMNS: tl.constexpr):
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    largest = tl.zeros((COLUMNS,), tl.float32)
    spoilt = tl.zeros((COLUMNS,), tl.float32)
    for step in range(tl.cdiv(width, COLUMNS)):
        at = step * COLUMNS + tl.arange(0, COLUMNS)
        value = tl.load(x + at, mask=at < width, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(value))
        # NaN and infinity have no code. They make the scale NaN, and with it the row's results.
        spoilt += value * 0.0
    top = tl.max(largest)
    scale = tl.where(top > 0, top / 448.0, 1.0) + tl.sum(spoilt)
    tl.store(scales + row, scale)
    for step in range(tl.cdiv(width, COLUMNS)):
        at = step * COLUMNS + tl.arange(0, COLUMNS)
        value = tl.load(x + at, mask=at < width, other=0.0).to(tl.float32)
        tl.store(values + row * width + at, encode_e4m3(value / scale), mask=at < width)


@triton.jit(do_not_specialize=["rows"])
def _quantize_groups(x, values, scales, rows, x_stride, width, GROUP: tl.constexpr, GROUPS: tl.constexpr):
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    value = tl.load(x + row * x_stride + at, mask=at < width, other=0.0).to(tl.float32)
    top = tl.max(tl.abs(value), 1)
    # As in rows: NaN and infinity spoil the results of their group, and with it those of the row.
    scale = tl.where(top > 0, top / 448.0, 1.0) + tl.sum(value * 0.0, 1)
    tl.store(scales + group.to(tl.int64) * rows + row, scale, mask=group * GROUP < width)
    tl.store(values + row * width + at, encode_e4m3(value / scale[:, None]), mask=at < width)


def quantize(x: Torch, values: Torch, scales: Torch) -> None:
    """Write x as bits of float8_e4m3fn to `values`, and its row scales to `scales`.

    x [M, K] of a float type, its rows at any stride; values [M, K] uint8, contiguous; scales [M] float32: a row's
    largest magnitude becomes 448. The relative error of an element is at most 1/16. Elements below 2**-6 / 448 of the
    largest magnitude have an absolute error of at most 2**-10 / 448 of it.
    """
    rows, width = x.shape
    if rows:
        _quantize[(rows,)](x, values, scales, x.stride(0), width, COLUMNS=_COLUMNS, num_warps=4, **launch_options())


def quantize_groups(x: Torch, values: Torch, scales: Torch, group: int) -> None:
    """Write x as bits of float8_e4m3fn to `values`, and the scales of groups of `group` columns to `scales`.

    x [M, K] of a float type, its rows at any stride; values [M, K] uint8, contiguous; scales [K / group, M] float32,
    contiguous, as `library_products.fp8_groups` reads them. `group` is a power of two that divides K. Errors are those
    of `quantize`, with a group's largest magnitude instead of a row's.
    """
    rows, width = x.shape
    if rows:
        groups = max(1, _COLUMNS // group)
        _quantize_groups[rows, triton.cdiv(width // group, groups)](
            x, values, scales, rows, x.stride(0), width, GROUP=group, GROUPS=groups, num_warps=4, **launch_options()
        )

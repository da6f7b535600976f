"""Embedding lookup in a table of any layout, dequantized row by row: the table need not be in a float type."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.dequantize import affine, e4m3, integers, is_four_bits, nibble_unit, nibbles
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix

_COLUMNS = 1024


@triton.jit
def _embed(tokens, table, scales, minimums, factors, levels, positions, learned, out, factor, hidden, width, groups,
           FORM: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(tokens + row).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = at < hidden
    if is_four_bits(FORM):
        PAIR: tl.constexpr = max(32, GROUP)
        HALF: tl.constexpr = PAIR // 2
        byte = tl.load(table + token * width + at // PAIR * HALF + at % HALF, mask=mask, other=0).to(tl.int32)
        values = nibbles(tl.where(at % PAIR < HALF, byte, byte >> 4), levels, FORM, ZERO, False)
        values *= nibble_unit(FORM, False)
    elif FORM == "int8":
        values = integers(tl.load(table + token * width + at, mask=mask, other=0).to(tl.int32), ZERO)
    elif FORM == "fp8":
        values = e4m3(tl.load(table + token * width + at, mask=mask, other=0))
    else:
        values = tl.load(table + token * width + at, mask=mask, other=0.0).to(tl.float32)
    if GROUP > 0:
        values = affine(values, scales, minimums, token * groups + at // GROUP, mask)
    if factors is not None:
        values *= tl.load(factors + token)
    values *= factor
    if learned is not None:
        place = tl.load(positions + row).to(tl.int64)
        values += tl.load(learned + place * hidden + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + at, values, mask=mask)


def embed(
    tokens: Torch,
    table: DeviceMatrix,
    out: Torch,
    *,
    factor: float = 1.0,
    positions: Torch | None = None,
    learned: Torch | None = None,
) -> None:
    """Write the table's rows for the tokens, times `factor`, to `out`; add the rows of `learned` for `positions`.

    tokens [T] int32 or int64, each a row of the table; out [T, hidden] float32, contiguous. positions [T] int32, and
    learned [positions, hidden] of any float type, contiguous: both or neither.
    """
    hidden = out.shape[1]
    if len(tokens) == 0:
        return
    _embed[len(tokens), triton.cdiv(hidden, _COLUMNS)](
        tokens, table.values, table.scales, table.minimums, table.factors, table.levels, positions, learned, out,
        factor, hidden, table.values.shape[1], table.groups, FORM=table.form, GROUP=table.layout.group,
        ZERO=table.layout.zero, COLUMNS=_COLUMNS, **launch_options(),
    )  # fmt: skip

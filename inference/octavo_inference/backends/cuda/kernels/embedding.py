"""Embedding lookup in a table of any layout, dequantized row by row: the table need not be in a float type."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.dequantize import e4m3, integers
from octavo_inference.backends.cuda.kernels.weight_layouts import Stored

_COLUMNS = 1024


@triton.jit
def _embed(tokens, table, scales, minimums, out, factor, hidden, width, groups, FORM: tl.constexpr, GROUP: tl.constexpr,
           ZERO: tl.constexpr, MINIMUM: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(tokens + row).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = at < hidden
    if FORM == "int4":
        HALF: tl.constexpr = GROUP // 2
        byte = tl.load(table + token * width + at // GROUP * HALF + at % HALF, mask=mask, other=0).to(tl.int32)
        values = integers(tl.where(at % GROUP < HALF, byte & 15, byte >> 4), ZERO)
    elif FORM == "int8":
        values = integers(tl.load(table + token * width + at, mask=mask, other=0).to(tl.int32), ZERO)
    elif FORM == "fp8":
        values = e4m3(tl.load(table + token * width + at, mask=mask, other=0)) * tl.load(scales + token)
    else:
        values = tl.load(table + token * width + at, mask=mask, other=0.0).to(tl.float32)
    if GROUP > 0:
        values *= tl.load(scales + token * groups + at // GROUP, mask=mask, other=0.0).to(tl.float32)
    if MINIMUM:
        values += tl.load(minimums + token * groups + at // GROUP, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + at, values * factor, mask=mask)


def embed(
    tokens: Torch,
    values: Torch,
    scales: Torch | None,
    minimums: Torch | None,
    out: Torch,
    *,
    form: Stored,
    group: int = 0,
    zero: int = 0,
    factor: float = 1.0,
) -> None:
    """Write the table's rows for the tokens, times `factor`, to `out`.

    tokens [T] int32 or int64, each a row of the table; out [T, hidden] float32, contiguous; the table as in
    `linear.linear`.
    """
    hidden = out.shape[1]
    if len(tokens) == 0:
        return
    _embed[len(tokens), triton.cdiv(hidden, _COLUMNS)](
        tokens, values, scales, minimums, out, factor, hidden, values.shape[1], hidden // group if group else 0,
        FORM=form, GROUP=group, ZERO=zero, MINIMUM=minimums is not None, COLUMNS=_COLUMNS,
        **launch_options(),
    )  # fmt: skip

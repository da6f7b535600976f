"""Shared by kernels of state layers: the sequence of a program, decays, and the loads of heads."""

from __future__ import annotations

import triton
import triton.language as tl

FLOOR = 1e-6
"""Added to the squared length of queries and keys of a gated delta net before they are normalized."""


@triton.jit
def softplus(x):
    """log(1 + exp(x)), to float32's last digits also where exp(x) is small."""
    small = tl.exp(tl.minimum(x, 20.0))
    above = 1.0 + small
    # The rounding of `above` cancels: log(above) / (above - 1) changes slowly (Goldberg 1991, theorem 4).
    exact = tl.where(above == 1.0, small, tl.log(above) * small / tl.where(above == 1.0, 1.0, above - 1.0))
    return tl.where(x > 20.0, x, exact)


@triton.jit
def decays_between(total, LENGTH: tl.constexpr):
    """exp(total[i] - total[j]) for j <= i, zero for later j: what is left at i of what was added at j. [LENGTH] twice.

    `total` falls, so the exponents of later j are positive and would overflow.
    """
    at = tl.arange(0, LENGTH)
    earlier = at[:, None] >= at[None, :]
    return tl.exp(tl.where(earlier, total[:, None] - total[None, :], float("-inf")))


@triton.jit
def unit(x, floor):
    """Rows of length one, in float32."""
    return x * tl.rsqrt(tl.sum(x * x, 1) + floor)[:, None]


@triton.jit
def load_state(
    state, row, seq_len, seq, tokens, slot_stride, head, element, column, mask,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Pointers to a tile of a head's state, and its numbers: rows `element`, columns `column`; before `tokens` tokens.

    A sequence starts from zeros in an arbitrary slot.
    """
    stored = tl.where(tl.load(seq_len + seq) > tokens, ROWS, 0)
    slot = state + tl.load(row + seq).to(tl.int64) * slot_stride
    at = slot + (head * ROWS + element)[:, None] * COLUMNS + column[None, :]
    return at, tl.load(at, mask=mask & (element < stored)[:, None], other=0.0)

"""Penalties and bans: step 1 of the rule in ops/sampling.py, in place on the logits.

How often an id occurred is counted by atomics into scratch memory of one row's width. Whoever then takes an id's count
out, by exchanging it for zero, applies it: each id is changed once, and the scratch is clean again without a pass.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

_TILE = 1024


@triton.jit
def _penalize(logits, rows, ids, counts, logits_stride, counts_stride, TILE: tl.constexpr):
    number = tl.program_id(0).to(tl.int64)
    rows += number * 8
    prompt = tl.load(rows + 1)
    output = tl.load(rows + 2)
    banned = tl.load(rows + 3)
    end = tl.load(rows + 4)
    repetition = tl.load(rows + 5).to(tl.float32, bitcast=True)
    frequency = tl.load(rows + 6).to(tl.float32, bitcast=True)
    presence = tl.load(rows + 7).to(tl.float32, bitcast=True)
    logits += tl.load(rows).to(tl.int64) * logits_stride
    counts += number * counts_stride
    lanes = tl.arange(0, TILE)
    # Bit 0 of a count says "in the prompt"; the bits above it are how often the id is in the output.
    for first in range(prompt, output, TILE):
        known = first + lanes < output
        tl.atomic_or(counts + tl.load(ids + first + lanes, mask=known, other=0), 1, mask=known)
    for first in range(output, banned, TILE):
        known = first + lanes < banned
        tl.atomic_add(counts + tl.load(ids + first + lanes, mask=known, other=0), 2, mask=known)
    tl.debug_barrier()  # all is counted
    for first in range(prompt, banned, TILE):
        known = first + lanes < banned
        token = tl.load(ids + first + lanes, mask=known, other=0)
        count = tl.atomic_xchg(counts + token, 0, mask=known)
        mine = known & (count > 0)
        logit = tl.load(logits + token, mask=mine, other=0.0)
        logit = tl.where(logit > 0, tl.div_rn(logit, repetition), logit * repetition)
        times = (count >> 1).to(tl.float32)
        logit = tl.where(times > 0, logit - frequency * times - presence, logit)
        tl.store(logits + token, logit, mask=mine)
    tl.debug_barrier()  # a ban is the last word
    for first in range(banned, end, TILE):
        known = first + lanes < end
        tl.store(logits + tl.load(ids + first + lanes, mask=known, other=0), float("-inf"), mask=known)


def penalize(logits: Torch, rows: Torch, ids: Torch, counts: Torch) -> None:
    """Change some rows of logits by what was said before and by what is banned.

    logits [R, vocab] float32, changed in place. rows [G, 8] int32 are those to change: the row; where in `ids` [n]
    int32 its prompt, its output and its banned ids begin and where these end (each follows the one before); the bits of
    its float32 repetition (neutral: 1), frequency and presence penalties (neutral: 0). counts [>= G, vocab] int32 is
    scratch, zero before and after.
    """
    if len(rows):
        _penalize[(len(rows),)](logits, rows, ids, counts, logits.stride(0), counts.stride(0), TILE=_TILE)

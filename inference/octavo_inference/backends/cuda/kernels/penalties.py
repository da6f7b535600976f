"""Penalties and bans: step 1 of the rule in core/sampling.py, in place on the logits.

Atomics count the occurrences of an id in scratch memory of one row's width. The thread that takes an id's count, by
exchanging it for zero, applies it: each id is changed once, and the scratch is zero again without another pass.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

HEADER = 10
"""Number of integers in the header of one row's changes."""

_TILE = 1024


# The length of a history row differs between servers, whose kernels are compiled ahead once for all.
@triton.jit(do_not_specialize=["history_stride"])
def _penalize(logits, rows, history, banned, counts, logits_stride, history_stride, counts_stride, TILE: tl.constexpr):
    number = tl.program_id(0).to(tl.int64)
    rows += number * 10
    logits += tl.load(rows).to(tl.int64) * logits_stride
    history += tl.load(rows + 1).to(tl.int64) * history_stride
    prompt = tl.load(rows + 2)
    output = tl.load(rows + 3)
    total = tl.load(rows + 4)
    repetition = tl.load(rows + 7).to(tl.float32, bitcast=True)
    frequency = tl.load(rows + 8).to(tl.float32, bitcast=True)
    presence = tl.load(rows + 9).to(tl.float32, bitcast=True)
    counts += number * counts_stride
    lanes = tl.arange(0, TILE)
    # Bit 0 of a count says "in the prompt"; the bits above it are how often the id is in the output.
    for first in range(prompt, output, TILE):
        token = tl.load(history + first + lanes, mask=first + lanes < output, other=-1)
        tl.atomic_or(counts + token, 1, mask=token >= 0)
    for first in range(output, total, TILE):
        token = tl.load(history + first + lanes, mask=first + lanes < total, other=-1)
        tl.atomic_add(counts + token, 2, mask=token >= 0)
    tl.debug_barrier()  # all is counted
    for first in range(prompt, total, TILE):
        token = tl.load(history + first + lanes, mask=first + lanes < total, other=-1)
        count = tl.atomic_xchg(counts + token, 0, mask=token >= 0)
        mine = (token >= 0) & (count > 0)
        logit = tl.load(logits + token, mask=mine, other=0.0)
        logit = tl.where(logit > 0, tl.div_rn(logit, repetition), logit * repetition)
        times = (count >> 1).to(tl.float32)
        logit = tl.where(times > 0, logit - frequency * times - presence, logit)
        tl.store(logits + token, logit, mask=mine)
    tl.debug_barrier()  # a ban is the last word
    end = tl.load(rows + 6)
    for first in range(tl.load(rows + 5), end, TILE):
        known = first + lanes < end
        tl.store(logits + tl.load(banned + first + lanes, mask=known, other=0), float("-inf"), mask=known)


def penalize(logits: Torch, rows: Torch, history: Torch, banned: Torch, counts: Torch) -> None:
    """Apply penalties and bans to some rows of logits.

    logits [R, vocab] float32, changed in place. rows [G, `HEADER`] int32, one for each row to change: its row of logits
    and of history; the offsets in the latter of the prompt's start, the output's start and the output's end; the
    offsets of its ids' start and end in `banned` [n] int32; the bits of its float32 repetition (neutral: 1), frequency
    and presence penalties (neutral: 0). history [rows, positions] int32 has the tokens; -1 is ignored. counts [>= G,
    vocab] int32 is scratch, zero before and after.
    """
    if len(rows):
        _penalize[(len(rows),)](
            logits, rows, history, banned, counts, logits.stride(0), history.stride(0), counts.stride(0), TILE=_TILE
        )

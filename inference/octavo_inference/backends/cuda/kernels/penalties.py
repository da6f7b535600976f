"""Bias, penalties and bans: step 1 of the rule in core/sampling.py, in place on the logits.

Atomics count the occurrences of an id in scratch memory of one row's width. The thread that takes an id's count, by
exchanging it for zero, applies it: each id is changed once, and the scratch is zero again without another pass.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

HEADER = 12
"""Number of integers in the header of one row's changes."""

_TILE = 1024


# Not specialized: the length of a history row differs between servers, which share kernels compiled ahead of time.
@triton.jit(do_not_specialize=["history_stride"])
def _penalize(
    logits,
    rows,
    history,
    rules,
    banned,
    counts,
    logits_stride,
    history_stride,
    rules_stride,
    counts_stride,
    TILE: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    rows += number * 12
    logits += tl.load(rows).to(tl.int64) * logits_stride
    own = tl.load(rows + 1).to(tl.int64)
    history += own * history_stride
    rules += own * rules_stride
    prompt = tl.load(rows + 2)
    output = tl.load(rows + 3)
    total = tl.load(rows + 4)
    repetition = tl.load(rows + 7).to(tl.float32, bitcast=True)
    frequency = tl.load(rows + 8).to(tl.float32, bitcast=True)
    presence = tl.load(rows + 9).to(tl.float32, bitcast=True)
    counts += number * counts_stride
    lanes = tl.arange(0, TILE)
    # The rules' counts precede them (core/logit_rules.py). In a row without rules, the counts are stale.
    ruled = tl.load(rows + 11) != 0
    biased = tl.load(rules, mask=ruled, other=0)
    words = tl.load(rules + 1, mask=ruled, other=0)
    reported = tl.load(rules + 2, mask=ruled, other=0)
    for first in range(0, biased, TILE):
        inside = first + lanes < biased
        token = tl.load(rules + 4 + first + lanes, mask=inside, other=0)
        bias = tl.load(rules + 4 + biased + first + lanes, mask=inside, other=0).to(tl.float32, bitcast=True)
        tl.store(logits + token, tl.load(logits + token, mask=inside, other=0.0) + bias, mask=inside)
    # Bit 0 of a count is 1 if the id is in the prompt. The higher bits count its occurrences in the output.
    for first in range(prompt, output, TILE):
        token = tl.load(history + first + lanes, mask=first + lanes < output, other=-1)
        tl.atomic_or(counts + token, 1, mask=token >= 0)
    for first in range(output, total, TILE):
        token = tl.load(history + first + lanes, mask=first + lanes < total, other=-1)
        tl.atomic_add(counts + token, 2, mask=token >= 0)
    tl.debug_barrier()  # all ids are counted, and all biases are added
    for first in range(prompt, total, TILE):
        token = tl.load(history + first + lanes, mask=first + lanes < total, other=-1)
        count = tl.atomic_xchg(counts + token, 0, mask=token >= 0)
        mine = (token >= 0) & (count > 0)
        logit = tl.load(logits + token, mask=mine, other=0.0)
        logit = tl.where(logit > 0, tl.div_rn(logit, repetition), logit * repetition)
        times = (count >> 1).to(tl.float32)
        logit = tl.where(times > 0, logit - frequency * times - presence, logit)
        tl.store(logits + token, logit, mask=mine)
    tl.debug_barrier()  # bans are applied last
    end = tl.load(rows + 6)
    for first in range(tl.load(rows + 5), end, TILE):
        known = first + lanes < end
        _ban(logits, tl.load(banned + first + lanes, mask=known, other=0), known)
    _ban_completions(logits, rules + 4 + 2 * biased + reported, words, history, output, tl.load(rows + 10), TILE)


@triton.jit
def _ban(logits, ids, mask):
    # NaN and +inf stay: they show that the model's output is not a distribution.
    logit = tl.load(logits + ids, mask=mask, other=0.0)
    tl.store(logits + ids, float("-inf"), mask=mask & (logit < float("inf")))


@triton.jit
def _ban_completions(logits, ends, words, history, output, total, TILE: tl.constexpr):
    """Ban the last token of each bad word whose other tokens are the end of the output. One lane per word."""
    lanes = tl.arange(0, TILE)
    for first in range(0, words, TILE):
        word = first + lanes
        inside = word < words
        end = tl.load(ends + word, mask=inside, other=0)
        start = tl.load(ends + word - 1, mask=inside & (word > 0), other=0)
        last = ends + words + end - 1
        before = end - start - 1
        match = inside & (before <= total - output)
        longest = tl.max(tl.where(match, before, 0))
        for back in range(1, longest + 1):
            said = tl.load(history + total - back)
            expected = tl.load(last - back, mask=match & (back <= before), other=0)
            match = match & ((back > before) | (expected == said))
        _ban(logits, tl.load(last, mask=match, other=0), match)


def penalize(logits: Torch, rows: Torch, history: Torch, rules: Torch, banned: Torch, counts: Torch) -> None:
    """Apply bias, penalties and bans to some rows of logits.

    logits [R, vocab] float32, changed in place. history [rows, positions] int32 has the tokens; -1 is ignored. rules
    [rows, `RULES_WIDTH`] int32 as in `core.logit_rules`. banned [n] int32 has ids. counts [>= G, vocab] int32 is
    scratch, zero before and after. rows [G, `HEADER`] int32, one for each row to change:

    - 0, 1: its row of logits, and its row of history and rules;
    - 2, 3, 4: the start of the prompt, the start of the output and the end of the output in history, excluding tokens
      that its penalties ignore;
    - 5, 6: the start and end of its ids in `banned`;
    - 7, 8, 9: the bits of its float32 repetition (neutral: 1), frequency and presence (neutral: 0) penalties;
    - 10: the end of the output in history, including tokens that its penalties ignore;
    - 11: 1 if its row of `rules` applies.
    """
    if len(rows):
        _penalize[(len(rows),)](
            logits,
            rows,
            history,
            rules,
            banned,
            counts,
            logits.stride(0),
            history.stride(0),
            rules.stride(0),
            counts.stride(0),
            TILE=_TILE,
        )

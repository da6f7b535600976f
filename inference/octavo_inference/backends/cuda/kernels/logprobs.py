"""Log-probabilities of sampled tokens and of the top alternatives: step 2 of the rule in core/sampling.py."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.vocab_reductions import best

_TILE = 8192


@triton.jit
def _log_probabilities(
    logits,
    tokens,
    wanted,
    named,
    row,
    rules,
    integers,
    floats,
    logits_stride,
    rules_stride,
    report_stride,
    vocab,
    width,
    TILE: tl.constexpr,
):
    """If `named` is None (at compile time), all rows report the best ids, and `row` and `rules` are not read."""
    number = tl.program_id(0).to(tl.int64)
    logits += number * logits_stride
    integers += number * report_stride
    floats += number * report_stride
    token = tl.load(tokens + number)
    count = tl.load(wanted + number)
    lanes = tl.arange(0, TILE)
    if (token >= 0) & (count >= 0):
        peak, _ = best(logits, vocab, TILE)
        chosen = tl.load(logits + token)
        mass = tl.zeros([TILE], tl.float64)
        larger = tl.zeros([TILE], tl.int32)
        for start in range(0, vocab, TILE):
            x = tl.load(logits + start + lanes, mask=start + lanes < vocab, other=float("-inf"))
            mass += tl.exp(x - peak).to(tl.float64)
            larger += (x > chosen).to(tl.int32)
        total = peak.to(tl.float64) + tl.log(tl.sum(mass))
        tl.store(floats, (chosen.to(tl.float64) - total).to(tl.float32))
        tl.store(integers, 1 + tl.sum(larger))
        best_count = tl.minimum(count, vocab)
        if named is not None:  # noqa: SIM102 -- decided when the kernel is compiled
            if tl.load(named + number) != 0:
                ids = rules + tl.load(row + number).to(tl.int64) * rules_stride
                ids += 4 + 2 * tl.load(ids)
                for place in range(count):
                    id_ = tl.load(ids + place)
                    tl.store(integers + 1 + place, id_)
                    tl.store(floats + 1 + place, (tl.load(logits + id_).to(tl.float64) - total).to(tl.float32))
                best_count = count * 0
        # Each alternative is the next after the previous one, in the order of logit and then id.
        last = peak * 0 + float("inf")
        last_id = token * 0 - 1
        for place in range(1, tl.minimum(1 + best_count, width)):
            largest = tl.full([TILE], float("-inf"), tl.float32)
            where = tl.zeros([TILE], tl.int32) + vocab
            for start in range(0, vocab, TILE):
                ids = start + lanes
                x = tl.load(logits + ids, mask=ids < vocab, other=float("-inf"))
                behind = (ids < vocab) & ((x < last) | ((x == last) & (ids > last_id)))
                better = behind & ((x > largest) | ((x == largest) & (ids < where)))
                where = tl.where(better, ids, where)
                largest = tl.where(better, x, largest)
            last = tl.max(largest)
            last_id = tl.min(tl.where(largest == last, where, vocab))
            tl.store(integers + place, last_id)
            tl.store(floats + place, (last.to(tl.float64) - total).to(tl.float32))


@dataclass(frozen=True, slots=True)
class NamedIds:
    """Rows that report on ids of their rules: `named` [R] int32 is 1 for these, `row` [R] int32 their row of `rules`.

    rules [rows, `RULES_WIDTH`] int32 as in `core.logit_rules`.
    """

    named: Torch
    row: Torch
    rules: Torch


def log_probabilities(
    logits: Torch,
    tokens: Torch,
    wanted: Torch,
    integers: Torch,
    floats: Torch,
    *,
    named: NamedIds | None = None,
    tile: int | None = None,
) -> None:
    """Report on a token of each row that requests it.

    logits [R, vocab] float32, before any change; tokens [R] int32; wanted [R] int32, the number of alternatives, -1 for
    no report. integers [R, 1 + W] int32 and floats [R, 1 + W] float32 are written for rows with a request and a token.
    Column 0 is the token's rank and log-probability. The next columns are id and log-probability of `wanted`
    alternatives, at most W and vocab. These are the best ones, unless a row is `named`.
    """
    rows, vocab = logits.shape
    if rows:
        size = tile or min(_TILE, triton.next_power_of_2(vocab))
        _log_probabilities[(rows,)](
            logits,
            tokens,
            wanted,
            None if named is None else named.named,
            None if named is None else named.row,
            None if named is None else named.rules,
            integers,
            floats,
            logits.stride(0),
            0 if named is None else named.rules.stride(0),
            integers.stride(0),
            vocab,
            integers.shape[1],
            TILE=size,
            num_warps=max(1, size // 512),
        )

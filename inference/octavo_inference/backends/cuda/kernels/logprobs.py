"""Log-probabilities of sampled tokens and of the top alternatives: step 2 of the rule in core/sampling.py.

One launch reads each tile of the vocabulary in a program of its own, and a second one joins the tiles of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.sampler_scratch import ReportScratch, tile_of
from octavo_inference.backends.cuda.kernels.vocab_reductions import best, following


@triton.jit
def _wanted(token, count, named, number):
    """The number of best alternatives that a row reports, -1 without a report. `named` is None at compile time, or not.

    A row that names its ids reports on these, so it needs no best ones.
    """
    count = tl.where((token >= 0) & (count >= 0), count, -1)
    if named is not None:
        count = tl.where((count > 0) & (tl.load(named + number) != 0), 0, count)
    return count


@triton.jit
def _survey(
    logits, tokens, wanted, named, tops, masses, larger, values, best_ids, logits_stride, vocab,
    MOST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write a tile's part of each sum, and its best logits."""
    number, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = tl.load(tokens + number)
    count = _wanted(token, tl.load(wanted + number), named, number)
    if count >= 0:
        logits += number * logits_stride
        ids = tile * TILE + tl.arange(0, TILE)
        x = tl.load(logits + ids, mask=ids < vocab, other=float("-inf"))
        peak, _ = best(x, ids, vocab)
        # A tile of nothing but -inf has a sum of 0.
        mass = tl.sum(tl.exp(x - tl.where(peak == float("-inf"), 0.0, peak)).to(tl.float64))
        at = number * tl.num_programs(1) + tile
        tl.store(tops + at, peak)
        tl.store(masses + at, mass)
        tl.store(larger + at, tl.sum((x > tl.load(logits + token)).to(tl.int32)))
        last = tl.full((), float("inf"), tl.float32)
        last_id = tl.full((), -1, tl.int32)
        for place in range(tl.minimum(count, MOST)):
            last, last_id = following(x, ids, vocab, last, last_id)
            tl.store(values + at * MOST + place, last)
            tl.store(best_ids + at * MOST + place, last_id)


@triton.jit
def _report(
    logits, tokens, wanted, named, row, rules, tops, masses, larger, values, best_ids, integers, floats,
    logits_stride, rules_stride, report_stride, tiles, vocab, width,
    MOST: tl.constexpr, LIST: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """If `named` is None (at compile time), all rows report the best ids, and `row` and `rules` are not read."""
    number = tl.program_id(0).to(tl.int64)
    logits += number * logits_stride
    integers += number * report_stride
    floats += number * report_stride
    token = tl.load(tokens + number)
    given = tl.load(wanted + number)
    count = _wanted(token, given, named, number)
    if count >= 0:
        numbers = tl.arange(0, TILES)
        at, inside = number * tiles + numbers, numbers < tiles
        x = tl.load(tops + at, mask=inside, other=float("-inf"))
        peak, _ = best(x, numbers, TILES)
        mass = tl.sum(tl.load(masses + at, mask=inside, other=0.0) * tl.exp(x - peak).to(tl.float64))
        total = peak.to(tl.float64) + tl.log(mass)
        tl.store(floats, (tl.load(logits + token).to(tl.float64) - total).to(tl.float32))
        tl.store(integers, 1 + tl.sum(tl.load(larger + at, mask=inside, other=0)))
        if named is not None:  # noqa: SIM102 -- decided when the kernel is compiled
            if tl.load(named + number) != 0:
                ids = rules + tl.load(row + number).to(tl.int64) * rules_stride
                ids += 4 + 2 * tl.load(ids)
                for place in range(given):
                    id_ = tl.load(ids + place)
                    tl.store(integers + 1 + place, id_)
                    tl.store(floats + 1 + place, (tl.load(logits + id_).to(tl.float64) - total).to(tl.float32))
        count = tl.minimum(tl.minimum(count, MOST), tl.minimum(vocab, width - 1))
        # Each alternative is the next after the previous one, in the order of logit and then id.
        entry = tl.arange(0, TILES * LIST)
        listed = (entry // LIST < tiles) & (entry % LIST < count)
        place_of = (number * tiles + entry // LIST) * MOST + entry % LIST
        listed_logits = tl.load(values + place_of, mask=listed, other=float("-inf"))
        listed_ids = tl.load(best_ids + place_of, mask=listed, other=vocab)
        last = tl.full((), float("inf"), tl.float32)
        last_id = tl.full((), -1, tl.int32)
        for place in range(1, 1 + count):
            last, last_id = following(listed_logits, listed_ids, vocab, last, last_id)
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
    scratch: ReportScratch[Torch],
    *,
    named: NamedIds | None = None,
    tile: int | None = None,
) -> None:
    """Report on a token of each row that requests it.

    logits [R, vocab] float32, before any change; tokens [R] int32; wanted [R] int32, the number of alternatives, -1 for
    no report. integers [R, 1 + W] int32 and floats [R, 1 + W] float32 are written for rows with a request and a token.
    Column 0 is the token's rank and log-probability. The next columns are id and log-probability of `wanted`
    alternatives, at most W, vocab, and the alternatives of `scratch` (`report_shapes` for R rows or more). These are
    the best ones, unless a row is `named`: then there are at most W.
    """
    rows, vocab = logits.shape
    if rows == 0:
        return
    tops, masses, larger, values, ids = scratch
    tiles, most, size = tops.shape[1], values.shape[2], tile or tile_of(vocab)
    of_row = (None, None, None, 0) if named is None else (named.named, named.row, named.rules, named.rules.stride(0))
    chosen, row, rules, rules_stride = of_row
    _survey[(rows, tiles)](
        logits, tokens, wanted, chosen, tops, masses, larger, values, ids, logits.stride(0), vocab,
        MOST=most, TILE=size, num_warps=max(1, size // 512),
    )  # fmt: skip
    _report[(rows,)](
        logits, tokens, wanted, chosen, row, rules, tops, masses, larger, values, ids, integers, floats,
        logits.stride(0), rules_stride, integers.stride(0), tiles, vocab, integers.shape[1],
        MOST=most, LIST=triton.next_power_of_2(most), TILES=triton.next_power_of_2(tiles),
    )  # fmt: skip

"""Reductions over one row of logits or weights, tile by tile: used by the sampler and the log-probabilities.

Weights are those of core/sampling.py: float32 from 0 to 1. Their sums are float64.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def best(logits, vocab, TILE: tl.constexpr):
    """The largest logit and the lowest id that has it. The logit is NaN if any logit is NaN."""
    lanes = tl.arange(0, TILE)
    largest = tl.full([TILE], float("-inf"), tl.float32)
    where = lanes
    unordered = lanes < 0
    for start in range(0, vocab, TILE):
        x = tl.load(logits + start + lanes, mask=start + lanes < vocab, other=float("-inf"))
        unordered |= x != x  # noqa: PLR0124  (true only for NaN)
        where = tl.where(x > largest, start + lanes, where)
        largest = tl.where(x > largest, x, largest)
    peak = tl.max(largest)
    token = tl.min(tl.where(largest == peak, where, vocab))
    return tl.where(tl.max(unordered.to(tl.int32)) > 0, float("nan"), peak), token


@triton.jit
def split(weights, vocab, limit, TILE: tl.constexpr):
    """The number of weights not below `limit` (>= 0), their sum, the smallest of them, and the largest one below it."""
    lanes = tl.arange(0, TILE)
    count = tl.zeros([TILE], tl.int32)
    mass = tl.zeros([TILE], tl.float64)
    lightest = tl.full([TILE], 2.0, tl.float32)
    heaviest = tl.full([TILE], -1.0, tl.float32)
    for start in range(0, vocab, TILE):
        w = tl.load(weights + start + lanes, mask=start + lanes < vocab, other=-1.0)
        kept = w >= limit
        count += kept.to(tl.int32)
        mass += tl.where(kept, w, 0.0).to(tl.float64)
        lightest = tl.where(kept, tl.minimum(lightest, w), lightest)
        heaviest = tl.where(kept, heaviest, tl.maximum(heaviest, w))
    return tl.sum(count), tl.sum(mass), tl.min(lightest), tl.max(heaviest)


@triton.jit
def first_past(weights, vocab, limit, last_tie, goal, COUNT_TIES: tl.constexpr, TILE: tl.constexpr):
    """The first id at which the running sum of kept weights exceeds `goal`; the last kept id if rounding leaves none.

    Weights above `limit` are kept, and those equal to it up to the id `last_tie`. With COUNT_TIES the sum counts the
    weights equal to `limit` instead.
    """
    lanes = tl.arange(0, TILE)
    running = goal * 0
    before = goal * 0  # the sum before the tile in which the goal is passed
    tile = vocab * 0
    for start in range(0, vocab, TILE):
        part = tl.sum(_parts(weights, start + lanes, vocab, limit, last_tie, COUNT_TIES))
        here = (running <= goal) & (part > 0)
        tile = tl.where(here, start, tile)
        before = tl.where(here, running, before)
        running += part
    ids = tile + lanes
    parts = _parts(weights, ids, vocab, limit, last_tie, COUNT_TIES)
    past = (before + tl.cumsum(parts) > goal) & (parts > 0)
    first = tl.min(tl.where(past, ids, vocab))
    return tl.where(first < vocab, first, tl.max(tl.where(parts > 0, ids, 0)))


@triton.jit
def _parts(weights, ids, vocab, limit, last_tie, COUNT_TIES: tl.constexpr):
    w = tl.load(weights + ids, mask=ids < vocab, other=-1.0)
    if COUNT_TIES:
        return (w == limit).to(tl.float64)
    return tl.where((w > limit) | ((w == limit) & (ids <= last_tie)), w, 0.0).to(tl.float64)

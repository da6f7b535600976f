"""Reductions over one row of logits or weights: used by the sampler and the log-probabilities.

Weights are those of core/sampling.py: float32 from 0 to 1. Their sums are float64.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def best(logits, ids, vocab):
    """The largest of some logits, NaN if any is, and the lowest of the ids that have it; ids are less than `vocab`."""
    unordered = logits != logits  # noqa: PLR0124  (true only for NaN)
    peak = tl.max(tl.where(unordered, float("-inf"), logits))
    token = tl.min(tl.where(logits == peak, ids, vocab))
    return tl.where(tl.max(unordered.to(tl.int32)) > 0, float("nan"), peak), token


@triton.jit
def following(logits, ids, vocab, last, last_id):
    """The next logit and id after `last` and `last_id`, by logit and then by id; -inf and `vocab` if there is none."""
    behind = (ids < vocab) & ((logits < last) | ((logits == last) & (ids > last_id)))
    largest = tl.max(tl.where(behind, logits, float("-inf")))
    return largest, tl.min(tl.where(behind & (logits == largest), ids, vocab))


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
def edge(weights, vocab, floor, count, mass, goal, BY_MASS: tl.constexpr, TILE: tl.constexpr):
    """The largest weight such that the weights not below it are `goal` or more in number, or in sum (BY_MASS).

    `count` and `mass` are the number and sum of the weights not below `floor`, which reach the goal. Returns the found
    weight, the count and mass of the weights not below it, and the count and mass of those above it.
    """
    low = floor.to(tl.int32, bitcast=True)  # reaches the goal
    high = count * 0 + 0x3F800001  # does not: the next float after 1.0, the largest weight
    count_above = count * 0
    mass_above = mass * 0
    while high - low > 1:
        middle = low + (high - low) // 2
        n, s, lightest, heaviest = split(weights, vocab, middle.to(tl.float32, bitcast=True), TILE)
        reached = s >= goal if BY_MASS else n >= goal
        # Move to the next existing weight, so that the search ends as soon as one value is left in the range.
        low = tl.where(reached, lightest.to(tl.int32, bitcast=True), low)
        high = tl.where(reached, high, heaviest.to(tl.int32, bitcast=True) + 1)
        count = tl.where(reached, n, count)
        mass = tl.where(reached, s, mass)
        count_above = tl.where(reached, count_above, n)
        mass_above = tl.where(reached, mass_above, s)
    return low.to(tl.float32, bitcast=True), count, mass, count_above, mass_above


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
    parts = _parts(weights, tile + lanes, vocab, limit, last_tie, COUNT_TIES)
    return crossing(parts, tile + lanes, before, goal, vocab)


@triton.jit
def first_past_in_tiles(weights, masses, tiles, vocab, limit, share, TILES: tl.constexpr, TILE: tl.constexpr):
    """`first_past` for the goal `share` times the sum of all weights not below `limit`.

    `masses` are the sums of each of the `tiles` tiles, at most TILES, so that only one of these is read.
    """
    numbers = tl.arange(0, TILES)
    parts = tl.load(masses + numbers, mask=numbers < tiles, other=0.0)
    goal = share * tl.sum(parts)
    tile = crossing(parts, numbers, goal * 0, goal, TILES)
    before = tl.sum(tl.where(numbers < tile, parts, 0.0))
    ids = tile * TILE + tl.arange(0, TILE)
    return crossing(_parts(weights, ids, vocab, limit, vocab, False), ids, before, goal, vocab)


@triton.jit
def crossing(parts, ids, before, goal, end):
    """The first id at which the running sum of parts, from `before` on, exceeds `goal`; else the last with a part.

    `end` is more than any id.
    """
    past = (before + tl.cumsum(parts) > goal) & (parts > 0)
    first = tl.min(tl.where(past, ids, end))
    return tl.where(first < end, first, tl.max(tl.where(parts > 0, ids, 0)))


@triton.jit
def _parts(weights, ids, vocab, limit, last_tie, COUNT_TIES: tl.constexpr):
    w = tl.load(weights + ids, mask=ids < vocab, other=-1.0)
    if COUNT_TIES:
        return (w == limit).to(tl.float64)
    return tl.where((w > limit) | ((w == limit) & (ids <= last_tie)), w, 0.0).to(tl.float64)

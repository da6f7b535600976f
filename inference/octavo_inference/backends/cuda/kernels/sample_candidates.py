"""Weights of a row, and the candidates among which top-k and top-p choose: see `sample.choose`.

Weights are counted by size, which is the exponent and two more bits. That is enough to drop nearly all that top-k or
top-p drop: candidates are those of the sizes that stay.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_inference.backends.cuda.kernels.dependent_launch import wait_for_previous
from octavo_inference.backends.cuda.kernels.vocab_reductions import best


@triton.jit
def peaks(logits, tops, firsts, logits_stride, vocab, TILE: tl.constexpr):
    """Write a tile's largest logit and its lowest id."""
    wait_for_previous()
    number, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = tile * TILE + tl.arange(0, TILE)
    x = tl.load(logits + number * logits_stride + ids, mask=ids < vocab, other=float("-inf"))
    peak, token = best(x, ids, vocab)
    tl.store(tops + number * tl.num_programs(1) + tile, peak)
    tl.store(firsts + number * tl.num_programs(1) + tile, token)


@triton.jit
def peak_of(tops, firsts, tiles, vocab, TILES: tl.constexpr):
    """The largest logit of all tiles, NaN with any NaN, and the lowest id that has it."""
    numbers = tl.arange(0, TILES)
    x = tl.load(tops + numbers, mask=numbers < tiles, other=float("-inf"))
    return best(x, tl.load(firsts + numbers, mask=numbers < tiles, other=0), vocab)


@triton.jit
def drawn(sampling, peak):
    """True for a row with a temperature and a largest logit."""
    return (tl.load(sampling + 2).to(tl.float32, bitcast=True) > 0) & (tl.abs(peak) < float("inf"))


@triton.jit
def limits(sampling):
    """top-p, top-k and min-p."""
    p = tl.load(sampling + 3).to(tl.float32, bitcast=True)
    return p, tl.load(sampling + 4), tl.load(sampling + 5).to(tl.float32, bitcast=True)


@triton.jit
def weigh(
    logits, row, sampling, weights, tops, firsts, masses, bins, logits_stride, sampling_stride, weights_stride, vocab,
    TILES: tl.constexpr, BINS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write a tile's weights, the sum of those that min-p keeps, and their numbers by size if top-k or top-p is set."""
    wait_for_previous()
    number, tile, tiles = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    sampling += tl.load(row + number).to(tl.int64) * sampling_stride  # in the order of core.model_input.SAMPLING
    peak, _ = peak_of(tops + number * tiles, firsts + number * tiles, tiles, vocab, TILES)
    if drawn(sampling, peak):
        p, k, floor = limits(sampling)
        ids = tile * TILE + tl.arange(0, TILE)
        x = tl.load(logits + number * logits_stride + ids, mask=ids < vocab, other=float("-inf"))
        w = tl.exp(tl.div_rn(x - peak, tl.load(sampling + 2).to(tl.float32, bitcast=True)))
        tl.store(weights + number * weights_stride + ids, w, mask=ids < vocab)
        kept = (ids < vocab) & (w >= floor) & (w > 0)
        at = number * tiles + tile
        tl.store(masses + at, tl.sum(tl.where(kept, w, 0.0).to(tl.float64)))
        if (p < 1) | (k > 0):
            # Exponent and two bits more; 508 are those of 1.0, the largest weight.
            size = tl.maximum((w.to(tl.int32, bitcast=True) >> 21) - (509 - BINS), 0)
            tl.store(bins + at * BINS + tl.arange(0, BINS), tl.histogram(size, BINS, mask=kept))


@triton.jit
def cut_sizes(
    row, sampling, tops, firsts, masses, bins, starts, cuts, sampling_stride, tiles, vocab,
    TILES: tl.constexpr, BINS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Write the least weight of a row's candidates, and the place of each tile's first one."""
    wait_for_previous()
    number = tl.program_id(0).to(tl.int64)
    sampling += tl.load(row + number).to(tl.int64) * sampling_stride
    starts += number * (tiles + 1)
    bins += number * tiles * BINS
    p, k, floor = limits(sampling)
    peak, _ = peak_of(tops + number * tiles, firsts + number * tiles, tiles, vocab, TILES)
    size, group = tl.arange(0, BINS), tl.arange(0, GROUP)
    count = tl.full((), -1, tl.int32)
    if drawn(sampling, peak) & ((p < 1) | (k > 0)):
        counts = tl.zeros([BINS], tl.int32)
        for first in range(0, tiles, GROUP):
            at = (first + group)[:, None]
            counts += tl.sum(tl.load(bins + at * BINS + size[None, :], mask=at < tiles, other=0), 0)
        kept = tl.sum(counts)
        by_count = (k > 0) & (k < kept)
        if by_count | (p < 1):
            if by_count:
                least = tl.max(tl.where(kept - tl.cumsum(counts) + counts >= k, size, 0))
            else:
                # Drop sizes while the upper bound of their sum is less than the nucleus leaves out.
                numbers = tl.arange(0, TILES)
                mass = tl.sum(tl.load(masses + number * tiles + numbers, mask=numbers < tiles, other=0.0))
                most = ((size + (510 - BINS)) << 21).to(tl.float32, bitcast=True)
                spare = ((1 - p.to(tl.float64)) * mass * 0.999).to(tl.float32)
                least = tl.sum((tl.cumsum(counts * most) <= spare).to(tl.int32))
            count = tl.full((), 0, tl.int32)
            for first in range(0, tiles, GROUP):
                at = (first + group)[:, None]
                inside = (at < tiles) & (size >= least)[None, :]
                found = tl.sum(tl.load(bins + at * BINS + size[None, :], mask=inside, other=0), 1)
                tl.store(starts + first + group, count + tl.cumsum(found) - found, mask=first + group < tiles)
                count += tl.sum(found)
            lower = ((least + (509 - BINS)) << 21).to(tl.float32, bitcast=True)
            tl.store(cuts + number, tl.where(least > 0, tl.maximum(lower, floor), floor))
    tl.store(starts + tiles, count)


@triton.jit
def gather(weights, ids, starts, cuts, weights_stride, vocab, CANDIDATES: tl.constexpr, TILE: tl.constexpr):
    """Write a tile's candidates behind the row's weights, with their ids."""
    wait_for_previous()
    number, tile, tiles = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    starts += number * (tiles + 1)
    count = tl.load(starts + tiles)
    if (count >= 0) & (count <= CANDIDATES):
        weights += number * weights_stride
        own = tile * TILE + tl.arange(0, TILE)
        w = tl.load(weights + own, mask=own < vocab, other=-1.0)
        kept = (w >= tl.load(cuts + number)) & (w > 0)
        place = tl.load(starts + tile) + tl.cumsum(kept.to(tl.int32)) - 1
        tl.store(weights + vocab + place, w, mask=kept)
        tl.store(ids + number * CANDIDATES + place, own, mask=kept)

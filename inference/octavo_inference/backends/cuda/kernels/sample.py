"""Samples a token per row: steps 3 to 8 of the rule in core/sampling.py, without sorting the vocabulary.

The bits of positive float32 numbers, read as integers, have the same order as the numbers. So a binary search over
integers finds exactly the k-th largest weight, and the weight at which the nucleus is complete. Each probe counts and
sums the weights that are not below it, and moves an end of the range to the next existing weight. Ties at the edge of
the nucleus are cut by id.

Sources: the pivots of FlashInfer's sampler (Ye et al. 2025); SplitMix64 (Steele et al. 2014).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.vocab_reductions import best, first_past, split

_TILE = 4096  # more exceeds the registers of the 16 warps that read it


@triton.jit
def _mix(z):
    z += 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _uniform(seed, position):
    """A float64 in [0, 1) that depends on (seed, position) alone; `seed` is a uint64."""
    bits = _mix(_mix(seed) ^ position.to(tl.uint64)) >> 11
    return bits.to(tl.float64) * 1.1102230246251565e-16  # 2**-53


@triton.jit
def _weigh(logits, weights, vocab, peak, temperature, floor, TILE: tl.constexpr):
    """Write the weights. Returns the number of weights not below `floor`, and their sum."""
    lanes = tl.arange(0, TILE)
    count = tl.zeros([TILE], tl.int32)
    mass = tl.zeros([TILE], tl.float64)
    for start in range(0, vocab, TILE):
        inside = start + lanes < vocab
        x = tl.load(logits + start + lanes, mask=inside, other=float("-inf"))
        w = tl.exp(tl.div_rn(x - peak, temperature))
        tl.store(weights + start + lanes, w, mask=inside)
        kept = inside & (w >= floor)
        count += kept.to(tl.int32)
        mass += tl.where(kept, w, 0.0).to(tl.float64)
    return tl.sum(count), tl.sum(mass)


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


# Not specialized: the length of a history row differs between servers, which share kernels compiled ahead of time.
@triton.jit(do_not_specialize=["history_stride"])
def _sample(
    logits,
    weights,
    chosen,
    row,
    position,
    sampling,
    history,
    logits_stride,
    sampling_stride,
    history_stride,
    vocab,
    TILE: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    logits += number * logits_stride
    weights += number * vocab
    own = tl.load(row + number).to(tl.int64)
    place = tl.load(position + number)
    sampling += own * sampling_stride  # in the order of core.model_input.SAMPLING
    heat = tl.load(sampling + 2).to(tl.float32, bitcast=True)
    peak, token = best(logits, vocab, TILE)
    if tl.abs(peak) < float("inf"):
        if heat > 0:
            p = tl.load(sampling + 3).to(tl.float32, bitcast=True)
            k = tl.load(sampling + 4)
            limit = tl.load(sampling + 5).to(tl.float32, bitcast=True)
            last_tie = vocab
            count, mass = _weigh(logits, weights, vocab, peak, heat, limit, TILE)
            tl.debug_barrier()  # other threads read the weights now
            if (k > 0) & (k < count):
                limit, count, mass, _, _ = edge(weights, vocab, limit, count, mass, k, False, TILE)
            if (p < 1) & (count > 1):
                # More than zero, so that at least one id stays for any p.
                goal = tl.maximum(p.to(tl.float64) * mass, 1e-300)
                limit, count, mass, count_above, mass_above = edge(weights, vocab, limit, count, mass, goal, True, TILE)
                share = limit.to(tl.float64)
                quota = tl.ceil((goal - mass_above) / share)  # how many of the weights equal to the limit are needed
                if quota < count - count_above:
                    last_tie = first_past(weights, vocab, limit, last_tie, quota - 1, True, TILE)
                    mass = mass_above + quota * share
            low = tl.load(sampling).to(tl.uint32, bitcast=True).to(tl.uint64)
            high = tl.load(sampling + 1).to(tl.uint32, bitcast=True).to(tl.uint64)
            token = first_past(weights, vocab, limit, last_tie, _uniform((high << 32) | low, place) * mass, False, TILE)
    else:
        token = tl.where(peak < 0, -2, -1)  # false for a NaN
    tl.store(chosen + number, token)
    tl.store(history + own * history_stride + place, token)


def choose(
    logits: Torch,
    weights: Torch,
    chosen: Torch,
    *,
    row: Torch,
    position: Torch,
    sampling: Torch,
    history: Torch,
    tile: int | None = None,
) -> None:
    """Sample a token for each row of adjusted logits, and write it into the row table.

    logits [R, vocab] float32; weights [>= R, vocab] float32, scratch, may be the memory of `logits`; chosen [R] int32,
    written, -1 for a row with NaN logits, -2 for one whose logits are all -inf. row [R] and position [R] int32: the
    destination of the token in history [rows, positions] int32 (of several tokens with one destination, one is
    written). sampling [rows, 6] int32 as in `core.model_input.SAMPLING`.
    """
    rows, vocab = logits.shape
    if rows:
        size = tile or min(_TILE, triton.next_power_of_2(vocab))
        _sample[(rows,)](
            logits,
            weights,
            chosen,
            row,
            position,
            sampling,
            history,
            logits.stride(0),
            sampling.stride(0),
            history.stride(0),
            vocab,
            TILE=size,
            num_warps=max(1, size // 256),
        )

"""Samples a token per row: steps 3 to 8 of the rule in core/sampling.py, without sorting the vocabulary.

Five launches share the work of a row among programs, one for each tile of the vocabulary where all of it is read:

    peaks       each tile   its largest logit
    weigh       each tile   weights, their sum; with top-k or top-p also how many there are of each size
    cut_sizes   each row    a weight that top-k and top-p do not drop, from these counts
    gather      each tile   the weights not below it, in the order of their ids: the row's candidates
    _draw       each row    the tokens: from the sums of tiles, or from the candidates

The bits of positive float32 numbers, read as integers, have the same order as the numbers: their upper bits are the
size by which weights are counted, and `edge` searches the exact limit among the candidates. A row with more candidates
than there is room for is searched as a whole. Ties at the edge of the nucleus are cut by id.

Sources: the pivots of FlashInfer's sampler (Ye et al. 2025); SplitMix64 (Steele et al. 2014).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.sample_candidates import (
    cut_sizes,
    drawn,
    gather,
    limits,
    peak_of,
    peaks,
    weigh,
)
from octavo_inference.backends.cuda.kernels.sampler_scratch import BINS, SampleScratch, tile_of
from octavo_inference.backends.cuda.kernels.vocab_reductions import (
    edge,
    first_past,
    first_past_in_tiles,
    split,
)

_GROUP = 16  # tiles whose counts are read at once


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
def _among(weights, ids, count, cut, mass, p, k, u, vocab, CANDIDATES: tl.constexpr, TILE: tl.constexpr):
    """The token that top-k, top-p and the draw `u` choose; `mass` is the sum of the weights that min-p keeps."""
    gathered = count <= CANDIDATES
    weights += tl.where(gathered, vocab, 0)
    end = tl.where(gathered, count, vocab)
    limit, last_tie = cut, end
    count, own, _lightest, _heaviest = split(weights, end, limit, TILE)
    whole = tl.where((k > 0) & (k <= count), own, mass)
    if (k > 0) & (k < count):
        limit, count, own, _, _ = edge(weights, end, limit, count, own, k, False, TILE)
        whole = own
    if (p < 1) & (count > 1):
        # More than zero, so that at least one id stays for any p.
        goal = tl.maximum(p.to(tl.float64) * whole, 1e-300)
        limit, count, own, count_above, mass_above = edge(weights, end, limit, count, own, goal, True, TILE)
        share = limit.to(tl.float64)
        quota = tl.ceil((goal - mass_above) / share)  # how many of the weights equal to the limit are needed
        if quota < count - count_above:
            last_tie = first_past(weights, end, limit, last_tie, quota - 1, True, TILE)
            own = mass_above + quota * share
    place = first_past(weights, end, limit, last_tie, u * own, False, TILE)
    return tl.where(gathered, tl.load(ids + place, mask=gathered, other=0), place)


# Not specialized: the length of a history row differs between servers, which share kernels compiled ahead of time.
@triton.jit(do_not_specialize=["history_stride"])
def _draw(
    weights, ids, tops, firsts, masses, starts, cuts, chosen, row, position, sampling, history, weights_stride,
    sampling_stride, history_stride, tiles, vocab, TILES: tl.constexpr, CANDIDATES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    wait_for_previous()
    number = tl.program_id(0).to(tl.int64)
    own = tl.load(row + number).to(tl.int64)
    place = tl.load(position + number)
    sampling += own * sampling_stride
    weights += number * weights_stride
    masses += number * tiles
    peak, token = peak_of(tops + number * tiles, firsts + number * tiles, tiles, vocab, TILES)
    if tl.abs(peak) < float("inf"):
        if drawn(sampling, peak):
            p, k, floor = limits(sampling)
            low = tl.load(sampling).to(tl.uint32, bitcast=True).to(tl.uint64)
            high = tl.load(sampling + 1).to(tl.uint32, bitcast=True).to(tl.uint64)
            u = _uniform((high << 32) | low, place)
            count = tl.load(starts + number * (tiles + 1) + tiles)
            if count < 0:
                token = first_past_in_tiles(weights, masses, tiles, vocab, floor, u, TILES, TILE)
            else:
                numbers = tl.arange(0, TILES)
                mass = tl.sum(tl.load(masses + numbers, mask=numbers < tiles, other=0.0))
                cut = tl.load(cuts + number)
                token = _among(
                    weights, ids + number * CANDIDATES, count, cut, mass, p, k, u, vocab, CANDIDATES, TILE
                )  # fmt: skip
    else:
        token = tl.where(peak < 0, -2, -1)  # false for a NaN
    tl.store(chosen + number, token)
    tl.store(history + own * history_stride + place, token)


def choose(
    logits: Torch,
    scratch: SampleScratch[Torch],
    chosen: Torch,
    *,
    row: Torch,
    position: Torch,
    sampling: Torch,
    history: Torch,
    tile: int | None = None,
) -> None:
    """Sample a token for each row of adjusted logits, and write it into the row table.

    logits [R, vocab] float32, may be the first columns of `scratch.weights`; scratch of `sample_shapes` for R rows or
    more; chosen [R] int32, written, -1 for a row with NaN logits, -2 for one whose logits are all -inf. row [R] and
    position [R] int32: the destination of the token in history [rows, positions] int32 (of several tokens with one
    destination, one is written). sampling [rows, 6] int32 as in `core.model_input.SAMPLING`.
    """
    rows, vocab = logits.shape
    if rows == 0:
        return
    weights, ids, tops, firsts, masses, bins, starts, cuts = scratch
    size, tiles, candidates = tile or tile_of(vocab), tops.shape[1], ids.shape[1]
    warps, most = max(1, size // 512), triton.next_power_of_2(tiles)
    each, columns = (rows, tiles), sampling.stride(0)
    options = launch_options()
    peaks[each](logits, tops, firsts, logits.stride(0), vocab, TILE=size, num_warps=warps, **options)
    weigh[each](
        logits, row, sampling, weights, tops, firsts, masses, bins, logits.stride(0), columns, weights.stride(0),
        vocab, TILES=most, BINS=BINS, TILE=size, num_warps=warps, **options,
    )  # fmt: skip
    cut_sizes[(rows,)](
        row, sampling, tops, firsts, masses, bins, starts, cuts, columns, tiles, vocab, TILES=most, BINS=BINS,
        GROUP=_GROUP, **options,
    )  # fmt: skip
    gather[each](
        weights, ids, starts, cuts, weights.stride(0), vocab, CANDIDATES=candidates, TILE=size, num_warps=warps,
        **options,
    )  # fmt: skip
    _draw[(rows,)](
        weights, ids, tops, firsts, masses, starts, cuts, chosen, row, position, sampling, history, weights.stride(0),
        columns, history.stride(0), tiles, vocab, TILES=most, CANDIDATES=candidates, TILE=size, num_warps=2 * warps,
        **options,
    )  # fmt: skip

"""Reference sampler in numpy: the rule that every backend's sampler implements.

For one row of float32 logits:

1. **Adjust** (`LogitAdjust`). The bias of an id is added to its logit. Then repetition penalty r over every distinct
   id of prompt and output: l > 0 becomes l / r, else l * r. Then l -= frequency * count in output, then l -= presence
   for ids in the output. Then banned ids get -inf: those of the step, those that are not allowed, and the last token of
   each bad word whose tokens before it end the output. A ban leaves NaN and +inf as they are.
   A row with a NaN, or whose largest adjusted logit is infinite, has no choice: its token is -1, or -2 if all its
   logits are -inf, and nothing else of it is defined.
2. **Log-probabilities** are log-softmax of the logits before step 1 (vLLM's `raw_logprobs`). `rank` is 1 + the number
   of ids with a larger logit. Alternatives are the best ones, sorted by logit descending, then id ascending; or the ids
   that the request names, in its order.
3. **Greedy** (temperature 0): the largest adjusted logit; of equals the lowest id.
4. **Weights**: w = exp((l - max l) / temperature) in float32, so that the largest is 1.
5. **min-p**: drop ids with w < min_p.
6. **top-k** (k > 0): drop ids with w smaller than the k-th largest weight; ids equal to it stay.
7. **top-p** (p < 1): of the ids still kept, ordered by w descending, then id ascending, keep the shortest prefix whose
   sum is >= p times the sum of all kept ids; at least one.
8. **Draw**: u = `uniform(seed, position)`; of the kept ids in ascending order of id, the first whose running sum
   exceeds u * (sum of the kept weights). Sums are in float64. If rounding leaves none, the last kept id with w > 0.

`uniform` is a counter-based hash, so a choice depends on (seed, position) alone and not on the batch:
    mix(z): z += 0x9E3779B97F4A7C15; z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9; z = (z ^ z >> 27) * 0x94D049BB133111EB;
            z ^ z >> 31                                     (all modulo 2**64; SplitMix64, Steele et al. 2014)
    uniform(seed, position) = (mix(mix(seed) ^ position) >> 11) * 2**-53
The order of 1 and of 4 to 7 is vLLM's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo_inference.core.gather import LogitAdjust, SampleRows
from octavo_inference.core.logit_rules import LogitRules
from octavo_inference.core.model_input import NO_CHOICE, NOT_NUMBERS, Float32, Int32, ScoredTokens, StepResult

_MASK = 0xFFFFFFFFFFFFFFFF


def mix(value: int) -> int:
    """SplitMix64 of a 64-bit integer."""
    z = (value + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on (seed, position) alone."""
    return (mix(mix(seed) ^ position) >> 11) * 2.0**-53


def sequence_seed(seed: int, index: int) -> int:
    """Seed of sequence `index` of a request's n; the first keeps the request's own."""
    return seed & _MASK if index == 0 else mix((seed & _MASK) ^ mix(index))


def adjust_logits(logits: Float32, adjust: LogitAdjust) -> Float32:
    """Step 1 on a copy of one row."""
    row = logits.copy()
    rules = adjust.rules
    row[rules.bias_ids] += rules.bias
    if adjust.repetition_penalty != 1.0:
        seen = np.unique(np.concatenate([adjust.prompt, adjust.output]))
        penalty = np.float32(adjust.repetition_penalty)
        row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    if adjust.frequency_penalty or adjust.presence_penalty:
        ids, counts = np.unique(adjust.output, return_counts=True)
        row[ids] -= np.float32(adjust.frequency_penalty) * counts.astype(np.float32)
        row[ids] -= np.float32(adjust.presence_penalty)
    _ban(row, adjust.banned)
    _ban(row, completions(rules, adjust.output))
    if len(rules.mask):
        _ban(row, np.flatnonzero(np.unpackbits(rules.mask.view(np.uint8), count=len(row), bitorder="little") == 0))
    return row


def completions(rules: LogitRules, output: Int32) -> list[int]:
    """The tokens that would complete a bad word after this output."""
    found = []
    for start, end in zip([0, *rules.word_ends.tolist()], rules.word_ends.tolist(), strict=False):
        before = rules.word_tokens[start : end - 1]
        if len(before) <= len(output) and np.array_equal(before, output[len(output) - len(before) :]):
            found.append(int(rules.word_tokens[end - 1]))
    return found


def _ban(row: Float32, ids: Int32 | NDArray[np.int64] | list[int]) -> None:
    given = row[ids]
    row[ids] = np.where(given < np.inf, np.float32(-np.inf), given)


def choose(logits: Float32, *, temperature: float, top_p: float, top_k: int, min_p: float, u: float) -> int:
    """Steps 3 to 8 on one row of adjusted logits."""
    if temperature == 0.0:
        return int(np.argmax(logits))
    weights = np.exp((logits - logits.max()) / np.float32(temperature))
    keep = weights >= np.float32(min_p)
    if 0 < top_k < len(weights):
        candidates = np.where(keep, weights, np.float32(0))
        keep &= weights >= np.partition(candidates, len(weights) - top_k)[len(weights) - top_k]
    if top_p < 1.0:
        keep = _nucleus(weights, keep, top_p)
    ids = np.flatnonzero(keep & (weights > 0))
    running = np.cumsum(weights[ids], dtype=np.float64)
    index = int(np.searchsorted(running, u * running[-1], side="right"))
    return int(ids[min(index, len(ids) - 1)])


def _nucleus(weights: Float32, keep: NDArray[np.bool_], top_p: float) -> NDArray[np.bool_]:
    ids = np.flatnonzero(keep)
    order = ids[np.argsort(-weights[ids], kind="stable")]
    running = np.cumsum(weights[order], dtype=np.float64)
    count = int(np.searchsorted(running, float(np.float32(top_p)) * running[-1], side="left")) + 1
    kept = np.zeros_like(keep)
    kept[order[:count]] = True
    return kept


def log_probabilities(
    logits: Float32, token: int, count: int, ids: Int32 | None = None
) -> tuple[float, int, tuple[Int32, Float32]]:
    """Step 2 on one row: the chosen token's log-probability and rank, and the alternatives (ids, log-probabilities).

    The alternatives are `ids`, or the `count` best.
    """
    peak = logits.max()
    total = float(peak) + float(np.log(np.exp(logits - peak, dtype=np.float64).sum()))
    rank = 1 + int(np.count_nonzero(logits > logits[token]))
    if ids is not None:
        best = ids.astype(np.int64)
    elif count == 0:
        best = np.empty(0, np.int64)
    else:
        # Take every logit not below the count-th largest, so that the id breaks ties and not the partition order.
        limit = np.partition(logits, len(logits) - count)[len(logits) - count]
        reached = np.flatnonzero(logits >= limit)
        best = reached[np.argsort(-logits[reached], kind="stable")][:count]
    top = (best.astype(np.int32), (logits[best].astype(np.float64) - total).astype(np.float32))
    return float(logits[token]) - total, rank, top


def sample(logits: Float32, rows: SampleRows) -> StepResult:
    """Choose one token for each row of logits [R, vocab]."""
    count = len(rows.row)
    result = StepResult(
        np.zeros(count, np.int32), np.zeros(count, np.float32), np.zeros(count, np.int32), [None] * count
    )
    for i in range(count):
        adjust = rows.adjust[i]
        row = logits[i] if adjust is None else adjust_logits(logits[i], adjust)
        if not np.isfinite(row.max()):  # the maximum of numbers and NaN is NaN
            result.tokens[i] = NO_CHOICE if row.max() == -np.inf else NOT_NUMBERS
            continue
        token = choose(
            row,
            temperature=float(rows.temperature[i]),
            top_p=float(rows.top_p[i]),
            top_k=int(rows.top_k[i]),
            min_p=float(rows.min_p[i]),
            u=uniform(int(rows.seed[i]), int(rows.position[i])),
        )
        result.tokens[i] = token
        alternatives = int(rows.logprobs[i])
        if alternatives >= 0:
            ids = rows.report_ids[i] if rows.report_ids else None
            result.logprob[i], result.rank[i], result.top[i] = log_probabilities(logits[i], token, alternatives, ids)
    return result


def score(logits: Float32, tokens: Int32, count: int) -> ScoredTokens:
    """Step 2 on rows [n, vocab] for given tokens [n], with `count` alternatives each; NaN for a row of step 1's -1."""
    width = min(count, logits.shape[1])
    scored = ScoredTokens(
        np.full(len(tokens), np.nan, np.float32),
        np.zeros(len(tokens), np.int32),
        np.zeros((len(tokens), width), np.int32),
        np.zeros((len(tokens), width), np.float32),
    )
    for i, (row, token) in enumerate(zip(logits, tokens.tolist(), strict=True)):
        if np.isfinite(row.max()):
            scored.logprob[i], scored.rank[i], top = log_probabilities(row, token, width)
            scored.top_ids[i], scored.top_logprobs[i] = top
    return scored


def joined(parts: Sequence[ScoredTokens]) -> ScoredTokens:
    """One result of those of consecutive pieces."""
    columns = zip(*parts, strict=True)
    return ScoredTokens(*(np.concatenate(column) for column in columns))

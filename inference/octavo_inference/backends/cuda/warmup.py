"""Batches that need every kernel a server will need, run before it is ready: Triton compiles at the first launch.

Which variant of a kernel runs depends on how many tokens, sequences and sample rows a step has: the tiles of products
change at 16, 32 and 64 rows, and the segments of decoding attention at powers of two.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from octavo_inference.backends.cuda.buffers import StepLimits
from octavo_inference.core.model_input import Batch, LogitAdjust, SampleRows

_PROMPTS = (16, 32, 64)


def rehearsal(limits: StepLimits) -> Iterator[Batch]:
    """Decodes of one sequence up to all, prompts of few tokens up to a whole step, and each kind of sampling.

    All sequences write to block 0: nobody has a block yet.
    """
    yield _batch([1], limits, "all")
    rows = min(limits.rows, limits.tokens)
    for count in sorted({2**i for i in range(rows.bit_length())} | {rows}):
        yield _batch([1] * count, limits, "greedy")
    for tokens in sorted({min(n, limits.tokens) for n in (*_PROMPTS, limits.tokens)}):
        yield _batch(_cut(tokens, limits), limits, "sampled")


def _cut(tokens: int, limits: StepLimits) -> list[int]:
    """Lengths of the fewest sequences that have so many tokens, as far as rows go."""
    whole, rest = divmod(tokens, limits.positions)
    return ([limits.positions] * whole + [rest] * (rest > 0))[: limits.rows]


def _batch(lengths: list[int], limits: StepLimits, sampling: str) -> Batch:
    """One sequence of each length, from its first token on."""
    count, size = sum(lengths), len(lengths)
    query_start = np.cumsum([0, *lengths], dtype=np.int32)
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
    last = query_start[1:] - 1
    sample = SampleRows.greedy(last.astype(np.int32), np.array(lengths, np.int32))
    if sampling != "greedy":
        sample.temperature[:], sample.top_p[:], sample.top_k[:], sample.min_p[:] = 0.7, 0.9, 2, 0.01
    if sampling == "all":
        sample.logprobs[:] = 1
        ids = np.zeros(1, np.int32)
        sample.adjust[:] = [LogitAdjust(ids, ids, 0.1, 0.1, 1.1, ids)] * size
    return Batch(
        tokens=np.zeros(count, np.int32),
        positions=positions,
        slots=positions % limits.block_size,
        query_start=query_start,
        seq_len=np.array(lengths, np.int32),
        block_table=np.zeros((size, -(-max(lengths) // limits.block_size)), np.int32),
        sample=sample,
    )

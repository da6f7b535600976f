"""Batches that need every kernel a server will need, run before it is ready: Triton compiles at the first launch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from octavo_inference.ops.cuda.buffers import Limits
from octavo_inference.run.batch import Batch, LogitAdjust, SampleRows


def rehearsal(limits: Limits) -> Iterator[Batch]:
    """Decodes of each power of two of sequences, a prompt alone and beside a decode, and each kind of sampling.

    All sequences write to block 0: nobody has a block yet.
    """
    rows = 1
    while rows <= limits.rows:
        yield _batch([1] * rows, "all" if rows == 1 else "greedy")
        rows *= 2
    longest = min(limits.tokens, limits.block_size)
    for lengths in ([longest], [longest - 1], [1, longest - 1]):
        if len(lengths) <= limits.rows:
            yield _batch(lengths, "sampled")


def _batch(lengths: list[int], sampling: str) -> Batch:
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
        slots=positions,
        query_start=query_start,
        seq_len=np.array(lengths, np.int32),
        block_table=np.zeros((size, 1), np.int32),
        sample=sample,
    )

"""The largest steps, computed once before requests: kernels are compiled, and the memory of activations is seen."""

from __future__ import annotations

import numpy as np

from octavo_inference.backends.transformers.backend import SCORED_TOKENS, TransformersBackend
from octavo_inference.core.gather import Batch, SampleRows


def rehearse(backend: TransformersBackend, *, rows: int, tokens: int, longest: int) -> None:
    """Run a step of prompts and one of decodes, with `rows` sequences and `tokens` query tokens at most.

    All sequences have the `longest` context. Every block is the pool's first, whose content is arbitrary.
    """
    size = min(tokens, longest)
    counts = np.full(-(-tokens // size), size)
    counts[-1] -= counts.sum() - tokens
    for each in (counts, np.ones(min(rows, tokens), np.int64)):
        backend.logits(_batch(each, longest, backend.block_size, min(rows + SCORED_TOKENS, int(each.sum()))))


def _batch(counts: np.ndarray, longest: int, block_size: int, sampled: int) -> Batch:
    """Sequences with so many last tokens of `longest` in the step; the last `sampled` query tokens are sample rows."""
    ends = np.cumsum([0, *counts]).astype(np.int32)
    positions = np.concatenate([np.arange(longest - count, longest, dtype=np.int32) for count in counts])
    total = len(positions)
    chosen = np.arange(total - sampled, total, dtype=np.int32)
    return Batch(
        tokens=np.zeros(total, np.int32),
        positions=positions,
        slots=(positions % block_size)[None],
        query_start=ends,
        seq_len=np.full(len(counts), longest, np.int32),
        block_table=np.zeros((1, len(counts), -(-longest // block_size)), np.int32),
        sample=SampleRows.greedy(chosen, positions[chosen] + 1),
    )

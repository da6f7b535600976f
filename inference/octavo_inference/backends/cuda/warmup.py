"""Warm-up steps that launch every kernel variant of a server before it is ready: Triton compiles at the first launch.

The variant depends on a step's numbers of tokens, sequences and sample rows. The tiles of products change at
`ROW_STEPS`, those of adapters at `adapter_configs.row_steps`. From `LIBRARY_ROWS` on, products with fp8 in groups
depend on whether `GROUPED_ROWS` divides the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from octavo_inference.backends.cuda.buffers import StepLimits
from octavo_inference.backends.cuda.kernels.adapter_configs import row_steps
from octavo_inference.backends.cuda.kernels.launch_configs import ROW_STEPS
from octavo_inference.backends.cuda.library_products import GROUPED_ROWS
from octavo_inference.backends.cuda.linear import LIBRARY_ROWS
from octavo_inference.core.model_input import (
    RULES_HEADER,
    Penalty,
    PromptScores,
    RowChange,
    RowPooling,
    RowSamples,
    RowStep,
    sampling_columns,
)

_TOKENS = (*ROW_STEPS, LIBRARY_ROWS, -(-LIBRARY_ROWS // GROUPED_ROWS) * GROUPED_ROWS)


def rehearsal(limits: StepLimits, more: Sequence[int] = (), adapted: Sequence[int] = ()) -> Iterator[RowStep]:
    """Decodes from one sequence to all, prompts from a few tokens to a whole step, each kind of sampling, and pooling.

    Then the same with adapters, where steps may have some. `more`: further numbers of tokens at which kernels change;
    `adapted`: those at which kernels of adapters do.
    All sequences write to block 0: no request owns a block yet. They use slot 0 of adapters, which is empty.
    """
    yield _step([1], limits, "all")
    yield _step([1], limits, "named ids")
    rows = min(limits.rows, limits.tokens)
    for count in sorted({2**i for i in range(rows.bit_length())} | {rows}):
        yield _step([1] * count, limits, "greedy")
    for tokens in sorted({min(n, limits.tokens) for n in (*_TOKENS, *more, limits.tokens)}):
        yield _step(_cut(tokens, limits), limits, "sampled")
    if not limits.adapters:
        return
    yield _adapted(_step([1], limits, "all"))
    for count in row_steps(rows):
        yield _adapted(_step([1] * count, limits, "greedy"))
    for tokens in sorted({min(n, limits.tokens) for n in (*row_steps(limits.tokens), *more, *adapted)}):
        yield _adapted(_step(_cut(tokens, limits), limits, "greedy"))


def _adapted(step: RowStep) -> RowStep:
    return replace(step, adapter=np.zeros(len(step.row), np.int32))


def _cut(tokens: int, limits: StepLimits) -> list[int]:
    """Lengths of the fewest sequences with this many tokens in total, as far as rows suffice."""
    whole, rest = divmod(tokens, limits.positions)
    return ([limits.positions] * whole + [rest] * (rest > 0))[: limits.rows]


def _step(lengths: list[int], limits: StepLimits, sampling: str) -> RowStep:
    """A step with one sequence of each length, from its first token on, in the rows from 0 on."""
    rows, seq_len = np.arange(len(lengths), dtype=np.int32), np.array(lengths, np.int32)
    query_start = np.cumsum([0, *lengths], dtype=np.int32)
    greedy, everything, named = (sampling == kind for kind in ("greedy", "all", "named ids"))
    columns = sampling_columns() if greedy else sampling_columns(temperature=0.7, top_p=0.9, top_k=2, min_p=0.01)
    changes: list[RowChange] = []
    for row, length in enumerate(lengths):
        changes += [
            RowChange("tokens", row, 0, np.zeros(length, np.int32)),
            RowChange("blocks", row, 0, np.zeros(-(-length // limits.block_size), np.int32)),
            RowChange("sampling", row, 0, columns),
            RowChange("rules", row, 0, np.zeros(RULES_HEADER, np.int32)),
        ]
    penalty = Penalty(0, 1, 0.1, 0.1, 1.1, np.zeros(1, np.int32), rules=True, mask=True) if everything else None
    samples = RowSamples(
        query=query_start[1:] - 1,
        row=rows,
        position=seq_len,
        logprobs=np.full(len(rows), 1 if everything else 0 if named else -1, np.int32),
        penalties=[penalty] * len(rows),
        report_ids=np.full(len(rows), named, np.int32),
    )
    fresh = np.ones(len(rows), np.int32)
    pooling = RowPooling(row=rows, first=query_start[:-1], end=query_start[1:], fresh=fresh, done=fresh)
    scores = [PromptScores(0, 0, 0, 1, 0)] if everything else []
    return RowStep(changes, rows, query_start, seq_len, samples, pooling=None if greedy else pooling, scores=scores)

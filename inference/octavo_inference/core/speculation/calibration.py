"""Measures the times of steps on a backend that serves no request yet, by their number of tokens."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import numpy as np

from octavo_inference.core.backend import Backend
from octavo_inference.core.model_input import RowChange, RowSamples, RowStep, RowTable, sampling_columns
from octavo_inference.core.speculation.expected_times import TokenCurve

_COARSE = (1, 8, 32, 64)
_FINE = (2, 3, 4, 5, 6, 7, 9, 12, 16, 17, 20, 24, 25, 28, 33, 40, 48, 49, 56, 65, 80, 96, 128, 160, 192, 256)
"""Numbers of tokens: tiles of kernels end at multiples of 8, 16 or 32, and the next one begins."""
_CONTEXT = 128
"""Tokens before those that are computed, if so many fit."""
_REPEATS = 4
"""The shortest time of so many counts: something else may run."""


def token_curve(
    backend: Backend,
    *,
    rows: int,
    tokens: int,
    most: int,
    max_model_len: int,
    clock: Callable[[], float],
    seconds: float = 1.5,
) -> TokenCurve:
    """The times of steps with up to `tokens` tokens of up to `rows` sequences, each of at most 1 + `most` tokens.

    It takes about so many `seconds`, or the coarse part of the curve if that takes longer. The KV pool has arbitrary
    contents afterwards.
    """
    most = min(most, max_model_len - 1)
    steps = _Steps(backend, rows, max_model_len, min(_CONTEXT, max_model_len - 1 - most))
    begun = clock()
    known: dict[int, float] = {}
    largest = min(tokens, rows * (1 + most))
    coarse = [*(count for count in _COARSE if count < largest), largest]
    for count in (*coarse, *(count for count in _FINE if count < largest)):
        if count not in coarse and clock() - begun > seconds:
            break
        known[count] = steps.measure(-(-count // (1 + most)), count, clock)
    # The same tokens of more sequences: attention reads more contexts.
    many = max((count for count in known if count <= min(rows, 16)), default=1)
    few = -(-many // (1 + most))
    per_row = 0.0
    if many > few:
        per_row = max(0.0, steps.measure(many, many, clock) - known[many]) / (many - few)
    counts = sorted(known)
    times = [max(1e-6, known[count] - per_row * -(-count // (1 + most))) for count in counts]
    # More tokens take no less time: what says otherwise is noise.
    return TokenCurve(tuple(counts), tuple(accumulate(times, max)), per_row)


class _Steps:
    """Steps of sequences with arbitrary tokens, which lie in arbitrary blocks."""

    def __init__(self, backend: Backend, rows: int, max_model_len: int, context: int) -> None:
        self._backend = backend
        self._context = context
        size, groups = backend.block_size, len(backend.layout.groups)
        self._table = RowTable.zeros(rows, max_model_len, size, backend.vocab_size, backend.hidden_size, groups)
        # Not all alike, for models with experts.
        self._table.tokens[:] = np.arange(self._table.tokens.size).reshape(rows, -1) * 31 % backend.vocab_size
        self._table.blocks[:] = (
            np.arange(self._table.blocks.size).reshape(self._table.blocks.shape) % backend.num_blocks
        )
        self._table.sampling[:] = sampling_columns()
        self._sent: set[int] = set()

    def measure(self, rows: int, tokens: int, clock: Callable[[], float]) -> float:
        """The shortest time of a step with so many tokens of so many sequences."""
        times = []
        for _ in range(_REPEATS):
            step = self._step(rows, tokens)
            begun = clock()
            self._backend.launch(step).collect()
            times.append(clock() - begun)
            if sum(times) > 0.2:  # slow enough to be exact
                break
        return min(times)

    def _step(self, rows: int, tokens: int) -> RowStep:
        numbers = np.arange(rows, dtype=np.int32)
        counts = (tokens + numbers) // rows
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        owners = np.repeat(numbers, counts)
        query = np.arange(tokens, dtype=np.int32)
        sample = RowSamples(
            query=query,
            row=owners,
            position=(self._context + 1 + query - starts[owners]).astype(np.int32),
            logprobs=np.full(tokens, -1, np.int32),
            penalties=[None] * tokens,
        )
        return RowStep(
            self._changes(rows), numbers, starts, (self._context + counts).astype(np.int32), sample, self._table
        )

    def _changes(self, rows: int) -> list[RowChange]:
        """The entries of these rows, once: for a backend that keeps a table of its own."""
        new = [row for row in range(rows) if row not in self._sent]
        self._sent.update(new)
        table = self._table
        return [
            change
            for row in new
            for change in (
                RowChange("tokens", row, 0, table.tokens[row]),
                RowChange("sampling", row, 0, table.sampling[row]),
                RowChange("blocks", row, 0, table.blocks[row].reshape(-1)),
            )
        ]

"""The row table: one fixed row per running sequence, from which each step's batch is gathered.

    tokens  [rows, max_len]      prompt and output, written as they come
    blocks  [rows, max_blocks]   the block table
    seed, temperature, ... [rows]

Rows are written where they change, never rebuilt: a decode step costs a few fancy-index reads, whatever the lengths.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo_inference.core.plan import Plan
from octavo_inference.core.sequence import Sequence
from octavo_inference.run.batch import Batch, Int32, LogitAdjust, SampleRows

_NO_IDS = np.empty(0, np.int32)


class RowTable:
    """Rows of running sequences. `max_len` tokens a sequence, blocks of `block_size`."""

    def __init__(self, rows: int, max_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.tokens = np.zeros((rows, max_len), np.int32)
        self.blocks = np.zeros((rows, -(-max_len // block_size)), np.int32)
        self.seed = np.zeros(rows, np.uint64)
        self.temperature = np.zeros(rows, np.float32)
        self.top_p = np.zeros(rows, np.float32)
        self.top_k = np.zeros(rows, np.int32)
        self.min_p = np.zeros(rows, np.float32)
        self.logprobs = np.zeros(rows, np.int32)
        self._positions = np.arange(max_len, dtype=np.int32)
        self._free = list(range(rows - 1, -1, -1))

    @property
    def free(self) -> int:
        """Rows nobody has."""
        return len(self._free)

    def enter(self, sequence: Sequence) -> None:
        """Give a sequence a row and write its tokens, blocks and sampling parameters there."""
        row = self._free.pop()
        sequence.row = row
        self.tokens[row, : sequence.total] = sequence.tokens[: sequence.total]
        sequence.tokens = self.tokens[row]
        self.blocks[row, : len(sequence.blocks)] = sequence.blocks
        sampling = sequence.request.sampling
        self.seed[row] = sequence.seed
        # Adding 0 makes 0 of -0, whose bits are not those of the smallest number.
        self.temperature[row] = sampling.temperature + 0.0
        self.top_p[row] = sampling.top_p
        self.top_k[row] = max(0, sampling.top_k)
        self.min_p[row] = sampling.min_p + 0.0
        self.logprobs[row] = -1 if sampling.logprobs is None else sampling.logprobs

    def leave(self, sequence: Sequence) -> None:
        """Take the row back; the sequence keeps its tokens."""
        sequence.tokens = sequence.tokens[: sequence.total].copy()
        self._free.append(sequence.row)
        sequence.row = -1

    def set_block(self, sequence: Sequence, index: int, block: int) -> None:
        """Write one entry of a sequence's block table."""
        self.blocks[sequence.row, index] = block

    def append(self, sequences: list[Sequence], tokens: Int32) -> None:
        """Write the chosen token of each sequence behind its last one. Their `total` is the caller's to move."""
        rows = np.array([s.row for s in sequences], np.intp)
        self.tokens[rows, [s.total for s in sequences]] = tokens

    def gather(self, plan: Plan) -> Batch:
        """The batch of a plan: decoding sequences first, one query token each, then the chunks."""
        size, decodes = self.block_size, len(plan.decodes)
        count = decodes + sum(n for _, n in plan.chunks)
        sequences = plan.decodes + [s for s, _ in plan.chunks]
        rows = np.array([s.row for s in sequences], np.intp)
        tokens, positions, slots = (np.empty(count, np.int32) for _ in range(3))
        query_start = np.arange(len(sequences) + 1, dtype=np.int32)
        seq_len = np.empty(len(sequences), np.int32)
        if decodes:
            at = np.array([s.computed for s in plan.decodes], np.int32)
            head = rows[:decodes]
            positions[:decodes] = at
            tokens[:decodes] = self.tokens[head, at]
            slots[:decodes] = self.blocks[head, at // size] * size + at % size
            seq_len[:decodes] = at + 1
        offset = decodes
        for i, (sequence, n) in enumerate(plan.chunks, decodes):
            first, end = sequence.computed, offset + n
            at = self._positions[first : first + n]
            positions[offset:end] = at
            tokens[offset:end] = sequence.tokens[first : first + n]
            slots[offset:end] = self.blocks[sequence.row].take(at // size) * size + at % size
            seq_len[i] = first + n
            offset = end
            query_start[i + 1] = end
        width = -(-int(seq_len.max(initial=0)) // size)
        return Batch(tokens, positions, slots, query_start, seq_len, self.blocks[rows, :width], self._sample_rows(plan))

    def _sample_rows(self, plan: Plan) -> SampleRows:
        rows = np.array([s.row for s in plan.samples], np.intp)
        return SampleRows(
            row=np.array(plan.sample_rows, np.int32),
            position=np.array([s.total for s in plan.samples], np.int32),
            seed=self.seed[rows],
            temperature=self.temperature[rows],
            top_p=self.top_p[rows],
            top_k=self.top_k[rows],
            min_p=self.min_p[rows],
            logprobs=self.logprobs[rows],
            adjust=[_adjustment(s) if s.penalised or s.total < s.min_total else None for s in plan.samples],
        )


def _adjustment(sequence: Sequence) -> LogitAdjust:
    sampling = sequence.request.sampling
    banned: NDArray[np.int32] = sequence.banned if sequence.total < sequence.min_total else _NO_IDS
    return LogitAdjust(
        prompt=sequence.tokens[: sequence.prompt_len],
        output=sequence.tokens[sequence.prompt_len : sequence.total],
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        banned=banned,
    )

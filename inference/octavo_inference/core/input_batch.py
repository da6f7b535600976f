"""The row table: one fixed row per running sequence, from which each step's batch is gathered.

    tokens    [rows, max_len]      prompt and output, written as they come
    blocks    [rows, max_blocks]   the block table
    sampling  [rows, 6]            seed, temperature, ...: the columns of `run.batch.SAMPLING`

Rows are written where they change, never rebuilt: a decode step costs a few fancy-index reads, whatever the lengths.
A backend that keeps a copy of the table is told what changed (`describe`); for others everything a step needs is
gathered here (`gather`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo_inference.core.model_input import (
    SAMPLING,
    Batch,
    Float32,
    Int32,
    LogitAdjust,
    Penalty,
    RowChange,
    RowSamples,
    RowStep,
    SampleRows,
)
from octavo_inference.core.scheduler_output import SchedulerOutput
from octavo_inference.core.sequence import Sequence

_NO_IDS = np.empty(0, np.int32)


class InputBatch:
    """Rows of running sequences. `max_len` tokens a sequence, blocks of `block_size`.

    With `journal`, changes are kept until `describe` hands them on.
    """

    def __init__(self, rows: int, max_len: int, block_size: int, *, journal: bool = False) -> None:
        self.block_size = block_size
        self.tokens = np.zeros((rows, max_len), np.int32)
        self.blocks = np.zeros((rows, -(-max_len // block_size)), np.int32)
        self.sampling = np.zeros((rows, len(SAMPLING)), np.int32)
        self.logprobs = np.zeros(rows, np.int32)
        self._positions = np.arange(max_len, dtype=np.int32)
        self._free = list(range(rows - 1, -1, -1))
        self._changes: list[RowChange] | None = [] if journal else None

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
        self.sampling[row, :2] = np.array([sequence.seed], np.uint64).view(np.int32)
        # Adding 0 makes 0 of -0, whose bits are not those of the smallest number.
        floats = (sampling.temperature + 0.0, sampling.top_p, sampling.min_p + 0.0)
        self.sampling[row, [2, 3, 5]] = np.array(floats, np.float32).view(np.int32)
        self.sampling[row, 4] = max(0, sampling.top_k)
        self.logprobs[row] = -1 if sampling.logprobs is None else sampling.logprobs
        if self._changes is not None:
            self._changes += [
                RowChange("tokens", row, 0, self.tokens[row, : sequence.total]),
                RowChange("blocks", row, 0, self.blocks[row, : len(sequence.blocks)]),
                RowChange("sampling", row, 0, self.sampling[row]),
            ]

    def leave(self, sequence: Sequence) -> None:
        """Take the row back; the sequence keeps its tokens."""
        sequence.tokens = sequence.tokens[: sequence.total].copy()
        self._free.append(sequence.row)
        sequence.row = -1

    def set_block(self, sequence: Sequence, index: int, block: int) -> None:
        """Write one entry of a sequence's block table."""
        self.blocks[sequence.row, index] = block
        if self._changes is not None:
            self._changes.append(RowChange("blocks", sequence.row, index, self.blocks[sequence.row, index : index + 1]))

    def gather(self, plan: SchedulerOutput) -> Batch:
        """The batch of a plan: decoding sequences first, one query token each, then the chunks."""
        size, decodes = self.block_size, len(plan.decodes)
        rows, query_start, seq_len = _sequences(plan)
        count = int(query_start[-1])
        tokens, positions, slots = (np.empty(count, np.int32) for _ in range(3))
        if decodes:
            at = seq_len[:decodes] - 1
            head = rows[:decodes]
            positions[:decodes] = at
            tokens[:decodes] = self.tokens[head, at]
            slots[:decodes] = self.blocks[head, at // size] * size + at % size
        for (sequence, n), offset in zip(plan.chunks, query_start[decodes:].tolist(), strict=False):
            first, end = sequence.computed, offset + n
            at = self._positions[first : first + n]
            positions[offset:end] = at
            tokens[offset:end] = sequence.tokens[first : first + n]
            slots[offset:end] = self.blocks[sequence.row].take(at // size) * size + at % size
        width = -(-int(seq_len.max(initial=0)) // size)
        return Batch(tokens, positions, slots, query_start, seq_len, self.blocks[rows, :width], self._sample_rows(plan))

    def describe(self, plan: SchedulerOutput) -> RowStep:
        """A plan for a backend that keeps the table, with all that changed since the last one. Needs `journal`."""
        changes, self._changes = self._changes or [], []
        rows, query_start, seq_len = _sequences(plan)
        chosen = np.array([s.row for s in plan.samples], np.int32)
        sample = RowSamples(
            query=np.array(plan.sample_rows, np.int32),
            row=chosen,
            position=np.array([s.total for s in plan.samples], np.int32),
            logprobs=self.logprobs[chosen],
            penalties=[_penalty(s) if s.penalised or s.total < s.min_total else None for s in plan.samples],
        )
        return RowStep(changes, rows, query_start, seq_len, sample)

    def _sample_rows(self, plan: SchedulerOutput) -> SampleRows:
        rows = np.array([s.row for s in plan.samples], np.intp)
        sampling = self.sampling[rows]
        return SampleRows(
            row=np.array(plan.sample_rows, np.int32),
            position=np.array([s.total for s in plan.samples], np.int32),
            seed=np.ascontiguousarray(sampling[:, :2]).view(np.uint64)[:, 0],
            temperature=_floats(sampling[:, 2]),
            top_p=_floats(sampling[:, 3]),
            top_k=np.ascontiguousarray(sampling[:, 4]),
            min_p=_floats(sampling[:, 5]),
            logprobs=self.logprobs[rows],
            adjust=[_adjustment(s) if s.penalised or s.total < s.min_total else None for s in plan.samples],
        )


def _sequences(plan: SchedulerOutput) -> tuple[Int32, Int32, Int32]:
    """Row, start of query tokens (one more than rows) and length after the step of each sequence in a plan."""
    decodes = len(plan.decodes)
    rows = np.array([s.row for s in plan.decodes] + [s.row for s, _ in plan.chunks], np.int32)
    query_start = np.arange(len(rows) + 1, dtype=np.int32)
    seq_len = np.array([s.computed + 1 for s in plan.decodes] + [s.computed + n for s, n in plan.chunks], np.int32)
    if plan.chunks:
        query_start[decodes + 1 :] = decodes + np.cumsum([n for _, n in plan.chunks])
    return rows, query_start, seq_len


def _floats(bits: NDArray[np.int32]) -> Float32:
    return np.ascontiguousarray(bits).view(np.float32)


def _banned(sequence: Sequence) -> Int32:
    banned: Int32 = sequence.banned if sequence.total < sequence.min_total else _NO_IDS
    return banned


def _adjustment(sequence: Sequence) -> LogitAdjust:
    sampling = sequence.request.sampling
    return LogitAdjust(
        prompt=sequence.tokens[: sequence.prompt_len],
        output=sequence.tokens[sequence.prompt_len : sequence.total],
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        banned=_banned(sequence),
    )


def _penalty(sequence: Sequence) -> Penalty:
    sampling = sequence.request.sampling
    return Penalty(
        prompt_len=sequence.prompt_len,
        total=sequence.total,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        banned=_banned(sequence),
    )

"""The engine's row table: rows of running sequences, and the changes to them between steps.

Rows are updated in place and never rebuilt. Each step gets the changes since the last one; its arrays are views of the
table.
"""

from __future__ import annotations

import numpy as np

from octavo_inference.core.logit_rules import NO_RULES
from octavo_inference.core.masks import GuidedRow
from octavo_inference.core.model_input import (
    DecodeRun,
    Int32,
    Penalty,
    PromptScores,
    RowChange,
    RowPooling,
    RowSamples,
    RowStep,
    RowTable,
    sampling_columns,
)
from octavo_inference.core.scheduler_output import SchedulerOutput
from octavo_inference.core.sequence import Sequence

_NO_IDS = np.empty(0, np.int32)


class InputBatch:
    """Rows of running sequences, with at most `max_len` tokens per sequence and blocks of `block_size` tokens.

    `hidden` is the size of a pooled hidden state, `groups` the number of block tables of a sequence. `masks`: most
    guessed tokens of guided sequences in a step.
    """

    def __init__(
        self, rows: int, max_len: int, block_size: int, vocab: int, hidden: int = 0, groups: int = 1, masks: int = 0
    ) -> None:
        self.table = RowTable.zeros(rows, max_len, block_size, vocab, hidden, groups, masks)
        self._rows = rows
        self._logprobs = np.zeros(rows, np.int32)
        self._report_ids = np.zeros(rows, np.int32)
        self._free = list(range(rows - 1, -1, -1))
        self._changes: list[RowChange] = []
        # Rows of guided sequences, and of those with an adapter.
        self._guided = self._adapted = 0

    @property
    def free(self) -> int:
        """Number of unused rows."""
        return len(self._free)

    @property
    def adapted(self) -> int:
        """Number of rows whose sequence has an adapter."""
        return self._adapted

    def enter(self, sequence: Sequence) -> None:
        """Assign a row to a sequence and write its tokens, blocks and sampling parameters to it."""
        row, table, sampling = self._free.pop(), self.table, sequence.request.sampling
        tokens = table.tokens[row, : sequence.total]
        tokens[:] = sequence.tokens[: sequence.total]
        table.sampling[row] = sampling_columns(
            seed=sequence.seed,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=max(0, sampling.top_k),
            min_p=sampling.min_p,
        )
        self._logprobs[row] = -1 if sampling.logprobs is None else sampling.logprobs
        sequence.row, sequence.tokens = row, table.tokens[row]
        self._changes += [
            RowChange("tokens", row, 0, tokens),
            RowChange("sampling", row, 0, table.sampling[row]),
        ]
        for group, blocks in enumerate(sequence.blocks):
            self.set_blocks(sequence, group, sequence.freed[group], blocks[sequence.freed[group] :])
        if sequence.rules is not NO_RULES:
            self._enter_rules(sequence)
        self._guided += sequence.guide is not None
        self._adapted += sequence.adapter >= 0

    def leave(self, sequence: Sequence) -> None:
        """Free the row of a sequence. The sequence keeps a copy of its tokens."""
        sequence.tokens = sequence.tokens[: sequence.total].copy()
        self._report_ids[sequence.row] = 0
        self._guided -= sequence.guide is not None
        self._adapted -= sequence.adapter >= 0
        self._free.append(sequence.row)
        sequence.row = -1

    def _enter_rules(self, sequence: Sequence) -> None:
        rules, row = sequence.rules, sequence.row
        packed = rules.packed()
        entry, mask = self.table.rules[row, : len(packed)], self.table.mask[row, : len(rules.mask)]
        entry[:], mask[:] = packed, rules.mask
        self._changes.append(RowChange("rules", row, 0, entry))
        if len(mask):
            self._changes.append(RowChange("mask", row, 0, mask))
        if len(rules.report_ids):
            self._logprobs[row], self._report_ids[row] = len(rules.report_ids), 1

    def append(self, sequence: Sequence, tokens: list[int] | Int32) -> None:
        """Write tokens behind those of a sequence."""
        entry = self.table.tokens[sequence.row, sequence.total : sequence.total + len(tokens)]
        entry[:] = tokens
        self._changes.append(RowChange("tokens", sequence.row, sequence.total, entry))

    def write(self, sequences: list[Sequence], tokens: Int32) -> None:
        """Write tokens [count, sequences] behind the known ones of sequences, for a backend that has them already."""
        rows = np.array([sequence.row for sequence in sequences])
        known = np.array([sequence.num_known_tokens for sequence in sequences])
        self.table.tokens[rows, known + np.arange(len(tokens))[:, None]] = tokens

    def guided(self, plan: SchedulerOutput) -> list[GuidedRow]:
        """The sample rows of a plan whose masks have to be computed."""
        if not self._guided:
            return []
        rows = [GuidedRow(s, s.guide, s.row, self.table.mask[s.row]) for s in plan.samples if s.guide is not None]
        masks = self._mask_rows(plan)
        for draft in plan.drafts:
            sequence = draft.sequence
            if sequence.guide is None or draft.ahead is None:
                continue
            rows.append(GuidedRow(sequence, sequence.guide, sequence.row, self.table.mask[sequence.row]))
            for place, after in enumerate(draft.ahead.places, 1):
                row = masks[sequence.row, place]
                rows.append(GuidedRow(sequence, after, row, self.table.mask[row]))
        return rows

    def _mask_rows(self, plan: SchedulerOutput) -> dict[tuple[int, int], int]:
        """The mask of each guessed token of guided sequences, by the sequence's row and the token's place."""
        guided = [draft for draft in plan.drafts if draft.sequence.guide is not None]
        keys = [(draft.sequence.row, place) for draft in guided for place in range(1, 1 + len(draft.tokens))]
        return {key: self._rows + number for number, key in enumerate(keys)}

    def set_blocks(self, sequence: Sequence, group: int, first: int, blocks: list[int]) -> None:
        """Write entries of one of a sequence's block tables, from `first` on."""
        table = self.table.blocks[sequence.row, group]
        entries = table[first : first + len(blocks)]
        entries[:] = blocks
        self._changes.append(RowChange("blocks", sequence.row, group * len(table) + first, entries))

    def diff(self, plan: SchedulerOutput, run: DecodeRun | None = None) -> RowStep:
        """Build the step of a plan, with all changes since the last step: decodes first, then the chunks."""
        changes, self._changes = self._changes, []
        rows, query_start, seq_len = _sequences(plan)
        masks = self._mask_rows(plan)
        samples = [(s, s.total) for s in plan.samples]
        samples += [(s, s.total + place) for s, tokens, *_ in plan.drafts for place in range(1 + len(tokens))]
        chosen = np.array([s.row for s, _ in samples], np.int32)
        first = query_start[len(query_start) - 1 - len(plan.drafts)]
        sample = RowSamples(
            query=np.array([*plan.sample_rows, *range(first, query_start[-1])], np.int32),
            row=chosen,
            position=np.array([position for _, position in samples], np.int32),
            logprobs=self._logprobs[chosen],
            penalties=[
                _penalty(s, at, masks.get((s.row, at - s.total))) if s.penalised or at < s.min_total else None
                for s, at in samples
            ],
            report_ids=self._report_ids[chosen] if self._report_ids.any() else _NO_IDS,
        )
        scores = [
            PromptScores(each.query, each.sequence.row, each.position, each.count, each.scores.logprobs)
            for each in plan.scores
        ]
        guided = self._guided > 0 and any(s.guide is not None for s, _ in samples)
        return RowStep(
            changes,
            rows,
            query_start,
            seq_len,
            sample,
            self.table,
            scores,
            _pooling(plan),
            guided,
            run,
            _second_text(plan, seq_len),
            _adapters(plan) if self._adapted else _NO_IDS,
        )


def _sequences(plan: SchedulerOutput) -> tuple[Int32, Int32, Int32]:
    """Row, start of query tokens (one more than rows) and length after the step of each sequence in a plan."""
    decodes = len(plan.decodes)
    longer = plan.chunks + [(draft.sequence, 1 + len(draft.tokens)) for draft in plan.drafts]
    rows = np.array([s.row for s in plan.decodes] + [s.row for s, _ in longer], np.int32)
    query_start = np.arange(len(rows) + 1, dtype=np.int32)
    seq_len = np.array([s.computed + 1 for s in plan.decodes] + [s.computed + n for s, n in longer], np.int32)
    if longer:
        query_start[decodes + 1 :] = decodes + np.cumsum([n for _, n in longer])
    return rows, query_start, seq_len


def _adapters(plan: SchedulerOutput) -> Int32:
    """The slot of each sequence's adapter, -1 for none; empty if no sequence has one."""
    slots = [s.adapter for s in plan.decodes]
    slots += [s.adapter for s, _ in plan.chunks]
    slots += [draft.sequence.adapter for draft in plan.drafts]
    return np.array(slots, np.int32) if any(slot >= 0 for slot in slots) else _NO_IDS


def _second_text(plan: SchedulerOutput, seq_len: Int32) -> Int32:
    """Where the second texts of pairs begin; empty if there are none."""
    chunks = [sequence.request.second_text for sequence, _ in plan.chunks]
    if not any(chunks):
        return _NO_IDS
    starts = seq_len.copy()
    for number, start in enumerate(chunks, len(plan.decodes)):
        if start:
            starts[number] = start
    return starts


def _pooling(plan: SchedulerOutput) -> RowPooling | None:
    """Mean pooling adds every token of a chunk, the others the first or the last token of the prompt alone."""
    entries = []
    end = len(plan.decodes)
    for sequence, taken in plan.chunks:
        start, end = end, end + taken
        done = sequence.computed + taken == sequence.total
        if sequence.pooling == "mean":
            entries.append((sequence.row, start, end, sequence.computed == 0, done))
        elif sequence.pooling == "last" and done:
            entries.append((sequence.row, end - 1, end, True, True))
        elif sequence.pooling == "cls" and (done or sequence.computed == 0):
            begin = sequence.computed == 0
            entries.append((sequence.row, start, start + begin, begin, done))
    return RowPooling(*np.array(entries, np.int32).T.copy()) if entries else None


def _penalty(sequence: Sequence, total: int, mask_row: int | None) -> Penalty:
    sampling = sequence.request.sampling
    return Penalty(
        prompt_len=sequence.prompt_len,
        total=total,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        banned=sequence.banned if total < sequence.min_total else _NO_IDS,
        rules=sequence.ruled,
        mask=len(sequence.rules.mask) > 0 or sequence.guide is not None,
        mask_row=mask_row,
    )

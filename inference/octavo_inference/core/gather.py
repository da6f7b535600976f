"""Gathers a step's batch from the engine's row table, for backends that keep no table of their own.

Prefill chunks and decode tokens form one ragged list of query tokens. A step costs a few fancy-index reads, independent
of sequence lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_inference.core.logit_rules import NO_RULES, LogitRules, unpacked
from octavo_inference.core.model_input import (
    Float32,
    Int32,
    Penalty,
    PromptScores,
    RowPooling,
    RowSamples,
    RowStep,
    RowTable,
)

_NO_IDS = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Rows whose logits are needed, and their sampling parameters. All arrays have length R.

    `row` indexes the batch's query tokens. `position` is the position of the sampled token; with `seed` it keys the
    random number. `temperature` 0 is greedy; `top_k` 0 keeps all. `logprobs` is the number of alternatives to report,
    -1 for none. `adjust[i]` is None for rows whose logits do not change. `report_ids[i]` are the ids to report instead
    of the best ones, or None; the list is empty if no row has any.
    """

    row: Int32
    position: Int32
    seed: NDArray[np.uint64]
    temperature: Float32
    top_p: Float32
    top_k: Int32
    min_p: Float32
    logprobs: Int32
    adjust: list[LogitAdjust | None]
    report_ids: list[Int32 | None] = field(default_factory=list)

    @classmethod
    def greedy(cls, row: Int32, position: Int32) -> SampleRows:
        """Greedy sampling of each row, without logprobs."""
        count = len(row)
        return cls(
            row=row,
            position=position,
            seed=np.zeros(count, np.uint64),
            temperature=np.zeros(count, np.float32),
            top_p=np.ones(count, np.float32),
            top_k=np.zeros(count, np.int32),
            min_p=np.zeros(count, np.float32),
            logprobs=np.full(count, -1, np.int32),
            adjust=[None] * count,
        )


class LogitAdjust(NamedTuple):  # one per row and step: a dataclass takes three times as long to construct
    """Changes to one row of logits before sampling.

    `prompt` and `output` are the tokens so far (repetition penalty sees both; presence and frequency only the output,
    as in the OpenAI API). `banned` ids get -inf (end-of-sequence and stop ids before `min_tokens`). `rules` are the
    request's own.
    """

    prompt: Int32
    output: Int32
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    banned: Int32
    rules: LogitRules = NO_RULES

    @property
    def is_penalised(self) -> bool:
        """True if a penalty changes a logit."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1


class ScoreRows(NamedTuple):
    """Prompt tokens whose log-probabilities are requested: `tokens[n]`, each after query token `row[n]` of the batch.

    `logprobs` is the number of alternatives.
    """

    row: Int32
    tokens: Int32
    logprobs: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work: T query tokens of B sequences.

    `tokens[T]`, `positions[T]`; `slots[groups, T]` = block * block_size + offset where the token's K and V go, for each
    group of layers (`models.layer_groups`). `query_start[B+1]` delimits each sequence's query tokens; `seq_len[B]`
    counts tokens after the step. `block_table[groups, B, columns]` lists each sequence's blocks. Entries after its last
    block, and those behind the group's window, are arbitrary valid blocks: they must not be read.
    `states[B]` is the slot of each sequence's state: its row. Where the first query token is at position 0, the state
    starts from zeros and the slot is only written.
    `token_types[T]` is 1 for tokens of the second text of a pair; it is empty if there are none.
    `adapter[T]` is the slot of each token's adapter, -1 for none; it is empty if no token has one.
    Several sample rows may name one query token (siblings of a request). `scores` are the prompt tokens to score,
    `pooling` the hidden states to add to `sums`, the row table's. The arrays are valid until the next step.
    """

    tokens: Int32
    positions: Int32
    slots: Int32
    query_start: Int32
    seq_len: Int32
    block_table: Int32
    sample: SampleRows
    pooling: RowPooling | None = None
    sums: Float32 | None = None
    scores: list[ScoreRows] = field(default_factory=list)
    states: Int32 = field(default_factory=lambda: _NO_IDS)
    token_types: Int32 = field(default_factory=lambda: _NO_IDS)
    adapter: Int32 = field(default_factory=lambda: _NO_IDS)


def gather(step: RowStep) -> Batch:
    """Gather the batch of a step. Raises `ValueError` for a step without its table."""
    table, starts = step.table, step.query_start
    if table is None:
        raise ValueError("a step without a row table cannot be gathered")
    rows, positions = _tokens(step) if starts[-1] > len(step.row) else (step.row, step.seq_len - np.int32(1))
    size = table.block_size
    longest = int(step.seq_len.max(initial=0)) + (0 if step.run is None else step.run.steps - 1)
    width = -(-longest // size)
    return Batch(
        tokens=table.tokens[rows, positions],
        positions=positions,
        slots=np.ascontiguousarray((table.blocks[rows, :, positions // size] * size).T) + positions % size,
        query_start=starts,
        seq_len=step.seq_len,
        block_table=np.ascontiguousarray(table.blocks[step.row, :, :width].swapaxes(0, 1)),
        sample=_sample_rows(step.sample, table),
        pooling=step.pooling,
        sums=table.sums,
        scores=[_score_rows(scores, table) for scores in step.scores],
        states=step.row,
        token_types=_token_types(step, positions),
        adapter=np.repeat(step.adapter, starts[1:] - starts[:-1]) if len(step.adapter) else _NO_IDS,
    )


def _token_types(step: RowStep, positions: Int32) -> Int32:
    if not len(step.second_text):
        return _NO_IDS
    counts = step.query_start[1:] - step.query_start[:-1]
    return (positions >= np.repeat(step.second_text, counts)).astype(np.int32)


def _tokens(step: RowStep) -> tuple[Int32, Int32]:
    """Row and position of each query token. Query tokens are the last tokens of their sequence."""
    ends = step.query_start[1:]
    counts = ends - step.query_start[:-1]
    positions = np.arange(ends[-1], dtype=np.int32) + np.repeat(step.seq_len - ends, counts)
    return np.repeat(step.row, counts), positions


def _sample_rows(sample: RowSamples, table: RowTable) -> SampleRows:
    sampling = table.sampling[sample.row]
    columns = np.ascontiguousarray(sampling.T)
    floats = columns.view(np.float32)
    return SampleRows(
        row=sample.query,
        position=sample.position,
        seed=np.ascontiguousarray(sampling[:, :2]).view(np.uint64)[:, 0],
        temperature=floats[2],
        top_p=floats[3],
        top_k=columns[4],
        min_p=floats[5],
        logprobs=sample.logprobs,
        adjust=_adjustments(sample, table),
        report_ids=_report_ids(sample, table),
    )


def _report_ids(sample: RowSamples, table: RowTable) -> list[Int32 | None]:
    rows = zip(sample.report_ids.tolist(), sample.row.tolist(), strict=False)
    return [unpacked(table.rules[row], _NO_IDS).report_ids if wanted else None for wanted, row in rows]


def _score_rows(scores: PromptScores, table: RowTable) -> ScoreRows:
    first, end = scores.position + 1, scores.position + 1 + scores.length
    query = np.arange(scores.query, scores.query + scores.length, dtype=np.int32)
    return ScoreRows(query, table.tokens[scores.row, first:end], scores.logprobs)


def _adjustments(sample: RowSamples, table: RowTable) -> list[LogitAdjust | None]:
    if not any(sample.penalties):
        return [None] * len(sample.penalties)
    rows = zip(sample.penalties, sample.row.tolist(), strict=True)
    return [None if penalty is None else _adjustment(penalty, table, row) for penalty, row in rows]


def _adjustment(penalty: Penalty, table: RowTable, row: int) -> LogitAdjust:
    tokens = table.tokens[row]
    mask = table.mask[row if penalty.mask_row is None else penalty.mask_row] if penalty.mask else _NO_IDS
    return LogitAdjust(
        prompt=tokens[: penalty.prompt_len],
        output=tokens[penalty.prompt_len : penalty.total],
        presence_penalty=penalty.presence_penalty,
        frequency_penalty=penalty.frequency_penalty,
        repetition_penalty=penalty.repetition_penalty,
        banned=penalty.banned,
        rules=unpacked(table.rules[row], mask)
        if penalty.rules
        else LogitRules(mask=mask)
        if penalty.mask
        else NO_RULES,
    )

"""A batch that brings its own tokens, restated as a step over the row table: for rehearsal, tests and evaluation."""

from __future__ import annotations

import numpy as np

from octavo_inference.core.model_input import (
    Batch,
    Int32,
    LogitAdjust,
    Penalty,
    RowChange,
    RowSamples,
    RowStep,
    SampleRows,
)


def as_rows(batch: Batch) -> RowStep:
    """The step that computes a batch, whose sequences take the rows from 0 on, whoever had them.

    A sequence's first sample row is its own, others come behind those of all sequences; histories of penalties are
    written there before the query tokens.
    """
    row, sample = np.arange(len(batch.seq_len), dtype=np.int32), batch.sample
    own = _own_rows(batch)
    changes = [
        RowChange("tokens", target, 0, np.concatenate([adjust.prompt, adjust.output]))
        for target, adjust in zip(own.tolist(), sample.adjust, strict=True)
        if adjust is not None
    ]
    for i, length in enumerate(batch.seq_len.tolist()):
        start, end = batch.query_start[i : i + 2].tolist()
        changes.append(RowChange("tokens", i, length - (end - start), batch.tokens[start:end]))
        changes.append(RowChange("blocks", i, 0, batch.block_table[i]))
    columns = _columns(sample)
    changes += [RowChange("sampling", target, 0, columns[i]) for i, target in enumerate(own.tolist())]
    samples = RowSamples(sample.row, own, sample.position, sample.logprobs, list(map(_penalty, sample.adjust)))
    return RowStep(changes, row, batch.query_start, batch.seq_len, samples)


def _own_rows(batch: Batch) -> Int32:
    """A row of the table for each sample row."""
    owners = np.searchsorted(batch.query_start, batch.sample.row, side="right") - 1
    rows, spare, met = [], len(batch.seq_len), set()
    for owner in owners.tolist():
        if owner in met:
            rows.append(spare)
            spare += 1
        else:
            rows.append(owner)
        met.add(owner)
    return np.array(rows, np.int32)


def _columns(sample: SampleRows) -> Int32:
    """Sampling parameters [R, 6] as the row table has them."""
    seeds = sample.seed.astype("<u8").view(np.int32).reshape(-1, 2)
    heat, top_p, min_p = (
        part.astype(np.float32).view(np.int32) for part in (sample.temperature, sample.top_p, sample.min_p)
    )
    return np.column_stack([seeds, heat, top_p, sample.top_k, min_p]).astype(np.int32)


def _penalty(adjust: LogitAdjust | None) -> Penalty | None:
    if adjust is None:
        return None
    return Penalty(
        prompt_len=len(adjust.prompt),
        total=len(adjust.prompt) + len(adjust.output),
        presence_penalty=adjust.presence_penalty,
        frequency_penalty=adjust.frequency_penalty,
        repetition_penalty=adjust.repetition_penalty,
        banned=adjust.banned,
    )

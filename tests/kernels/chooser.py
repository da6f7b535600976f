"""The device's sampler beside a row table of its own, asked as the rule is."""

from __future__ import annotations

import numpy as np
import torch

from octavo_inference.backends.cuda.buffers import StepLimits, allocate, buffer_shapes
from octavo_inference.backends.cuda.inputs import LaunchSize, Stage
from octavo_inference.backends.cuda.rows import DeviceRows
from octavo_inference.backends.cuda.sampling import Chosen, Sampler
from octavo_inference.core.gather import LogitAdjust, SampleRows
from octavo_inference.core.logit_rules import NO_RULES
from octavo_inference.core.model_input import (
    Float32,
    Penalty,
    RowChange,
    RowSamples,
    RowStep,
    StepResult,
    sampling_columns,
)

from ..unit.engine.echo import CONFIG  # noqa: TID252 -- tests are no package


class Chooser:
    """A sampler for rows that are a sequence of one token each."""

    def __init__(self, vocab: int, rows: int, positions: int = 64, max_logprobs: int = 20) -> None:
        limits = StepLimits(tokens=rows, rows=rows, positions=positions, block_size=16, processors=1, vocab=vocab)
        buffers = allocate(buffer_shapes(CONFIG, limits, torch.float32), torch.device("cpu"))
        self.rows = DeviceRows(buffers.table, buffers.changes, limits)
        self.sampler = Sampler(self.rows.table, vocab=vocab, max_rows=rows, max_logprobs=max_logprobs)
        self._stage = Stage(buffers.inputs, limits, shares=1)

    def launch(self, logits: Float32, sample: SampleRows) -> Chosen:
        count = len(logits)
        step = stated(sample)
        self.rows.apply(step.changes)
        size = LaunchSize(count, count, count, "decodes")
        self._stage.load(step, size)
        inputs, on_device = self._stage.inputs(size), torch.from_numpy(logits.copy())
        self.sampler.choose(self.sampler.adjust(on_device, step.sample), inputs)
        return self.sampler.send(on_device, inputs, step.sample)

    def sample(self, logits: Float32, sample: SampleRows) -> StepResult:
        return self.launch(logits, sample).collect()


def stated(sample: SampleRows) -> RowStep:
    """Each sample row as a sequence of one token in a row of its own, with the histories of penalties."""
    changes: list[RowChange] = []
    penalties: list[Penalty | None] = []
    for i, adjust in enumerate(sample.adjust):
        columns = sampling_columns(
            seed=int(sample.seed[i]),
            temperature=float(sample.temperature[i]),
            top_p=float(sample.top_p[i]),
            top_k=int(sample.top_k[i]),
            min_p=float(sample.min_p[i]),
        )
        changes.append(RowChange("sampling", i, 0, columns))
        penalties.append(None if adjust is None else penalty_of(adjust))
        if adjust is not None:
            changes.append(RowChange("tokens", i, 0, np.concatenate([adjust.prompt, adjust.output])))
        rules = NO_RULES if adjust is None else adjust.rules
        named = sample.report_ids[i] if sample.report_ids else None
        if named is not None:
            rules = rules._replace(report_ids=named)
        changes.append(RowChange("rules", i, 0, rules.packed()))
        changes.append(RowChange("mask", i, 0, rules.mask))
    count = len(penalties)
    rows = np.arange(count, dtype=np.int32)
    names = np.array([ids is not None for ids in sample.report_ids], np.int32)
    samples = RowSamples(rows, rows, sample.position, sample.logprobs, penalties, names)
    return RowStep(changes, rows, np.arange(count + 1, dtype=np.int32), np.ones(count, np.int32), samples)


def penalty_of(adjust: LogitAdjust) -> Penalty:
    prompt_len = len(adjust.prompt)
    return Penalty(
        prompt_len,
        prompt_len + len(adjust.output),
        adjust.presence_penalty,
        adjust.frequency_penalty,
        adjust.repetition_penalty,
        adjust.banned,
        rules=adjust.rules is not NO_RULES,
        mask=len(adjust.rules.mask) > 0,
    )

"""The device's sampler beside a row table of its own, asked as the rule is."""

from __future__ import annotations

import numpy as np
import torch

from octavo_inference.backends.cuda.batches import as_rows
from octavo_inference.backends.cuda.buffers import StepLimits, allocate, buffer_shapes
from octavo_inference.backends.cuda.inputs import LaunchSize, Stage
from octavo_inference.backends.cuda.rows import DeviceRows
from octavo_inference.backends.cuda.sampling import Chosen, Sampler
from octavo_inference.core.model_input import Batch, Float32, SampleRows, StepResult

from ..unit.engine.echo import CONFIG  # noqa: TID252 -- tests are no package


class Chooser:
    """A sampler for rows that are a sequence of one token each."""

    def __init__(self, vocab: int, rows: int, positions: int = 64, max_logprobs: int = 20) -> None:
        limits = StepLimits(tokens=rows, rows=rows, positions=positions, block_size=16, processors=1)
        shapes = buffer_shapes(CONFIG, limits, torch.float32)
        buffers = allocate({name: shapes[name] for name in ("table", "changes", "inputs")}, torch.device("cpu"))
        self.rows = DeviceRows(buffers["table"], buffers["changes"], limits)
        self.sampler = Sampler(self.rows.table, vocab=vocab, max_rows=rows, max_logprobs=max_logprobs)
        self._stage = Stage(buffers["inputs"], limits)

    def launch(self, logits: Float32, sample: SampleRows) -> Chosen:
        count = len(logits)
        step = as_rows(
            Batch(
                tokens=np.zeros(count, np.int32),
                positions=np.zeros(count, np.int32),
                slots=np.zeros(count, np.int32),
                query_start=np.arange(count + 1, dtype=np.int32),
                seq_len=np.ones(count, np.int32),
                block_table=np.zeros((count, 1), np.int32),
                sample=sample,
            )
        )
        histories = sum(adjust is not None for adjust in sample.adjust)  # come first, and no model reads query tokens
        self.rows.apply([*step.changes[:histories], *(c for c in step.changes if c.field == "sampling")])
        size = LaunchSize(count, count, count, count)
        self._stage.load(step, size)
        inputs, on_device = self._stage.inputs(size), torch.from_numpy(logits.copy())
        self.sampler.penalize(on_device, step.sample)
        self.sampler.choose(on_device, inputs)
        return self.sampler.send(on_device, inputs, step.sample)

    def sample(self, logits: Float32, sample: SampleRows) -> StepResult:
        return self.launch(logits, sample).collect()

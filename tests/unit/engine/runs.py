"""A backend that runs several decode steps per launch, as the native loop does."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from octavo_inference.core.backend import CompletedStep, StepHandle
from octavo_inference.core.gather import Batch, gather
from octavo_inference.core.model_input import DecodeRun, Int32, RowStep
from octavo_inference.models.layer_groups import PoolLayout

from .echo import PLAIN, EchoBackend


class RunningBackend(EchoBackend):
    """Takes each step of a run through `step`. `longest` says how long the next run may be, for whatever reason."""

    decode_runs = True

    def __init__(
        self,
        num_blocks: int,
        longest: Callable[[], int] = lambda: 1000,
        state_slots: int = 0,
        layout: PoolLayout = PLAIN,
    ) -> None:
        super().__init__(num_blocks, state_slots=state_slots, layout=layout)
        self.longest = longest
        self.planned: list[DecodeRun] = []
        self.ran: list[int] = []

    def launch(self, step: RowStep) -> StepHandle:
        run = step.run
        if run is None:
            return super().launch(step)
        assert step.row.tolist() == step.sample.row.tolist(), "a row that does not decode"
        self.planned.append(run)
        batch = gather(step)
        result = self.step(batch)
        tokens = [result.tokens]
        most = min(run.steps, self.longest())
        while len(tokens) < most and not _ends(run, tokens[-1]) and not _has_message(run):
            batch = following(batch, tokens[-1], self.block_size)
            tokens.append(self.step(batch).tokens)
        self.ran.append(len(tokens))
        return CompletedStep(replace(result, tokens=np.stack(tokens)))


def following(batch: Batch, tokens: Int32, size: int) -> Batch:
    """The decode step after one that sampled these tokens."""
    positions = batch.positions + np.int32(1)
    blocks = batch.block_table[:, np.arange(len(tokens)), positions // size]
    return replace(
        batch,
        tokens=tokens,
        positions=positions,
        slots=blocks * size + positions % size,
        seq_len=batch.seq_len + np.int32(1),
        sample=replace(batch.sample, position=batch.sample.position + np.int32(1)),
    )


def _ends(run: DecodeRun, tokens: Int32) -> bool:
    bounds = zip(tokens, pairwise(run.end_start), strict=True)
    return any(token < 0 or token in run.end_ids[begin:end] for token, (begin, end) in bounds)


def _has_message(run: DecodeRun) -> bool:
    return run.message_fd >= 0 and bool(select.select([run.message_fd], [], [], 0)[0])


def readable_pipe() -> int:
    """A file descriptor with something to read. The caller closes it."""
    reader, writer = os.pipe()
    os.write(writer, b"x")
    os.close(writer)
    return reader

"""What a step is told beside the row table's changes, in one copy to the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor as Torch

from octavo_inference.backends.cuda.buffers import StepLimits, input_places
from octavo_inference.backends.cuda.staging import Staging
from octavo_inference.core.model_input import RowStep


@dataclass(frozen=True, slots=True, order=True)
class LaunchSize:
    """How many sequences, query tokens and sample rows kernels are launched for; a step may have fewer of each.

    The first `decodes` of the sequences have one query token each.
    """

    sequences: int
    tokens: int
    samples: int
    decodes: int


@dataclass(frozen=True, slots=True)
class Inputs:
    """Views in int32 of one device buffer, at the same places for every step.

    `row` [B], `query_start` [B + 1], `seq_len` [B] of sequences; `query`, `sample_row`, `position`, `logprobs` [R] of
    sample rows, as in `core.model_input`. `tokens` is the number of query tokens, `decodes` as in `LaunchSize`.
    What the tokens are follows from the row table.
    """

    row: Torch
    query_start: Torch
    seq_len: Torch
    query: Torch
    sample_row: Torch
    position: Torch
    logprobs: Torch
    tokens: int
    decodes: int


class Stage:
    """Sends a step's inputs into `buffer`, int32 on the device."""

    def __init__(self, buffer: Torch, limits: StepLimits) -> None:
        self._buffer = buffer
        self._staging = Staging(buffer.nbytes, buffer.device)
        self._places = input_places(limits)
        self._nobody = limits.rows

    def load(self, step: RowStep, size: LaunchSize) -> None:
        """Send a step, filled up to a size: with sequences that have no tokens, and samples of nobody's row."""
        half = self._staging.fill().view(np.int32)
        sample = step.sample
        given = {
            "row": (step.row, size.sequences, self._nobody),
            "query_start": (step.query_start, size.sequences + 1, step.query_start[-1]),
            "seq_len": (step.seq_len, size.sequences, 0),
            "query": (sample.query, size.samples, 0),
            "sample_row": (sample.row, size.samples, self._nobody),
            "position": (sample.position, size.samples, 0),
            "logprobs": (sample.logprobs, size.samples, -1),
        }
        for name, (values, count, filler) in given.items():
            start, _ = self._places[name]
            half[start : start + len(values)] = values
            half[start + len(values) : start + count] = filler
        self._staging.copy(self._buffer)

    def inputs(self, size: LaunchSize) -> Inputs:
        """Where the kernels of a size find what was loaded."""
        counts = {
            "row": size.sequences,
            "query_start": size.sequences + 1,
            "seq_len": size.sequences,
            "query": size.samples,
            "sample_row": size.samples,
            "position": size.samples,
            "logprobs": size.samples,
        }
        views = {name: self._buffer[self._places[name][0] :][:count] for name, count in counts.items()}
        return Inputs(**views, tokens=size.tokens, decodes=size.decodes)

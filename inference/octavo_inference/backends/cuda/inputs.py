"""A step's inputs other than the row table's changes, sent in one copy to the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor as Torch

from octavo_inference.backends.cuda.buffers import StepLimits, input_places
from octavo_inference.backends.cuda.kernels.decode_parts import PART_FIELDS, decode_parts, most_parts
from octavo_inference.backends.cuda.staging import Staging
from octavo_inference.core.model_input import Int32, RowStep

Kind = Literal["decodes", "prompts", "mixed"]
"""Steps of sequences with one query token each, of sequences with several, or of both."""


@dataclass(frozen=True, slots=True, order=True)
class LaunchSize:
    """Numbers of sequences, query tokens and sample rows that kernels are launched for; a step may have fewer of each.

    A step of any kind may run as a mixed one. `adapted`: some of its sequences have adapters.
    """

    sequences: int
    tokens: int
    samples: int
    kind: Kind
    adapted: bool = False


@dataclass(frozen=True, slots=True)
class Inputs:
    """Views in int32 of one device buffer, at the same addresses for every step.

    `row` [B], `query_start` [B + 1], `seq_len` [B] of sequences; `query`, `sample_row`, `position`, `logprobs`,
    `report_ids` [R] of sample rows, as in `core.model_input`. `bounds` [2]: prompts are the sequences from the first
    up to the second, decodes those before. `parts` [P, 3] of the decodes (`kernels.decode_parts`), more than sequences
    only if keys may be split. `adapter` [B]: the slot of each sequence's adapter, -1 for none; None if no sequence has
    one. `tokens` is the number of query tokens, `kind` as in `LaunchSize`. The token ids follow
    from the row table.
    """

    row: Torch
    query_start: Torch
    seq_len: Torch
    bounds: Torch
    query: Torch
    sample_row: Torch
    position: Torch
    logprobs: Torch
    report_ids: Torch
    parts: Torch
    tokens: int
    kind: Kind
    adapter: Torch | None = None


def decodes_of(step: RowStep) -> int:
    """Number of leading sequences with one query token each."""
    longer = np.flatnonzero(np.diff(step.query_start) != 1)
    return int(longer[0]) if len(longer) else len(step.row)


def size_of(step: RowStep) -> LaunchSize:
    """The exact size of a step."""
    decodes, sequences = decodes_of(step), len(step.row)
    kind: Kind = "decodes" if decodes == sequences else "mixed" if decodes else "prompts"
    return LaunchSize(sequences, int(step.query_start[-1]), len(step.sample.row), kind, len(step.adapter) > 0)


class Stage:
    """Sends a step's inputs into `buffer`, int32 on the device. Keys of decodes are split into about `shares` parts."""

    def __init__(self, buffer: Torch, limits: StepLimits, shares: int) -> None:
        self._buffer = buffer
        self._shares = shares
        self._longest = limits.positions
        self._staging = Staging(buffer.nbytes, buffer.device)
        self._places = input_places(limits)
        self._without_adapters = buffer[: self._places.adapter]
        self._nobody = limits.rows

    def load(self, step: RowStep, size: LaunchSize) -> None:
        """Send a step, padded to a size: padding sequences have no tokens, padding samples use the padding row."""
        half: Int32 = self._staging.fill().view(np.int32)
        at, sample, sequences, samples = self._places, step.sample, size.sequences, size.samples
        _put(half[at.row :], step.row, sequences, self._nobody)
        _put(half[at.query_start :], step.query_start, sequences + 1, int(step.query_start[-1]))
        _put(half[at.seq_len :], step.seq_len, sequences, 0)
        decodes = decodes_of(step)
        half[at.bounds :][:2] = decodes, len(step.row)
        _put(half[at.query :], sample.query, samples, 0)
        _put(half[at.sample_row :], sample.row, samples, self._nobody)
        _put(half[at.position :], sample.position, samples, 0)
        _put(half[at.logprobs :], sample.logprobs, samples, -1)
        _put(half[at.report_ids :], sample.report_ids, samples, 0)
        parts = decode_parts(step.seq_len[:decodes], shares=self._shares)
        _put(half[at.parts :], parts.reshape(-1), PART_FIELDS * self._most_parts(size), 0)
        if size.adapted:
            _put(half[at.adapter :], step.adapter, sequences, -1)
        self._staging.copy(self._buffer if size.adapted else self._without_adapters)

    def inputs(self, size: LaunchSize) -> Inputs:
        """The loaded inputs, as views for kernels of a size."""
        at, buffer, sequences, samples = self._places, self._buffer, size.sequences, size.samples
        return Inputs(
            row=buffer[at.row :][:sequences],
            query_start=buffer[at.query_start :][: sequences + 1],
            seq_len=buffer[at.seq_len :][:sequences],
            bounds=buffer[at.bounds :][:2],
            query=buffer[at.query :][:samples],
            sample_row=buffer[at.sample_row :][:samples],
            position=buffer[at.position :][:samples],
            logprobs=buffer[at.logprobs :][:samples],
            report_ids=buffer[at.report_ids :][:samples],
            parts=buffer[at.parts :][: PART_FIELDS * self._most_parts(size)].view(-1, PART_FIELDS),
            tokens=size.tokens,
            kind=size.kind,
            adapter=buffer[at.adapter :][:sequences] if size.adapted else None,
        )

    def _most_parts(self, size: LaunchSize) -> int:
        decodes = 0 if size.kind == "prompts" else size.sequences
        return most_parts(decodes, shares=self._shares, longest=self._longest)


def _put(place: Int32, values: Int32, count: int, filler: int) -> None:
    """Write values, and pad up to `count`."""
    place[: len(values)] = values
    place[len(values) : count] = filler

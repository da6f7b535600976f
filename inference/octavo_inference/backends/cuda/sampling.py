"""The sampler on the device: the rule of core/sampling.py, row by row, in kernels.

Parameters and histories come from the row table, and sampled tokens are written there. Each group of rows whose
logits change needs one copy of headers and banned ids. One copy returns the tokens, and one more the log-probabilities
where requested. Only `collect` waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.buffers import aligned
from octavo_inference.backends.cuda.inputs import Inputs
from octavo_inference.backends.cuda.kernels.bitmask import apply_bitmask
from octavo_inference.backends.cuda.kernels.logprobs import NamedIds, log_probabilities
from octavo_inference.backends.cuda.kernels.penalties import HEADER, penalize
from octavo_inference.backends.cuda.kernels.sample import choose
from octavo_inference.backends.cuda.kernels.sampler_scratch import (
    ReportScratch,
    SampleScratch,
    report_shapes,
    sample_shapes,
    shapes_bytes,
)
from octavo_inference.backends.cuda.rows import DeviceRowTable
from octavo_inference.backends.cuda.staging import Ring, Staging
from octavo_inference.core.model_input import Float32, Int32, Penalty, RowSamples, StepResult
from octavo_inference.core.request import MAX_LOGPROB_TOKEN_IDS

_GROUP = 32  # rows whose penalties are applied in one launch: each needs a count per id
# Integers in front of the banned ids: headers, and a pair of rows for each mask.
_MASKS = aligned(_GROUP * HEADER)
_HEADERS = _MASKS + aligned(2 * _GROUP)
_FLIGHTS = 4  # steps whose results fit into host memory: two in flight, one being read, and one spare


@dataclass(frozen=True, slots=True)
class Chosen:
    """A step's tokens on their way to the host."""

    tokens: Torch
    report: tuple[Torch, Torch] | None
    wanted: Int32
    vocab: int
    done: torch.cuda.Event | None

    def collect(self) -> StepResult:
        """Wait for this step on the device. Raises device errors since the last wait."""
        if self.done is not None:
            self.done.synchronize()
        rows = len(self.wanted)
        logprob, rank = np.zeros(rows, np.float32), np.zeros(rows, np.int32)
        top: list[tuple[Int32, Float32] | None] = [None] * rows
        tokens: Int32 = self.tokens.numpy()
        if self.report is not None:
            integers, floats = (part.numpy() for part in self.report)
            for i in np.flatnonzero((self.wanted >= 0) & (tokens >= 0)):
                count = 1 + min(int(self.wanted[i]), self.vocab)
                rank[i], logprob[i] = integers[i, 0], floats[i, 0]
                top[i] = (integers[i, 1:count], floats[i, 1:count])
        return StepResult(tokens, logprob, rank, top)


class Sampler:
    """Samples tokens for up to `max_rows` rows of a row table, with up to `max_logprobs` alternatives each.

    The constructor allocates all device memory, `sampler_bytes`. Kernels and copies run on the current stream.
    """

    def __init__(self, table: DeviceRowTable, *, vocab: int, max_rows: int, max_logprobs: int) -> None:
        device = table.tokens.device

        def empty(*shape: int, dtype: torch.dtype) -> Torch:
            return torch.empty(shape, dtype=dtype, device=device)

        self._table = table
        self._vocab = vocab
        self._gpu = device.type == "cuda"
        self._chosen = empty(max_rows, dtype=torch.int32)
        self._scratch = SampleScratch(*(empty(*shape, dtype=dtype) for shape, dtype in sample_shapes(max_rows, vocab)))
        self._reports = ReportScratch(
            *(empty(*shape, dtype=dtype) for shape, dtype in report_shapes(max_rows, vocab, max_logprobs))
        )
        self._counts = empty(_GROUP, vocab, dtype=torch.int32).zero_()
        self._adjustments = empty(_HEADERS + vocab, dtype=torch.int32)
        # The report of a row: rank and log-probability of its token, then ids and log-probabilities of the
        # alternatives.
        self._width, widest = report_widths(max_logprobs)
        self._integers = empty(max_rows * widest, dtype=torch.int32)
        self._floats = empty(max_rows * widest, dtype=torch.float32)
        self._staging = Staging(self._adjustments.nbytes, device)
        self._rings = [Ring(_FLIGHTS, part.nbytes, device) for part in (self._chosen, self._integers, self._floats)]

    def choose(self, logits: Torch, inputs: Inputs) -> None:
        """Sample a token for each row of logits [R, vocab] in float32, on the device alone."""
        choose(
            logits,
            self._scratch,
            self._chosen[: len(logits)],
            row=inputs.sample_row,
            position=inputs.position,
            sampling=self._table.sampling,
            history=self._table.tokens,
        )

    def adjust(self, logits: Torch, sample: RowSamples) -> Torch:
        """The logits with the changes that some rows request.

        In place, unless one of these rows reports log-probabilities, which are of the unchanged logits. The result then
        is in the memory of the weights, where `choose` takes it from.
        """
        changed = logits
        if any(penalty and wanted >= 0 for penalty, wanted in zip(sample.penalties, sample.logprobs, strict=True)):
            changed = self._scratch.weights[: len(logits), : self._vocab]
            changed.copy_(logits)
        for group in _groups(sample.penalties, len(self._adjustments) - _HEADERS):
            packed = _pack(group, sample.row)
            adjustments = self._adjustments[: len(packed)]
            self._staging.send(packed, adjustments)
            headers = adjustments[: len(group) * HEADER].view(len(group), HEADER)
            table = self._table
            penalize(changed, headers, table.tokens, table.rules, adjustments[_HEADERS:], self._counts)
            masked = sum(penalty.mask for _, penalty in group)
            apply_bitmask(changed, table.mask, adjustments[_MASKS : _MASKS + 2 * masked].view(masked, 2))
        return changed

    def send(self, logits: Torch, inputs: Inputs, sample: RowSamples) -> Chosen:
        """Start copying the sampled tokens to the host. At most two more steps may be launched before they are read."""
        count = len(sample.row)
        tokens = self._chosen[:count]
        tokens_home, integers_home, floats_home = self._rings
        report = None
        if sample.logprobs.max(initial=-1) >= 0:
            named, width = None, self._width
            if sample.report_ids.any():
                named = NamedIds(inputs.report_ids[:count], inputs.sample_row[:count], self._table.rules)
                width = len(self._integers) // len(self._chosen)
            integers, floats = (part[: count * width].view(count, width) for part in (self._integers, self._floats))
            log_probabilities(
                logits[:count], tokens, inputs.logprobs[:count], integers, floats, self._reports, named=named
            )
            report = integers_home.receive(integers), floats_home.receive(floats)
        done = None
        host = tokens_home.receive(tokens)
        if self._gpu:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return Chosen(host, report, sample.logprobs.copy(), self._vocab, done)


def report_widths(max_logprobs: int) -> tuple[int, int]:
    """Integers of a report's row: with the best alternatives, and with any number of named ids.

    No multiples of 16: Triton compiles another variant for these.
    """
    return aligned(1 + max_logprobs), aligned(1 + max(max_logprobs, MAX_LOGPROB_TOKEN_IDS))


def sampler_bytes(*, vocab: int, max_rows: int, max_logprobs: int) -> int:
    """Device memory of a `Sampler` in bytes."""
    scratch = shapes_bytes(sample_shapes(max_rows, vocab)) + shapes_bytes(report_shapes(max_rows, vocab, max_logprobs))
    penalties = (_GROUP + 1) * vocab + _HEADERS
    return scratch + 4 * (penalties + max_rows * (1 + 2 * report_widths(max_logprobs)[1]))


_Numbered = list[tuple[int, Penalty]]


def _groups(penalties: Sequence[Penalty | None], capacity: int) -> Iterator[_Numbered]:
    """The penalised rows in groups of at most `_GROUP`, with at most `capacity` banned ids in each."""
    group: _Numbered = []
    size = 0
    for number, penalty in enumerate(penalties):
        if penalty is None:
            continue
        if group and (len(group) == _GROUP or size + len(penalty.banned) > capacity):
            yield group
            group, size = [], 0
        group.append((number, penalty))
        size += len(penalty.banned)
    if group:
        yield group


def _pack(group: _Numbered, rows: Int32) -> Int32:
    """Headers, then banned ids, as `penalize` reads them; between them the rows with masks, as `apply_bitmask` does.

    A row's range excludes tokens that its penalties ignore.
    """
    packed = np.zeros(_HEADERS + sum(len(penalty.banned) for _, penalty in group), np.int32)
    at = 0
    for header, (number, penalty) in zip(packed[: len(group) * HEADER].reshape(-1, HEADER), group, strict=True):
        factors = (penalty.repetition_penalty, penalty.frequency_penalty, penalty.presence_penalty)
        prompt = 0 if factors[0] != 1.0 else penalty.prompt_len
        total = penalty.total if factors != (1.0, 0.0, 0.0) else penalty.prompt_len
        end = at + len(penalty.banned)
        header[:7] = (number, rows[number], prompt, penalty.prompt_len, total, at, end)
        header[7:10] = np.array(factors, np.float32).view(np.int32)
        header[10:] = penalty.total, penalty.rules
        packed[_HEADERS + at : _HEADERS + end] = penalty.banned
        at = end
    masked = [(number, rows[number]) for number, penalty in group if penalty.mask]
    packed[_MASKS : _MASKS + 2 * len(masked)] = np.array(masked, np.int32).ravel()
    return packed

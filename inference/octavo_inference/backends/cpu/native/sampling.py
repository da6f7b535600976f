"""Converts sample rows to the kernels' structures, and sampled tokens to the engine's."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.packing import address
from octavo_inference.common.address import row_address
from octavo_inference.core.gather import LogitAdjust, SampleRows, ScoreRows
from octavo_inference.core.model_input import Float32, Int32, ScoredTokens, StepResult

Pointers = NDArray[np.uint64]

_INPUTS = ("row", "position", "seed", "temperature", "top_p", "top_k", "min_p", "logprobs")
_OUTPUTS = ("tokens", "logprob", "rank", "top_ids", "top_logprobs")


_NO_SLOTS: Int32 = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class NativeSampling:
    """The structure for one call. It must outlive the call, because it owns the arrays."""

    structure: abi.SamplingArgs
    rows: SampleRows
    vocab: int
    adjust: ctypes.Array[abi.Adjust] | None
    report_ids: Pointers | None
    adapter: Int32
    tokens: Int32
    logprob: Float32
    rank: Int32
    top_ids: Int32
    top_logprobs: Float32

    def result(self) -> StepResult:
        """The sampled tokens and their log-probabilities."""
        wanted = self.rows.logprobs
        top: list[tuple[Int32, Float32] | None] = [None] * len(wanted)
        for i in np.flatnonzero(wanted >= 0):
            count = min(int(wanted[i]), self.vocab)
            top[i] = (self.top_ids[i, :count], self.top_logprobs[i, :count])
        return StepResult(self.tokens, self.logprob, self.rank, top)


def native_sampling(
    rows: SampleRows, vocab: int, steps: int | None = None, *, adapter: Int32 = _NO_SLOTS
) -> NativeSampling:
    """Prepare one call, of one step or of several. `adapter`: slots of the step's tokens, as in `Batch`."""
    count, width = len(rows.row), max(0, int(rows.logprobs.max(initial=0)))
    adjust = _adjustments(rows.adjust)
    native = NativeSampling(
        abi.SamplingArgs(count=count, top_width=width),
        rows,
        vocab,
        adjust,
        _report_ids(rows.report_ids),
        adapter[rows.row] if len(adapter) else _NO_SLOTS,
        tokens=np.zeros(count if steps is None else (steps, count), np.int32),
        logprob=np.zeros(count, np.float32),
        rank=np.zeros(count, np.int32),
        top_ids=np.zeros((count, width), np.int32),
        top_logprobs=np.zeros((count, width), np.float32),
    )
    for name in _INPUTS:
        setattr(native.structure, name, address(getattr(rows, name)))
    for name in _OUTPUTS:
        setattr(native.structure, name, address(getattr(native, name)))
    native.structure.adjust = None if adjust is None else ctypes.addressof(adjust)
    native.structure.adapter = address(native.adapter) if len(native.adapter) else None
    native.structure.report_ids = None if native.report_ids is None else address(native.report_ids)
    return native


def _report_ids(ids: list[Int32 | None]) -> Pointers | None:
    """Address of each row's ids, 0 for none. The arrays belong to the rows."""
    if not any(each is not None for each in ids):
        return None
    return np.array([0 if each is None else address(each) for each in ids], np.uint64)


@dataclass(frozen=True, slots=True)
class NativeScoring:
    """The structure for scoring given tokens. It must outlive the call, because it owns the arrays."""

    structure: abi.SamplingArgs
    inputs: tuple[Int32, ...]
    scored: ScoredTokens


def native_scoring(rows: ScoreRows, vocab: int, adapter: Int32 = _NO_SLOTS) -> NativeScoring:
    """Prepare one call. `adapter`: slots of the step's tokens, as in `Batch`."""
    slots = adapter[rows.row] if len(adapter) else _NO_SLOTS
    count, width = len(rows.row), min(rows.logprobs, vocab)
    wanted = np.full(count, width, np.int32)
    scored = ScoredTokens(
        np.zeros(count, np.float32),
        np.zeros(count, np.int32),
        np.zeros((count, width), np.int32),
        np.zeros((count, width), np.float32),
    )
    structure = abi.SamplingArgs(
        row=address(rows.row),
        tokens=address(rows.tokens),
        logprobs=address(wanted),
        logprob=address(scored.logprob),
        rank=address(scored.rank),
        top_ids=address(scored.top_ids),
        top_logprobs=address(scored.top_logprobs),
        adapter=address(slots) if len(slots) else None,
        count=count,
        top_width=width,
    )
    return NativeScoring(structure, (rows.row, rows.tokens, wanted, slots), scored)


def _adjustments(adjust: list[LogitAdjust | None]) -> ctypes.Array[abi.Adjust] | None:
    """One structure per row. Absent parts stay null, since addresses take time: a row with a mask alone needs one."""
    if not any(a is not None for a in adjust):
        return None
    result = (abi.Adjust * len(adjust))()
    for to, a in zip(result, adjust, strict=True):
        to.repetition = 1.0
        if a is None:
            continue
        rules = a.rules
        if len(rules.mask):
            to.mask = row_address(rules.mask)
        if len(a.banned):
            to.banned, to.banned_len = address(a.banned), len(a.banned)
        if len(rules.bias_ids):
            to.bias_ids, to.bias, to.bias_len = address(rules.bias_ids), address(rules.bias), len(rules.bias_ids)
        if len(rules.word_ends):
            to.word_ends, to.word_tokens = address(rules.word_ends), address(rules.word_tokens)
            to.words = len(rules.word_ends)
        if a.is_penalised or len(rules.word_ends):
            to.prompt, to.prompt_len = address(a.prompt), len(a.prompt)
            to.output, to.output_len = address(a.output), len(a.output)
            to.presence, to.frequency, to.repetition = a.presence_penalty, a.frequency_penalty, a.repetition_penalty
    return result

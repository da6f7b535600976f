"""Converts sample rows to the kernels' structures, and sampled tokens to the engine's."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.packing import address
from octavo_inference.core.gather import LogitAdjust, SampleRows
from octavo_inference.core.model_input import Float32, Int32, StepResult

_INPUTS = ("row", "position", "seed", "temperature", "top_p", "top_k", "min_p", "logprobs")
_OUTPUTS = ("tokens", "logprob", "rank", "top_ids", "top_logprobs")


@dataclass(frozen=True, slots=True)
class NativeSampling:
    """The structure for one call. It must outlive the call, because it owns the arrays."""

    structure: abi.SamplingArgs
    rows: SampleRows
    vocab: int
    adjust: ctypes.Array[abi.Adjust] | None
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


def native_sampling(rows: SampleRows, vocab: int) -> NativeSampling:
    """Prepare one call."""
    count, width = len(rows.row), max(0, int(rows.logprobs.max(initial=0)))
    adjust = _adjustments(rows.adjust)
    native = NativeSampling(
        abi.SamplingArgs(count=count, top_width=width),
        rows,
        vocab,
        adjust,
        tokens=np.zeros(count, np.int32),
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
    return native


def _adjustments(adjust: list[LogitAdjust | None]) -> ctypes.Array[abi.Adjust] | None:
    if not any(a is not None for a in adjust):
        return None
    result = (abi.Adjust * len(adjust))()
    for to, a in zip(result, adjust, strict=True):
        to.repetition = 1.0
        if a is None:
            continue
        for name in ("prompt", "output", "banned"):
            ids = getattr(a, name)
            setattr(to, name, address(ids))
            setattr(to, f"{name}_len", len(ids))
        to.presence, to.frequency, to.repetition = a.presence_penalty, a.frequency_penalty, a.repetition_penalty
    return result

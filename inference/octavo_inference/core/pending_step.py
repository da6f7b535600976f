"""Steps on their way."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_inference.core.backend import Backend, StepHandle
from octavo_inference.core.input_batch import InputBatch
from octavo_inference.core.scheduler_output import SchedulerOutput


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A launched step: its plan, and when that began.

    `prefill` tokens of chunks are in it, and `context` tokens that its decodes attend to.
    """

    plan: SchedulerOutput
    handle: StepHandle
    begin: float
    prefill: int
    context: int


def launch(backend: Backend, rows: InputBatch, plan: SchedulerOutput, begin: float) -> PendingStep:
    """Launch a plan that was begun at some time."""
    step = rows.diff(plan)
    prefill = sum(taken for _, taken in plan.chunks)
    context = int(step.seq_len[: len(plan.decodes)].sum())
    return PendingStep(plan, backend.launch(step), begin, prefill, context)

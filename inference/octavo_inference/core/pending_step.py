"""Steps on their way: how a plan is launched on the backend at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo_inference.core.backend import Backend, RowBackend, StepHandle
from octavo_inference.core.input_batch import InputBatch
from octavo_inference.core.model_input import Int32, StepResult
from octavo_inference.core.scheduler_output import SchedulerOutput


@dataclass(frozen=True, slots=True)
class Computed:
    """A step that was computed when it was launched."""

    result: StepResult

    def collect(self) -> StepResult:
        """What it gave."""
        return self.result


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A launched step: its plan, and when that began.

    `prefill` tokens of chunks are in it, and `context` tokens that its decodes attend to.
    """

    plan: SchedulerOutput
    launched: StepHandle
    begin: float
    prefill: int
    context: int


def starter(backend: Backend, rows: InputBatch) -> Callable[[SchedulerOutput, float], PendingStep]:
    """How to launch a plan that was begun at some time: by what changed in the rows, or with all that a step needs."""
    if isinstance(backend, RowBackend):

        def launch(plan: SchedulerOutput, begin: float) -> PendingStep:
            step = rows.describe(plan)
            return _flight(plan, backend.launch(step), begin, step.seq_len)

        return launch

    def compute(plan: SchedulerOutput, begin: float) -> PendingStep:
        batch = rows.gather(plan)
        return _flight(plan, Computed(backend.step(batch)), begin, batch.seq_len)

    return compute


def _flight(plan: SchedulerOutput, launched: StepHandle, begin: float, seq_len: Int32) -> PendingStep:
    prefill = sum(taken for _, taken in plan.chunks)
    return PendingStep(plan, launched, begin, prefill, int(seq_len[: len(plan.decodes)].sum()))

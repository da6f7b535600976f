"""Steps on their way: how a plan is launched on the backend at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo_inference.core.backend import Backend, Launched, RowBackend
from octavo_inference.core.input_batch import RowTable
from octavo_inference.core.model_input import Int32, StepResult
from octavo_inference.core.scheduler_output import Plan


@dataclass(frozen=True, slots=True)
class Computed:
    """A step that was computed when it was launched."""

    result: StepResult

    def collect(self) -> StepResult:
        """What it gave."""
        return self.result


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched step: its plan, and when that began.

    `prefill` tokens of chunks are in it, and `context` tokens that its decodes attend to.
    """

    plan: Plan
    launched: Launched
    begin: float
    prefill: int
    context: int


def starter(backend: Backend, rows: RowTable) -> Callable[[Plan, float], Flight]:
    """How to launch a plan that was begun at some time: by what changed in the rows, or with all that a step needs."""
    if isinstance(backend, RowBackend):

        def launch(plan: Plan, begin: float) -> Flight:
            step = rows.describe(plan)
            return _flight(plan, backend.launch(step), begin, step.seq_len)

        return launch

    def compute(plan: Plan, begin: float) -> Flight:
        batch = rows.gather(plan)
        return _flight(plan, Computed(backend.step(batch)), begin, batch.seq_len)

    return compute


def _flight(plan: Plan, launched: Launched, begin: float, seq_len: Int32) -> Flight:
    prefill = sum(taken for _, taken in plan.chunks)
    return Flight(plan, launched, begin, prefill, int(seq_len[: len(plan.decodes)].sum()))

"""In-flight steps."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_inference.core.backend import Backend, StepHandle
from octavo_inference.core.input_batch import InputBatch
from octavo_inference.core.masks import GuidedRow, MaskJob
from octavo_inference.core.model_input import DecodeRun
from octavo_inference.core.prefill_budget import pairs
from octavo_inference.core.scheduler_output import SchedulerOutput


@dataclass(slots=True)
class PendingStep:
    """An in-flight step: its plan, and the time its planning began.

    The step contains `prefill` tokens of chunks, and `pairs` of a chunk's token and one before it. Sequences
    that decode attend to `context` tokens. It samples once the masks of `guided` rows are filled, possibly by `masks`;
    `guided` is empty afterwards.
    """

    plan: SchedulerOutput
    handle: StepHandle
    begin: float
    prefill: int
    pairs: int
    context: int
    guided: list[GuidedRow]
    masks: MaskJob | None


def launch(
    backend: Backend,
    rows: InputBatch,
    plan: SchedulerOutput,
    begin: float,
    guided: list[GuidedRow],
    masks: MaskJob | None,
    run: DecodeRun | None = None,
) -> PendingStep:
    """Launch a plan whose planning began at the given time, or a run of steps that begins with it."""
    step = rows.diff(plan, run)
    prefill = sum(taken for _, taken in plan.chunks)
    earlier = sum(pairs(taken, sequence.computed) for sequence, taken in plan.chunks)
    context = int(step.seq_len[: len(plan.decodes)].sum() + step.seq_len[len(step.seq_len) - len(plan.drafts) :].sum())
    return PendingStep(plan, backend.launch(step), begin, prefill, earlier, context, guided, masks)

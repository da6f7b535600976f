"""A backend that keeps the row table and computes behind the engine's back, as a GPU does."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from octavo_inference.core.model_input import SAMPLING, Batch, LogitAdjust, Penalty, RowStep, SampleRows, StepResult

from .echo import EchoBackend


class LateBackend(EchoBackend):
    """Told of changes alone. A step runs when it is collected, or when KV is moved: until then nothing of it is there.

    So an engine that needs a token too early, gives a block away too early or forgets a change gives another answer.
    """

    def __init__(self, num_blocks: int, block_size: int = 4, rows: int = 8, longest: int = 64) -> None:
        super().__init__(num_blocks, block_size)
        self.table = {
            "tokens": np.full((rows, longest), -1, np.int32),
            "blocks": np.full((rows, -(-longest // block_size)), -1, np.int32),
            "sampling": np.zeros((rows, len(SAMPLING)), np.int32),
        }
        self.steps: list[RowStep] = []
        self.most_in_flight = 0
        self.idled = 0
        self._queue: deque[Late] = deque()

    def launch(self, step: RowStep) -> Late:
        # The engine may use its arrays again for the next step.
        changes = [(change.field, change.row, change.column, change.values.copy()) for change in step.changes]
        late = Late(self, step, changes)
        self._queue.append(late)
        self.steps.append(step)
        self.most_in_flight = max(self.most_in_flight, len(self._queue))
        return late

    def idle(self) -> bool:
        self.idled += 1
        return self.idled < 3

    def run_until(self, late: Late) -> None:
        while late.result is None:
            self._queue.popleft().run()

    def synchronize(self) -> None:
        while self._queue:
            self._queue.popleft().run()

    def to_host(self, blocks):  # type: ignore[no-untyped-def]
        self.synchronize()
        return super().to_host(blocks)

    def from_host(self, saved, blocks) -> None:  # type: ignore[no-untyped-def]
        self.synchronize()
        super().from_host(saved, blocks)

    def clear_blocks(self, blocks) -> None:  # type: ignore[no-untyped-def]
        self.synchronize()
        super().clear_blocks(blocks)

    def copy_blocks(self, pairs) -> None:  # type: ignore[no-untyped-def]
        self.synchronize()
        super().copy_blocks(pairs)


@dataclass
class Late:
    """A step on its way."""

    backend: LateBackend
    step: RowStep
    changes: list[tuple[str, int, int, np.ndarray]]
    result: StepResult | None = field(default=None)

    def collect(self) -> StepResult:
        self.backend.run_until(self)
        assert self.result is not None
        return self.result

    def run(self) -> None:
        table, step = self.backend.table, self.step
        for name, row, column, values in self.changes:
            table[name][row, column : column + len(values)] = values
        self.result = self.backend.step(as_batch(step, table, self.backend.block_size))
        table["tokens"][step.sample.row, step.sample.position] = self.result.tokens


def as_batch(step: RowStep, table: dict[str, np.ndarray], block_size: int) -> Batch:
    """The batch that a step and a row table stand for."""
    counts = np.diff(step.query_start)
    owner = np.repeat(np.arange(len(step.row)), counts)
    last = step.query_start[1:][owner]
    positions = (step.seq_len[owner] - (last - np.arange(len(owner)))).astype(np.int32)
    rows = step.row[owner]
    width = -(-int(step.seq_len.max(initial=0)) // block_size)
    blocks = table["blocks"][rows, positions // block_size]
    assert (blocks >= 0).all(), "a block that nobody told of"
    sampling = np.ascontiguousarray(table["sampling"][step.sample.row])
    floats = sampling.view(np.float32)
    tokens = table["tokens"][rows, positions]
    assert (tokens >= 0).all(), "a token that nobody told of"
    return Batch(
        tokens=tokens,
        positions=positions,
        slots=blocks * block_size + positions % block_size,
        query_start=step.query_start,
        seq_len=step.seq_len,
        block_table=np.ascontiguousarray(np.maximum(table["blocks"][step.row, :width], 0)),
        sample=SampleRows(
            row=step.sample.query,
            position=step.sample.position,
            seed=np.ascontiguousarray(sampling[:, :2]).view(np.uint64)[:, 0],
            temperature=floats[:, 2],
            top_p=floats[:, 3],
            top_k=sampling[:, 4],
            min_p=floats[:, 5],
            logprobs=step.sample.logprobs,
            adjust=[
                None if penalty is None else adjustment(penalty, table["tokens"][row])
                for penalty, row in zip(step.sample.penalties, step.sample.row, strict=True)
            ],
        ),
    )


def adjustment(penalty: Penalty, tokens: np.ndarray) -> LogitAdjust:
    return LogitAdjust(
        tokens[: penalty.prompt_len].copy(),
        tokens[penalty.prompt_len : penalty.total].copy(),
        penalty.presence_penalty,
        penalty.frequency_penalty,
        penalty.repetition_penalty,
        penalty.banned,
    )

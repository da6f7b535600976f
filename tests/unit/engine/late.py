"""A backend that keeps a copy of the row table and computes behind the engine's back, as a GPU does."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from octavo_inference.core.gather import gather
from octavo_inference.core.model_input import RowChange, RowStep, RowTable, StepResult
from octavo_inference.models.layer_groups import PoolLayout

from .echo import PLAIN, EchoBackend


class LateBackend(EchoBackend):
    """Works from changes alone, never from the engine's own table.

    A step runs when it is collected, or when KV is moved: until then nothing of it is there. So an engine that
    needs a token too early, gives a block away too early or forgets a change gives another answer.
    """

    steps_ahead = 1

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 4,
        rows: int = 8,
        longest: int = 64,
        state_slots: int = 0,
        layout: PoolLayout = PLAIN,
        adapter_slots: int = 0,
    ) -> None:
        super().__init__(num_blocks, block_size, state_slots, layout, adapter_slots)
        groups = len(layout.groups)
        self.table = RowTable.zeros(rows, longest, block_size, self.vocab_size, self.hidden_size, groups)
        self.table.tokens[:] = self.table.blocks[:] = -1
        self.steps: list[RowStep] = []
        self.most_in_flight = 0
        self.idled = 0
        self._queue: deque[Late] = deque()

    def launch(self, step: RowStep) -> Late:
        # The engine may use its arrays again for the next step.
        changes = [(change.field, change.row, change.column, change.values.copy()) for change in step.changes]
        assert all(each.chosen for each in self._queue), "a launch before the last step had its masks"
        late = Late(self, replace(step, table=self.table), changes, chosen=not step.guided)
        self._queue.append(late)
        self.steps.append(step)
        self.most_in_flight = max(self.most_in_flight, len(self._queue))
        return late

    def load_adapter(self, slot: int, adapter: int | None) -> None:
        self.synchronize()
        super().load_adapter(slot, adapter)

    def part_seconds(self) -> dict[str, float]:
        return {}

    def expert_tokens(self) -> None:
        return None

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

    def states_to_host(self, slots):  # type: ignore[no-untyped-def]
        self.synchronize()
        return super().states_to_host(slots)

    def states_from_host(self, saved, slots) -> None:  # type: ignore[no-untyped-def]
        self.synchronize()
        super().states_from_host(saved, slots)

    def copy_states(self, pairs) -> None:  # type: ignore[no-untyped-def]
        self.synchronize()
        super().copy_states(pairs)


@dataclass
class Late:
    """A step on its way."""

    backend: LateBackend
    step: RowStep
    changes: list[tuple[str, int, int, np.ndarray]]
    chosen: bool
    result: StepResult | None = field(default=None)

    def choose(self, masks: Sequence[RowChange]) -> None:
        assert not self.chosen
        self.changes += [(each.field, each.row, each.column, each.values.copy()) for each in masks]
        self.chosen = True

    def collect(self) -> StepResult:
        self.backend.run_until(self)
        assert self.result is not None
        return self.result

    def run(self) -> None:
        assert self.chosen, "a step runs to its end before it has its masks"
        table, sample = self.backend.table, self.step.sample
        for name, row, column, values in self.changes:
            getattr(table, name)[row].reshape(-1)[column : column + len(values)] = values
        batch = gather(self.step)
        assert (batch.tokens != -1).all(), "a token that nobody told of"
        assert (batch.slots >= 0).all(), "a block that nobody told of"
        self.result = self.backend.step(batch)
        # The next step may read the place of a token that is none; the row is wasted.
        table.tokens[sample.row, sample.position] = np.maximum(self.result.tokens, 0)

"""What the scheduler decided for one step."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_inference.core.sequence import Sequence


@dataclass(slots=True)
class SchedulerOutput:
    """One step: `decodes` compute one token each, `chunks` as many as stated; in this order in the batch.

    `samples` are the sequences that get a token; `sample_rows` the query token whose logits each uses (siblings of a
    request share one). `preempted` sequences lost their blocks and wait again. `idle_rows` are rows that finished
    sequences of a static batch keep from others.

    Before the step, in this order: `swap_out` are blocks of a preempted sequence to copy to the host; `swap_in` are
    blocks into which to copy them back, from the stated one of the saved on; `block_copies` are pairs of source and
    destination.
    """

    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    samples: list[Sequence] = field(default_factory=list)
    sample_rows: list[int] = field(default_factory=list)
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    swap_out: list[tuple[Sequence, list[int]]] = field(default_factory=list)
    swap_in: list[tuple[Sequence, int, list[int]]] = field(default_factory=list)
    idle_rows: int = 0

    @property
    def sequences(self) -> list[Sequence]:
        """All that have a part in it, some twice."""
        return [*self.decodes, *(sequence for sequence, _ in self.chunks), *self.samples]

    @property
    def empty(self) -> bool:
        """Nothing to compute."""
        return not self.decodes and not self.chunks

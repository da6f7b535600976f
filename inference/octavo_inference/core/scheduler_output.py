"""The scheduler's plan of one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from octavo_inference.core.prompt_logprobs import PromptLogprobs
from octavo_inference.core.sequence import Sequence
from octavo_inference.core.speculation.speculator import Draft


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """Prompt tokens to score: those after the `count` query tokens from `query` on, the first of them at `position`."""

    sequence: Sequence
    scores: PromptLogprobs
    query: int
    position: int
    count: int


class Snapshot(NamedTuple):
    """The state in slot `row`, to copy to the reserved `slot` for the prefix cache of `policy`."""

    row: int
    slot: int
    policy: int


@dataclass(slots=True)
class SchedulerOutput:
    """One step's plan: `decodes` compute one token each, `chunks` the stated number; in this order in the batch.

    `drafts` come last in it: sequences that compute their last token and guesses of those after it, and sample after
    each of them. `samples` are the other sequences that get a token; `sample_rows` the query token whose logits each
    uses (siblings of a request share one). `scores` are the prompt tokens whose log-probabilities are requested.
    `pooled` are the sequences whose embedding this step completes. `preempted` sequences lost their blocks and wait
    again. `idle_rows` are rows of finished sequences that stay unused until their static batch ends.

    Before the step, in this order: `swap_out` are blocks of a preempted sequence to copy to the host, and the row of
    its state. `swap_in` are blocks to restore, with the index of the first saved block to copy. `block_copies` are
    pairs of source and destination, `state_hits` of a snapshot's slot and a row. `snapshots` are copied last: they may
    take the slot of a hit. After the step: `state_forks`, the rows of a leader and of a sibling.
    """

    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)
    samples: list[Sequence] = field(default_factory=list)
    sample_rows: list[int] = field(default_factory=list)
    pooled: list[Sequence] = field(default_factory=list)
    scores: list[ScoredChunk] = field(default_factory=list)
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    swap_out: list[tuple[Sequence, list[int], int]] = field(default_factory=list)
    swap_in: list[tuple[Sequence, int, list[int]]] = field(default_factory=list)
    state_hits: list[tuple[int, int]] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    state_forks: list[tuple[int, int]] = field(default_factory=list)
    idle_rows: int = 0

    @property
    def sequences(self) -> list[Sequence]:
        """All sequences that take part in the step; some occur twice."""
        chunks, drafts = [each[0] for each in self.chunks], [each[0] for each in self.drafts]
        return [*self.decodes, *chunks, *drafts, *self.samples]

    @property
    def empty(self) -> bool:
        """True if there is nothing to compute."""
        return not (self.decodes or self.chunks or self.drafts)

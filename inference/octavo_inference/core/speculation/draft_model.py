"""A draft model: a small model that continues the sequences of a large one.

It needs no pool and no block tables of its own. A block of the engine's pool has a number, and the draft model's K and
V of the same tokens lie in the block of that number in its own memory. So its part of the KV memory is in proportion,
and sequences that share a prefix share it here too. (vLLM does this for the heads of EAGLE.)

    block 7 of the pool     K and V of tokens 32 to 47, of the model
    block 7 here            K and V of tokens 32 to 47, of the draft model, or of something else

What a block holds here is noted by the hash of its tokens. A block that is used again for other tokens is valid again
only once the draft model has computed them: nothing has to be told when blocks come and go.

Guesses are sampled with the seed and the positions of the sequence. Where both models have like probabilities, both
samplers choose the same token for the same random number, at any temperature.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from octavo_inference.core.backend import Backend
from octavo_inference.core.model_input import DecodeRun, RowSamples, RowStep, RowTable
from octavo_inference.core.sequence import Sequence
from octavo_inference.core.speculation.proposers import Offer

Int32 = NDArray[np.int32]

_NOTHING = np.empty(0, np.int32)
_NO_LIMIT = 3600.0
"""Seconds: a run of guesses ends by its number of steps."""
_USUAL = 2
"""Tokens that a sequence has more than at its last guess, if all was accepted: the last guess and a sample."""


@dataclass(slots=True)
class _Progress:
    """How far a sequence is computed here: `computed` tokens, and `guesses` behind them. `noted` blocks have hashes.

    `barred`: it has a token that this model does not know.
    """

    computed: int = 0
    guesses: Int32 = field(default_factory=lambda: _NOTHING)
    noted: int = 0
    barred: bool = False


class DraftModel:
    """Guesses with a model on `backend`, which has as many blocks as the engine's pool, of the same size.

    `group`: the engine's block table that has a block for every token. `tokens`: most query tokens of one launch. Ids
    from `vocab` on are unknown to one of the models: nothing is guessed behind them, and they are no guesses.
    """

    def __init__(self, backend: Backend, *, group: int, tokens: int, vocab: int) -> None:
        self.backend = backend
        self._group = group
        self._budget = tokens
        self._vocab = vocab
        self._hashes: list[bytes | None] = [None] * backend.num_blocks
        self._progress: dict[Sequence, _Progress] = {}
        self.is_behind = False

    def offers(self, sequences: List[Sequence], most: List[int]) -> list[Offer]:
        """As many tokens as wanted, of each sequence that it can read."""
        barred = {sequence for sequence, progress in self._progress.items() if progress.barred}
        return [Offer(s, 0 if s in barred else count) for s, count in zip(sequences, most, strict=True)]

    def guess(self, offers: List[Offer], table: RowTable) -> list[Int32]:
        """Compute what the sequences have more than at their last guess, then guess. Nothing for those still behind."""
        shared = replace(table, blocks=table.blocks[:, self._group : self._group + 1])
        for offer in offers:
            self._settle(offer.sequence)
        ready = self._catch_up([offer.sequence for offer in offers], shared)
        wanted = {offer.sequence: offer.most for offer in offers if offer.sequence in ready}
        guesses: dict[Sequence, list[int]] = {sequence: [] for sequence in wanted}
        # The sequences that lack one token can go on at once, together with their guesses.
        if any(missing > 1 for missing in ready.values()):
            self._continue(guesses, ready, shared, 1)
        while going := [s for s, tokens in guesses.items() if len(tokens) < wanted[s] and self._are_known(tokens)]:
            self._continue(guesses, dict.fromkeys(going, 1), shared, min(wanted[s] - len(guesses[s]) for s in going))
        for sequence, tokens in guesses.items():
            self._progress[sequence].guesses = np.array(tokens[:-1], np.int32)
        return [self._usable(guesses.get(offer.sequence, [])) for offer in offers]

    def left(self, sequence: Sequence) -> None:
        """Its blocks are no longer its own."""
        self._progress.pop(sequence, None)

    def finished(self, sequence: Sequence) -> None:
        """Nothing more is kept of it."""

    def reset(self) -> None:
        """Forget what the blocks hold."""
        self._hashes = [None] * len(self._hashes)

    def _settle(self, sequence: Sequence) -> None:
        """Find out how much of a sequence is computed: prefixes of the first sight, accepted guesses later.

        The last token is always computed again, for the logits behind it.
        """
        known = sequence.num_known_tokens
        progress = self._progress.get(sequence)
        if progress is None:
            progress = self._progress[sequence] = _Progress()
            held = zip(sequence.blocks[self._group], sequence.hashes, strict=False)
            progress.noted = sum(1 for _ in takewhile(lambda each: self._hashes[each[0]] == each[1], held))
            progress.computed = progress.noted * self.backend.block_size
        else:
            actual = sequence.tokens[progress.computed : known]
            count = min(len(actual), len(progress.guesses))
            agreed = actual[:count] == progress.guesses[:count]
            progress.computed += count if agreed.all() else int(agreed.argmin())
            progress.guesses = _NOTHING
        progress.computed = min(progress.computed, known - 1)

    def _catch_up(self, sequences: List[Sequence], table: RowTable) -> dict[Sequence, int]:
        """Compute tokens of sequences that lack many, up to a launch of them. Returns who lacks at most two then."""
        room, chunks, ready = self._budget, [], {}
        for sequence in sequences:
            progress, known = self._progress[sequence], sequence.num_known_tokens
            missing = known - progress.computed
            progress.barred = bool((sequence.tokens[progress.computed : known] >= self._vocab).any())
            if progress.barred:
                continue
            take = min(missing - 1, room) if missing > _USUAL else 0
            if take:
                chunks.append((sequence, take))
                room -= take
            if missing - take <= _USUAL:
                ready[sequence] = missing - take
        self.is_behind = bool(chunks)
        if chunks:
            ends = [self._progress[sequence].computed + take for sequence, take in chunks]
            for (sequence, _), end in zip(chunks, ends, strict=True):
                self._begin(sequence, end)
            self._launch([s for s, _ in chunks], [take for _, take in chunks], ends, table, samples=False)
            for (sequence, _), end in zip(chunks, ends, strict=True):
                self._computed(sequence, end)
        return dict(sorted(ready.items(), key=lambda each: each[1]))

    def _continue(
        self, guesses: dict[Sequence, list[int]], missing: dict[Sequence, int], table: RowTable, steps: int
    ) -> None:
        """Guess `steps` more tokens of sequences, after those that are missing."""
        ends = [sequence.num_known_tokens + len(guesses[sequence]) for sequence in missing]
        for sequence, end in zip(missing, ends, strict=True):
            self._begin(sequence, end + steps - 1)
        tokens = self._launch(list(missing), list(missing.values()), ends, table, steps=steps)
        for sequence, end, found in zip(missing, ends, tokens.T, strict=True):
            guesses[sequence] += found.tolist()
            # The next launch reads them from there. The table has room: an answer ends after its guesses.
            table.tokens[sequence.row, end : end + len(found)] = found
            self._computed(sequence, end + len(found) - 1)

    def _launch(
        self,
        sequences: list[Sequence],
        counts: list[int],
        ends: list[int],
        table: RowTable,
        *,
        steps: int = 1,
        samples: bool = True,
    ) -> Int32:
        """Compute the last `counts` tokens before `ends`, and `steps` - 1 more: sampled tokens [steps, sequences]."""
        rows = np.array([sequence.row for sequence in sequences], np.int32)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        lengths = np.array(ends, np.int32)
        chosen = len(rows) if samples else 0
        sample = RowSamples(
            query=starts[1 : 1 + chosen] - 1,
            row=rows[:chosen],
            position=lengths[:chosen].copy(),
            logprobs=np.full(chosen, -1, np.int32),
            penalties=[None] * chosen,
        )
        ends_of_run = np.zeros(1 + chosen, np.int32)
        run = DecodeRun(steps, _NO_LIMIT, -1, _NOTHING, ends_of_run) if steps > 1 else None
        step = RowStep([], rows, starts, lengths, sample, table, run=run)
        return np.atleast_2d(self.backend.launch(step).collect().tokens).copy()

    def _begin(self, sequence: Sequence, end: int) -> None:
        """Note that blocks up to a place are about to be written."""
        progress, size = self._progress[sequence], self.backend.block_size
        progress.noted = min(progress.noted, progress.computed // size)
        for block in sequence.blocks[self._group][progress.noted : -(-end // size)]:
            self._hashes[block] = None

    def _computed(self, sequence: Sequence, end: int) -> None:
        """Note that a sequence is computed up to a place: what its blocks hold now, by their hashes.

        Guesses are not noted: a block with some of them has no hash until it is filled with known tokens.
        """
        progress, size = self._progress[sequence], self.backend.block_size
        blocks = sequence.blocks[self._group]
        progress.computed = min(end, sequence.num_known_tokens)
        full = min(progress.computed // size, len(sequence.hashes))
        for number in range(progress.noted, full):
            self._hashes[blocks[number]] = sequence.hashes[number]
        progress.noted = max(progress.noted, full)

    def _are_known(self, tokens: list[int]) -> bool:
        return not tokens or 0 <= tokens[-1] < self._vocab

    def _usable(self, tokens: list[int]) -> Int32:
        """The tokens before one that is no number, or unknown to one of the models."""
        return np.array(list(takewhile(lambda token: 0 <= token < self._vocab, tokens)), np.int32)

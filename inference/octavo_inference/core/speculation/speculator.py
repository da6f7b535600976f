"""Plans what a step verifies: guesses of a proposer, as many as make the step worth it."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo_inference.core.sequence import Sequence
from octavo_inference.core.speculation.acceptance import Acceptance
from octavo_inference.core.speculation.counts import SpeculationTotals
from octavo_inference.core.speculation.guidance import GuideAhead, allowed
from octavo_inference.core.speculation.lengths import Candidate, lengths
from octavo_inference.core.speculation.lookup import NO_GUESS, Guess
from octavo_inference.core.speculation.step_times import StepTimes

Int32 = NDArray[np.int32]


class Draft(NamedTuple):
    """Guessed tokens of a sequence, for a step to verify. `ahead`: guidance behind each of them, if it has any."""

    sequence: Sequence
    tokens: Int32
    matched: int
    ahead: GuideAhead | None = None

    def shortened(self, count: int) -> Draft:
        """The first tokens, with their guidance."""
        guide, tokens = self.sequence.guide, self.tokens[:count]
        return Draft(self.sequence, tokens, self.matched, None if guide is None else GuideAhead(guide, tokens))


class Proposer(Protocol):
    """Guesses the tokens that follow sequences."""

    def guess(self, sequence: Sequence, most: int) -> Guess:
        """At most `most` tokens that may follow the known ones of a sequence."""
        ...

    def finished(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        ...

    def reset(self) -> None:
        """Forget what was kept of sequences that have ended."""
        ...


class Speculator:
    """Speculation with one proposer. `most` tokens of a sequence are verified at a time, at most.

    `adjusted`: also of sequences whose logits change by guidance, penalties or rules. A backend with a row table of its
    own has no masks behind guesses, and its penalties count samples where the guesses should be.
    """

    def __init__(self, proposer: Proposer, most: int, *, adjusted: bool = True) -> None:
        self._proposer = proposer
        self._most = most
        self._adjusted = adjusted
        self._acceptance = Acceptance()
        self._times = StepTimes()
        self.totals = SpeculationTotals()

    def drafts(self, sequences: List[Sequence], rows: int, room: int) -> list[Draft]:
        """What to verify of these sequences in a step of `rows` decodes, of at most `room` tokens in all."""
        if room <= 0 or self._times.alone(rows) is None:
            return []  # the time without guesses is measured first, and now and then again
        guesses = [self._guess(sequence, min(self._most, room)) for sequence in sequences]
        candidates = [
            Candidate(len(guess.tokens), self._acceptance.rate(sequence.trials, guess.matched))
            for sequence, guess in zip(sequences, guesses, strict=True)
        ]
        counts = lengths(candidates, rows, room, self._times.curve(rows).seconds)
        found = []
        for sequence, guess, count in zip(sequences, guesses, counts, strict=True):
            if count:
                found.append(Draft(sequence, guess.tokens[:count], guess.matched))
            elif len(guess.tokens):
                self._acceptance.rest(sequence.trials, guess.matched)
        return found

    def _guess(self, sequence: Sequence, most: int) -> Guess:
        # The token after the last guess is sampled too: it must not be beyond the limit.
        most = min(most, sequence.limit - sequence.total - 1)
        guide = sequence.guide
        if most <= 0 or not (self._adjusted or self._is_plain(sequence)):
            return NO_GUESS
        guess = self._proposer.guess(sequence, most)
        if guide is None or not len(guess.tokens):
            return guess
        return Guess(guess.tokens[: allowed(guide, guess.tokens)], guess.matched)

    @staticmethod
    def _is_plain(sequence: Sequence) -> bool:
        return not sequence.penalised and sequence.total >= sequence.min_total

    def verified(self, draft: Draft, accepted: int) -> None:
        """Note that so many tokens of a draft were accepted."""
        self._acceptance.observe(draft.sequence.trials, draft.matched, len(draft.tokens), accepted)
        self.totals.add(len(draft.tokens), accepted)

    def stepped(self, rows: int, drafted: int, accepted: int, seconds: float, steps: int = 1) -> None:
        """Note the time of a step of `rows` sequences without prompts, or the mean of several steps without drafts."""
        alone = self._times.alone(rows)
        if drafted and alone is not None:
            self.totals.seconds_saved += alone * (rows + accepted) / rows - seconds
        self._times.add(rows, drafted, seconds, steps)

    def finished(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        self._proposer.finished(sequence)

    def reset(self) -> None:
        """Forget what was kept of sequences that have ended."""
        self._proposer.reset()

"""Plans what a step verifies: guesses of a proposer, as many as make the step worth it."""

from __future__ import annotations

from collections.abc import Sequence as List
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_inference.core.model_input import RowTable
from octavo_inference.core.sequence import Sequence
from octavo_inference.core.speculation.acceptance import Acceptance
from octavo_inference.core.speculation.counts import SpeculationTotals
from octavo_inference.core.speculation.expected_times import ExpectedTimes
from octavo_inference.core.speculation.guidance import GuideAhead, allowed
from octavo_inference.core.speculation.lengths import DraftCandidate, lengths
from octavo_inference.core.speculation.proposers import Offer, Proposer

Int32 = NDArray[np.int32]

_ROWS = 4
"""So many sequences cost a step of rest: to look for guesses takes the host's time for each of them."""
_AFTER_PROMPT = 3
"""Steps that are planned ahead after one with prompts: more of them may come."""


class Draft(NamedTuple):
    """Guessed tokens of a sequence, for a step to verify. `ahead`: guidance behind each of them, if it has any."""

    sequence: Sequence
    tokens: Int32
    matched: int
    ahead: GuideAhead | None = None


class Speculator:
    """Speculation with one proposer. `most` tokens of a sequence are verified at a time, at most.

    `times`: what steps are expected to take; without, any number of guesses is taken to cost nothing. `is_behind`: the
    proposer did other work in the last step too, so that its time tells nothing of guesses.

    `rest`: so many steps have no guesses after one in which none was worth it. They can be planned ahead.

    `adjusted`: also of sequences whose logits change by guidance, penalties or rules. A backend with a row table of its
    own has no masks behind guesses, and its penalties count samples where the guesses should be.
    """

    def __init__(
        self, proposer: Proposer, most: int, *, times: ExpectedTimes | None = None, adjusted: bool = True, rest: int = 0
    ) -> None:
        self._proposer = proposer
        self._rest = rest
        self._resting = 0
        self._most = most
        self.adjusted = adjusted
        self._acceptance = Acceptance()
        self._times = times or ExpectedTimes()
        self._longest = 0
        self.is_behind = False
        self.totals = SpeculationTotals()

    @property
    def tries(self) -> bool:
        """True if the next step may have guesses: all tokens before it have to be known."""
        return self._resting == 0

    def passed(self) -> None:
        """Note a step that is planned without a look at guesses: they rest, or it has prompts."""
        self.is_behind = False
        self._resting = self._resting - 1 if self._resting else min(self._rest, _AFTER_PROMPT)

    def wanted(self, sequences: List[Sequence], rows: int, room: int) -> list[Offer]:
        """What to guess of these sequences for a step of `rows` decodes, at most `room` tokens in all."""
        self.is_behind = False
        self._resting = max(self._rest, rows // _ROWS)
        if room <= 0:
            return []
        able = [s for s in sequences if self.adjusted or self._is_plain(s)]
        # The token after the last guess is sampled too: it must not be beyond the limit.
        most = [max(0, min(self._most, room, s.limit - s.total - 1)) for s in able]
        offers = [self._allowed(each) for each in self._proposer.offers(able, most)]
        candidates = [
            DraftCandidate(each.most, self._acceptance.chances(each.sequence.trials, each.matched)) for each in offers
        ]
        counts = lengths(candidates, rows, room, partial(self._times.seconds, rows))
        for offer, count in zip(offers, counts, strict=True):
            if offer.most and not count:
                self._acceptance.rest(offer.sequence.trials, offer.matched)
        if any(counts):
            self._resting = 0
        return [offer.shortened(count) for offer, count in zip(offers, counts, strict=True) if count]

    def drafts(self, offers: List[Offer], table: RowTable) -> list[Draft]:
        """The guesses that were wanted, whose blocks are reserved: at least one token each."""
        self._longest = max((offer.most for offer in offers), default=0)
        found = []
        guesses = self._proposer.guess(offers, table) if offers else []
        self.is_behind = bool(offers) and self._proposer.is_behind
        for offer, tokens in zip(offers, guesses, strict=True):
            sequence, guide = offer.sequence, offer.sequence.guide
            if guide is not None:
                tokens = tokens[: allowed(guide, tokens)]  # noqa: PLW2901
            if len(tokens):
                ahead = None if guide is None else GuideAhead(guide, tokens)
                found.append(Draft(sequence, tokens, offer.matched, ahead))
        return found

    @staticmethod
    def _allowed(offer: Offer) -> Offer:
        """An offer without the tokens that guidance rules out, as far as they are known."""
        guide = offer.sequence.guide
        if guide is None or offer.tokens is None:
            return offer
        return offer.shortened(allowed(guide, offer.tokens))

    @staticmethod
    def _is_plain(sequence: Sequence) -> bool:
        return not sequence.penalised and sequence.total >= sequence.min_total

    def verified(self, draft: Draft, accepted: int) -> None:
        """Note that so many tokens of a draft were accepted."""
        self._acceptance.observe(draft.sequence.trials, draft.matched, len(draft.tokens), accepted)
        self.totals.add(len(draft.tokens), accepted)

    def stepped(self, rows: int, drafted: int, accepted: int, seconds: float, steps: int = 1) -> None:
        """Note the time of a step of `rows` sequences without prompts, or the mean of several steps without drafts."""
        if seconds <= 0:  # too short for the clock
            return
        if drafted:
            self.totals.seconds_saved += self._times.alone(rows) * (rows + accepted) / rows - seconds
        if not self.is_behind:
            self._times.add(rows, drafted, self._longest if drafted else 0, seconds, steps)

    def left(self, sequence: Sequence) -> None:
        """A sequence gives its row and its blocks back."""
        self._proposer.left(sequence)

    def finished(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        self._proposer.finished(sequence)

    def reset(self) -> None:
        """Forget what was kept of sequences that have ended."""
        self._proposer.reset()

"""What every proposer does, and the one that needs no model."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo_inference.core.model_input import RowTable
from octavo_inference.core.sequence import Sequence
from octavo_inference.core.speculation.lookup import NO_GUESS, Guess, continuation, continuation_in
from octavo_inference.core.speculation.recent_outputs import RecentOutputs

Int32 = NDArray[np.int32]


class Offer(NamedTuple):
    """Tokens that a proposer can guess for a sequence, at most `most`. Offers with like `matched` are as often right.

    `tokens`: the guess, if it costs nothing to know it before it is chosen.
    """

    sequence: Sequence
    most: int
    matched: int = 0
    tokens: Int32 | None = None

    def shortened(self, most: int) -> Offer:
        """The same with at most so many tokens."""
        most = min(most, self.most)
        return Offer(self.sequence, most, self.matched, None if self.tokens is None else self.tokens[:most])


class Proposer(Protocol):
    """Guesses the tokens that follow sequences."""

    def offers(self, sequences: List[Sequence], most: List[int]) -> list[Offer]:
        """What it can guess for each of them, at most so many tokens."""
        ...

    def guess(self, offers: List[Offer], table: RowTable) -> list[Int32]:
        """The tokens of these offers, at most `most` of each. Their places in the block tables are reserved."""
        ...

    @property
    def is_behind(self) -> bool:
        """True if the last `guess` did work that guesses do not need in general: its time tells nothing."""
        ...

    def left(self, sequence: Sequence) -> None:
        """A sequence gives its row and its blocks back: it is preempted or has ended."""
        ...

    def finished(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        ...

    def reset(self) -> None:
        """Forget what was kept of sequences that have ended."""
        ...


class NgramProposer:
    """Prompt lookup in a sequence itself and, with `recent`, in the last answers with its salt.

    `shortest`: tokens that have to match at least.
    """

    is_behind = False

    def __init__(self, shortest: int, recent: RecentOutputs | None = None) -> None:
        self._shortest = shortest
        self._recent = recent

    def offers(self, sequences: List[Sequence], most: List[int]) -> list[Offer]:
        """The continuations of the longest matches."""
        found = map(self._continuation, sequences, most)
        return [
            Offer(sequence, len(guess.tokens), guess.matched, guess.tokens)
            for sequence, guess in zip(sequences, found, strict=True)
        ]

    def _continuation(self, sequence: Sequence, most: int) -> Guess:
        """That of the longer match; of equals, that in the sequence itself."""
        tokens = sequence.tokens[: sequence.num_known_tokens]
        found = continuation(tokens, most)
        if self._recent is not None:
            other = continuation_in(self._recent.of(sequence.request.salt), tokens, most)
            found = other if other.matched > found.matched else found
        return found if found.matched >= self._shortest else NO_GUESS

    def guess(self, offers: List[Offer], table: RowTable) -> list[Int32]:  # noqa: ARG002 -- they are known
        """The tokens of these offers."""
        return [offer.tokens for offer in offers if offer.tokens is not None]

    def left(self, sequence: Sequence) -> None:
        """Nothing is kept of its blocks."""

    def finished(self, sequence: Sequence) -> None:
        """Keep the answer for later requests."""
        if self._recent is not None:
            answer = sequence.tokens[sequence.prompt_len : sequence.num_known_tokens]
            if len(answer):
                self._recent.add(sequence.request.salt, answer)

    def reset(self) -> None:
        """Forget all answers."""
        if self._recent is not None:
            self._recent.clear()

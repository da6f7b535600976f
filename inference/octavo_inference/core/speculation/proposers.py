"""Proposers that need no model."""

from __future__ import annotations

from octavo_inference.core.sequence import Sequence
from octavo_inference.core.speculation.lookup import Guess, continuation, continuation_in
from octavo_inference.core.speculation.recent_outputs import RecentOutputs


class NgramProposer:
    """Prompt lookup in a sequence itself and, with `recent`, in the last answers with its salt.

    `shortest`: tokens that have to match at least.
    """

    def __init__(self, shortest: int, recent: RecentOutputs | None = None) -> None:
        self._shortest = shortest
        self._recent = recent

    def guess(self, sequence: Sequence, most: int) -> Guess:
        """The continuation of the longer match; of equals, that in the sequence itself."""
        tokens = sequence.tokens[: sequence.num_known_tokens]
        found = continuation(tokens, most)
        if self._recent is not None:
            other = continuation_in(self._recent.of(sequence.request.salt), tokens, most)
            found = other if other.matched > found.matched else found
        return found if found.matched >= self._shortest else Guess(found.tokens[:0], 0)

    def finished(self, sequence: Sequence) -> None:
        """Keep the answer for later requests."""
        if self._recent is not None:
            answer = sequence.tokens[sequence.prompt_len : sequence.num_known_tokens]
            self._recent.add(sequence.request.salt, answer)

    def reset(self) -> None:
        """Forget all answers."""
        if self._recent is not None:
            self._recent.clear()

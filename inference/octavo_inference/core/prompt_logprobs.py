"""Collects the log-probabilities of a prompt's tokens while its chunks are computed."""

from __future__ import annotations

import numpy as np

from octavo_inference.core.model_input import Float32, Int32, ScoredTokens
from octavo_inference.core.request import TokenLogprobs


class PromptLogprobs:
    """Log-probabilities of tokens 1 to `prompt_len` - 1 of a prompt, each with `logprobs` alternatives.

    `next` is the first token that is not known yet. Its logits are those of the token before it.
    """

    __slots__ = ("_logprob", "_rank", "_top_ids", "_top_logprobs", "logprobs", "next", "prompt_len", "reported")

    def __init__(self, prompt_len: int, logprobs: int) -> None:
        self.prompt_len = prompt_len
        self.logprobs = logprobs
        self.next = 1
        self.reported = False
        self._logprob: Float32 = np.zeros(prompt_len, np.float32)
        self._rank: Int32 = np.zeros(prompt_len, np.int32)
        self._top_ids: Int32 = np.zeros((prompt_len, logprobs), np.int32)
        self._top_logprobs: Float32 = np.zeros((prompt_len, logprobs), np.float32)

    @property
    def reusable(self) -> int:
        """Number of tokens of the prompt that need not be computed again: their successors are known."""
        return self.next - 1

    @property
    def complete(self) -> bool:
        """True if every token is known."""
        return self.next >= self.prompt_len

    def span(self, first: int, end: int) -> tuple[int, int]:
        """Of query tokens at positions [first, end): the first to score, and how many."""
        start = max(first, self.reusable)
        return start, max(0, min(end, self.prompt_len - 1) - start)

    def store(self, position: int, scored: ScoredTokens) -> None:
        """Store what the query tokens from `position` on gave."""
        first, end = position + 1, position + 1 + len(scored.logprob)
        self._logprob[first:end], self._rank[first:end] = scored.logprob, scored.rank
        self._top_ids[first:end], self._top_logprobs[first:end] = scored.top_ids, scored.top_logprobs
        if first <= self.next:
            self.next = max(self.next, end)

    def report(self) -> list[TokenLogprobs | None]:
        """One entry per token of the prompt; None for the first."""
        self.reported = True
        columns = (self._logprob, self._rank, self._top_ids, self._top_logprobs)
        entries = zip(*(column[1:].tolist() for column in columns), strict=True)
        return [None, *(TokenLogprobs(*entry) for entry in entries)]

"""Matchers: which tokens a grammar allows next. Built on llguidance, with its bounds.

A matcher is made in the engine process, and by the worker process that tries each grammar first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray
from tokenizers import Tokenizer

from octavo_inference.common.address import row_address
from octavo_inference.common.errors import RequestError

_EXCERPT = re.compile(r"\n<state>|\n +\d+ \| ")
_SHOWN = 1000

# At most about 20 ms to compile the tokens of a grammar's texts and patterns, 15 ms for a mask, and 100 MB for states.
LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)


class Vocabulary:
    """A model's tokens in the form that matchers need: about 40 MB and 0.3 s, with the GIL, for 50,000 tokens.

    `size` is the number of logits, `ends` are the ids that end an answer.
    """

    def __init__(self, tokenizer: Tokenizer, size: int, ends: Sequence[int]) -> None:
        text = tokenizer.to_str()
        if tokenizer.padding is not None or tokenizer.truncation is not None:
            plain = Tokenizer.from_str(text)
            plain.no_padding()
            plain.no_truncation()
            text = plain.to_str()
        # Two calls, so that another thread gets the GIL in between. `with_slices` makes masks fast.
        tokens = LLTokenizer(text, n_vocab=size, eos_token=list(ends), slices=[])
        self._tokens = tokens.with_slices(LLTokenizer.general_slices())

    def compile(self, grammar: str) -> Matcher:
        """A matcher at the start of a grammar (`core.request.Guidance`). Raises `RequestError`; without the GIL."""
        matcher = LLMatcher(self._tokens, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise _error(matcher)
        return Matcher(matcher)


class Matcher:
    """The state of a grammar after the tokens consumed so far."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def copy(self) -> Self:
        """A matcher in the same state, which shares what is compiled. Takes microseconds."""
        return type(self)(self._matcher.deep_copy())

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write the allowed ids to a row: id n is bit n % 32 of word n // 32. Without the GIL.

        Only the ids that end an answer are allowed once the grammar is complete. Raises `RequestError` if the state is
        too complex.
        """
        self._matcher.unsafe_compute_mask_ptr(row_address(mask), mask.nbytes)
        self._check()

    def consume(self, token: int) -> None:
        """Advance by a token. Raises `RequestError` for one that is not allowed."""
        if not self._matcher.consume_token(token):
            self._check()

    def forced(self) -> list[int]:
        """The tokens that follow in any case: each is the only one that `fill` would allow at its place."""
        return self._matcher.compute_ff_tokens()

    @property
    def is_complete(self) -> bool:
        """True if nothing may follow but the end."""
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise _error(self._matcher)


def _error(matcher: LLMatcher) -> RequestError:
    """The matcher's error without the excerpt of the grammar. Of a long one, the middle is left out."""
    message = _EXCERPT.split(matcher.get_error(), maxsplit=1)[0].strip()
    return RequestError(message if len(message) <= _SHOWN else f"{message[:400]}…\n{message[-400:]}", "grammar")

"""Which tokens may follow in the answer of a request with guidance: its state, and the masks of its rows.

An answer with guidance passes through up to three parts:

    thinking    until the ids `after` are out. Any token is allowed; but with a grammar no id that ends the answer,
                since the text that the grammar describes is still missing. Once `thinking_budget` tokens are out, the
                ids of `after` follow by force.
    grammar     the matcher decides. The answer ends as soon as nothing may follow.
    free        behind the thinking of a request without a grammar.

The state depends on the tokens of the answer alone, so a preempted sequence keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

import numpy as np

from octavo_inference.core.logit_rules import bitmask
from octavo_inference.core.model_input import Int32
from octavo_inference.core.request import Guidance

_ALL = np.int32(-1)


class GrammarState(Protocol):
    """The state of a grammar after some tokens (`grammar.matcher`)."""

    def copy(self) -> Self:
        """A matcher in the same state, which shares what is compiled."""
        ...

    def fill(self, mask: Int32) -> None:
        """Write the allowed ids to a row of masks. Raises `RequestError` if the state is too complex."""
        ...

    def consume(self, token: int) -> None:
        """Advance by a token. Raises `RequestError` for one that is not allowed."""
        ...

    def forced(self) -> list[int]:
        """The tokens that follow in any case: each is the only one that `fill` would allow at its place."""
        ...

    @property
    def is_complete(self) -> bool:
        """True if nothing may follow but the end."""
        ...


Compile = Callable[[str], GrammarState]
"""Makes a matcher at the start of a grammar. Raises `RequestError`."""


class Guide:
    """Guidance of one answer. `matcher` is at the start of the grammar, None without one.

    `ends` is the mask of the ids that end an answer. The methods that use the matcher raise `RequestError`.
    """

    __slots__ = ("_after", "_budget", "_ends", "_matcher", "_tail", "_thought", "budget_reached", "is_complete")

    def __init__(self, guidance: Guidance, matcher: GrammarState | None, ends: Int32) -> None:
        self._matcher = matcher
        self._ends = ends
        self._budget = guidance.thinking_budget
        # The ids that end the thinking; empty once they are out. `_tail` are those of them at the answer's end.
        self._after = guidance.after
        self._thought = 0
        self._tail: list[int] = []
        self.budget_reached = False
        self.is_complete = False

    def copy(self) -> Guide:
        """The same state, for another answer of the request."""
        twin = object.__new__(Guide)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin._tail = self._tail[:]
        twin._matcher = None if self._matcher is None else self._matcher.copy()
        return twin

    def fill(self, mask: Int32) -> None:
        """Write the ids that may follow to a row of masks."""
        if self._must_close:
            mask[:] = bitmask((self._after[len(self._tail)],), 32 * len(mask))
        elif self._matcher is None:
            mask[:] = _ALL
        elif self._after:
            np.invert(self._ends, out=mask)
        else:
            self._matcher.fill(mask)

    def forced(self) -> list[int]:
        """Tokens that follow in any case. More of them may follow behind them."""
        if self._must_close:
            return list(self._after[len(self._tail) :])
        return [] if self._matcher is None or self._after else self._matcher.forced()

    def advance(self, token: int) -> None:
        """Append a token to the answer."""
        if self._after:
            self._think(token)
        elif self._matcher is not None:
            self._matcher.consume(token)
        if self._matcher is not None and not self._after:
            self.is_complete = self._matcher.is_complete

    @property
    def _must_close(self) -> bool:
        return bool(self._after) and self._budget is not None and self._thought >= self._budget

    def _think(self, token: int) -> None:
        if self._must_close:
            self.budget_reached = True
        self._thought += 1
        tail = [*self._tail, token]
        # The longest end of the tail that begins `after`: it may overlap one that the token has just broken.
        keep = next(n for n in range(len(tail), -1, -1) if self._begins(tail, n))
        self._tail = tail[len(tail) - keep :]
        if keep == len(self._after):
            self._after, self._tail = (), []

    def _begins(self, tail: list[int], count: int) -> bool:
        return tuple(tail[len(tail) - count :]) == self._after[:count]

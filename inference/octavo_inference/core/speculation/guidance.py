"""Guesses under guidance: which of them it allows, and the masks behind each of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo_inference.common.errors import RequestError
from octavo_inference.core.guidance import Guide

Int32 = NDArray[np.int32]

_ANY = np.int32(-1)


def allowed(guide: Guide, tokens: Int32) -> int:
    """How many of these tokens may follow one after the other. The last of them may complete the answer."""
    ahead = guide.copy()
    for count, token in enumerate(tokens.tolist()):
        if ahead.is_complete:
            return count
        try:
            ahead.advance(token)
        except RequestError:
            return count
    return len(tokens)


class GuideAhead:
    """Guidance behind guessed tokens, one after the other: at place 1 behind the first of them, and so on.

    `known` places have a mask. The masks behind them could not be filled, which may be the guess's fault: no sample is
    taken from there.
    """

    def __init__(self, guide: Guide, tokens: Int32) -> None:
        self._guide = guide.copy()
        self._tokens = tokens.tolist()
        self.known = len(self._tokens)

    @property
    def places(self) -> list[GuideAfter]:
        """The states at all places. Their masks are filled in this order."""
        return [GuideAfter(self, place) for place in range(1, 1 + len(self._tokens))]

    def fill(self, place: int, mask: Int32) -> None:
        """Write the ids that may follow at a place."""
        if place <= self.known:
            try:
                self._guide.advance(self._tokens[place - 1])
                self._guide.fill(mask)
            except RequestError:
                self.give_up(place)
            else:
                return
        mask[:] = _ANY

    def give_up(self, place: int) -> None:
        """Leave out the masks from a place on."""
        self.known = min(self.known, place - 1)


class GuideAfter:
    """The state at one place, reached when its mask is filled."""

    def __init__(self, ahead: GuideAhead, place: int) -> None:
        self.ahead = ahead
        self._place = place

    def fill(self, mask: Int32) -> None:
        """Write the ids that may follow; any, where that is not known."""
        self.ahead.fill(self._place, mask)

    def give_up(self) -> None:
        """Leave this mask out, and those behind it."""
        self.ahead.give_up(self._place)

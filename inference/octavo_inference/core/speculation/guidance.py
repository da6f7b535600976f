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
    """The state of guidance behind guessed tokens, one after the other."""

    def __init__(self, guide: Guide) -> None:
        self._guide = guide.copy()

    def after(self, token: int) -> GuideAfter:
        """What may follow once one more token is there. Its masks are filled in the order of these calls."""
        return GuideAfter(self._guide, token)


class GuideAfter:
    """A state that is reached when its mask is filled."""

    def __init__(self, guide: Guide, token: int) -> None:
        self._guide = guide
        self._token = token

    def fill(self, mask: Int32) -> None:
        """Write the ids that may follow. Behind a token that cannot be there, any: no sample is taken from there."""
        try:
            self._guide.advance(self._token)
        except RequestError:
            mask[:] = _ANY
            return
        self._guide.fill(mask)

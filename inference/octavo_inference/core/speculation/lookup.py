"""Prompt lookup: what followed the last time that these tokens came. Pure.

Answers that edit, quote or continue a text of the prompt repeat long pieces of it (Saxena 2023). The longest match is
found, as by a suffix automaton (Hu et al. 2024), but from the tokens alone: numpy compares the places of the last token
in some microseconds, and nothing has to be kept for a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]

_LONGEST = 32
"""Tokens of a match that are compared: a longer one is not worth more."""
_BACK = np.arange(_LONGEST)
_PLACES = 64
"""Places that are compared, the last ones: a text may have one token everywhere."""
_NOTHING = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may follow, and how many tokens before them matched."""

    tokens: Int32
    matched: int


NO_GUESS = Guess(_NOTHING, 0)


def continuation(tokens: Int32, most: int) -> Guess:
    """What followed the last occurrence of the longest suffix of `tokens` [n] that occurs before.

    At most `most` tokens. If the text ends within them, the guess repeats what is between both occurrences.
    """
    if len(tokens) < 2 or most < 1:
        return NO_GUESS
    at, matched = _longest(tokens[:-1], tokens)
    if not matched:
        return NO_GUESS
    follows = tokens[at + 1 : at + 1 + most]
    return Guess(follows if len(follows) == most else np.resize(follows, most), matched)


def continuation_in(text: Int32, tokens: Int32, most: int) -> Guess:
    """What followed the last occurrence of the longest suffix of `tokens` in another text, which ids below 0 divide."""
    if not len(tokens) or most < 1:
        return NO_GUESS
    at, matched = _longest(text, tokens)
    follows = text[at + 1 : at + 1 + most] if matched else _NOTHING
    ends = np.flatnonzero(follows < 0)
    follows = follows[: ends[0]] if len(ends) else follows
    return Guess(follows, matched) if len(follows) else NO_GUESS


def _longest(text: Int32, tokens: Int32) -> tuple[int, int]:
    """Where the longest suffix of `tokens` last ends in `text`, and its length; 0 if its last token does not occur."""
    places = np.flatnonzero(text == tokens[-1])[-_PLACES:]
    if not len(places):
        return -1, 0
    back = _BACK[: len(tokens)]
    at = places[:, None] - back
    # Beyond the start of the text nothing matches. The last column ends every match.
    differs = np.ones((len(places), len(back) + 1), np.bool_)
    differs[:, :-1] = (text[np.maximum(at, 0)] != tokens[len(tokens) - 1 - back]) | (at < 0)
    lengths = differs.argmax(axis=1)
    last = len(places) - 1 - int(lengths[::-1].argmax())
    return int(places[last]), int(lengths[last])

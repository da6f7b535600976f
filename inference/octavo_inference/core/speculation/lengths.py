"""How many guessed tokens of each sequence a step verifies: as many as make it faster. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log, log1p

from octavo_inference.core.speculation.acceptance import Chances

_MARGIN = 1.05
"""Least gain: below it, an error of the expected times would cost more."""


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """`most` guessed tokens of a sequence, and the chances that they are accepted."""

    most: int
    chances: Chances


def lengths(
    candidates: Sequence[DraftCandidate], rows: int, room: int, seconds: Callable[[int, int], float]
) -> list[int]:
    """How many tokens of each candidate to verify: those that make the `rows` sequences of a step fastest.

    That is judged by the geometric mean of their speeds. More tokens in all would be a poor measure: a step with many
    guesses of one sequence keeps all others waiting. There is room for `room` tokens. `seconds` is the time of a step
    with so many guessed tokens, and so many of one sequence at most.
    """
    gains = sorted(_gains(candidates), key=lambda each: -each[0])[:room]
    alone = seconds(0, 0)
    best, kept, gained, longest = rows * log(_MARGIN), 0, 0.0, 0
    for count, (gain, place, _) in enumerate(gains, 1):
        gained += gain
        longest = max(longest, 1 + place)
        faster = gained - rows * log(seconds(count, longest) / alone)
        if faster > best:
            best, kept = faster, count
    found = [0] * len(candidates)
    for _, _, index in gains[:kept]:
        found[index] += 1
    return found


def _gains(candidates: Sequence[DraftCandidate]) -> Iterator[tuple[float, int, int]]:
    """Of each guessed token: by how much it raises the logarithm of its sequence's speed, its place, the candidate.

    A candidate's gains fall from place to place, so the largest ones of all are the first of each.
    """
    for index, (most, (chance, further)) in enumerate((each.most, each.chances) for each in candidates):
        tokens = 1.0
        for place in range(most):
            yield log1p(chance / tokens), place, index
            tokens += chance
            chance *= further  # noqa: PLW2901

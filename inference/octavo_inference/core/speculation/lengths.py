"""How many guessed tokens of each sequence a step verifies: as many as make it faster. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MARGIN = 1.02
"""Least gain: below it, the host's work for guesses may cost more."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """`most` guessed tokens of a sequence, each accepted with probability `rate` if those before it are."""

    most: int
    rate: float


def lengths(candidates: Sequence[Candidate], rows: int, room: int, seconds: Callable[[int], float]) -> list[int]:
    """How many tokens of each candidate to verify: those with which a step has the most tokens per second.

    The step decodes `rows` sequences and has room for `room` tokens more. `seconds` is the time of such a step with so
    many guessed tokens.
    """
    places = [
        (each.rate ** (1 + place), place, index) for index, each in enumerate(candidates) for place in range(each.most)
    ]
    chances = sorted(places, key=lambda each: (-each[0], each[1]))[:room]
    best, kept, gained = rows / seconds(0) * _MARGIN, 0, 0.0
    for count, (chance, _, _) in enumerate(chances, 1):
        gained += chance
        speed = (rows + gained) / seconds(count)
        if speed > best:
            best, kept = speed, count
    found = [0] * len(candidates)
    for _, _, index in chances[:kept]:
        found[index] += 1
    return found

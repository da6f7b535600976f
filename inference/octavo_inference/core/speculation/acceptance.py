"""How likely guesses are accepted: of a sequence, and of all sequences by the length of the match."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

_FORGET = 0.9
"""Weight of what came before, at each verification of a sequence: it counts about the last ten."""
_FORGET_SHARED = 0.99
_REST, _REST_SHARED = 0.98, 0.998
"""The same at each guess that is not tried."""
_WEIGHT = 2.0
"""Verifications that the shared rate counts as, next to those of the sequence."""
_CLASSES = (1, 2, 3, 5, 9)
"""Shortest matches of the classes with a shared rate."""


class Chances(NamedTuple):
    """The probability that the first guessed token is accepted, and of each further one if those before it are."""

    first: float
    further: float


_FIRST = Chances(0.6, 0.7)
"""Before anything is known: high enough to try."""


@dataclass(slots=True)
class Trials:
    """Guessed tokens that were accepted, and those that ended a verification, both weighted by age: first and further.

    They are counted apart. Once a text repeats, it goes on repeating: further ones are right more often.
    """

    accepted: list[float] = field(default_factory=lambda: [0.0, 0.0])
    refused: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def add(self, drafted: int, accepted: int, keep: float) -> None:
        """Add a verification."""
        self.fade(keep)
        self.accepted[0] += accepted > 0
        self.refused[0] += accepted == 0
        self.accepted[1] += max(0, accepted - 1)
        self.refused[1] += 0 < accepted < drafted

    def fade(self, keep: float) -> None:
        """Let the past count less."""
        for counts in (self.accepted, self.refused):
            counts[0] *= keep
            counts[1] *= keep

    def chances(self, prior: Chances, weight: float) -> Chances:
        """The estimated probabilities, if `prior` counts as `weight` of them."""
        found = [
            (yes + each * weight) / (yes + no + weight)
            for yes, no, each in zip(self.accepted, self.refused, prior, strict=True)
        ]
        return Chances(*found)


@dataclass(slots=True)
class Acceptance:
    """The rates that all sequences share, by the class of their match."""

    _classes: list[Trials] = field(default_factory=lambda: [Trials() for _ in _CLASSES])

    def chances(self, own: Trials, matched: int) -> Chances:
        """The probabilities for a guess of a sequence."""
        return own.chances(self._classes[_class(matched)].chances(_FIRST, _WEIGHT), _WEIGHT)

    def rest(self, own: Trials, matched: int) -> None:
        """Note that a guess was not tried: what made it look bad is forgotten slowly."""
        own.fade(_REST)
        self._classes[_class(matched)].fade(_REST_SHARED)

    def observe(self, own: Trials, matched: int, drafted: int, accepted: int) -> None:
        """Note a verification."""
        own.add(drafted, accepted, _FORGET)
        self._classes[_class(matched)].add(drafted, accepted, _FORGET_SHARED)


def _class(matched: int) -> int:
    return max(index for index, shortest in enumerate(_CLASSES) if shortest <= max(1, matched))

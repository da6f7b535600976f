"""How likely guesses are accepted: of a sequence, and of all sequences by the length of the match."""

from __future__ import annotations

from dataclasses import dataclass, field

_FORGET = 0.9
"""Weight of what came before, at each verification of a sequence: it counts about the last ten."""
_FORGET_SHARED = 0.99
_REST, _REST_SHARED = 0.98, 0.998
"""The same at each guess that is not tried."""
_WEIGHT = 2.0
"""Verifications that the shared rate counts as, next to those of the sequence."""
_FIRST = 0.6
"""The rate before anything is known: high enough to try."""
_CLASSES = (1, 2, 3, 5, 9)
"""Shortest matches of the classes with a shared rate."""


@dataclass(slots=True)
class Trials:
    """Guessed tokens that were accepted, and those that ended a verification, both weighted by age."""

    accepted: float = 0.0
    refused: float = 0.0

    def add(self, drafted: int, accepted: int, keep: float) -> None:
        """Add a verification."""
        self.accepted = self.accepted * keep + accepted
        self.refused = self.refused * keep + (accepted < drafted)

    def fade(self, keep: float) -> None:
        """Let the past count less, after a step in which nothing was tried."""
        self.accepted *= keep
        self.refused *= keep

    def rate(self, prior: float, weight: float) -> float:
        """The estimated probability that one more token is accepted."""
        return (self.accepted + prior * weight) / (self.accepted + self.refused + weight)


@dataclass(slots=True)
class Acceptance:
    """The rates that all sequences share, by the class of their match."""

    _classes: list[Trials] = field(default_factory=lambda: [Trials() for _ in _CLASSES])

    def rate(self, own: Trials, matched: int) -> float:
        """The probability that one guessed token of a sequence is accepted."""
        return own.rate(self._classes[_class(matched)].rate(_FIRST, _WEIGHT), _WEIGHT)

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

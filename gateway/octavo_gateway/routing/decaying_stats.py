"""Decaying statistics: a ratio of two sums (bytes per token, tokens per answer), and a variation. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# Fewer values are no evidence of their variation.
LEAST = 8


@dataclass(slots=True)
class DecayingRatio:
    """`top / bottom` over about the last `memory` of `bottom`; the initial values have little weight."""

    top: float
    bottom: float
    memory: float

    def add(self, top: float, bottom: float) -> None:
        """Add a sample."""
        self.top += top
        self.bottom += bottom
        if self.bottom > self.memory:
            kept = 0.5 if self.bottom < 2 * self.memory else self.memory / self.bottom
            self.top *= kept
            self.bottom *= kept

    @property
    def value(self) -> float:
        """The current ratio."""
        return self.top / self.bottom


@dataclass(slots=True)
class Variation:
    """The square of the coefficient of variation of about the last `memory` values; 0 for fewer than `LEAST`."""

    memory: float
    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Add a value of at least 0."""
        self.count += 1
        self.total += value
        self.squares += value * value
        if self.count > self.memory:
            self.count /= 2
            self.total /= 2
            self.squares /= 2

    @property
    def value(self) -> float:
        """The current squared coefficient of variation."""
        if self.count < LEAST or not self.total:
            return 0.0
        return max(0.0, self.count * self.squares / (self.total * self.total) - 1)

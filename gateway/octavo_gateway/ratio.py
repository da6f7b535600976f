"""A ratio of two sums that forgets: bytes per token, tokens per answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Ratio:
    """`top / bottom` over about the last `memory` of `bottom`; what it starts with is worth little."""

    top: float
    bottom: float
    memory: float

    def add(self, top: float, bottom: float) -> None:
        """Take a sample."""
        self.top += top
        self.bottom += bottom
        if self.bottom > self.memory:
            self.top /= 2
            self.bottom /= 2

    @property
    def value(self) -> float:
        """The ratio now."""
        return self.top / self.bottom

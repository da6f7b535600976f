"""How long answers are: their mean and how much they vary, from what replicas report and from whole answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_gateway.routing.decaying_stats import DecayingRatio, Variation

# A request between two reports counts for at most so many times the usual output.
MOST_LONGER = 8.0
# No pod ends more requests between two reports.
MOST_ENDED = 10_000
# Taken to be no longer than this share of the largest pool in the mean: at the start, before any answer has ended, all
# that was generated would be one answer.
MOST_OF_POOL = 0.25


@dataclass(slots=True, eq=False)
class OutputLengthEstimator:
    """`mean`: tokens of an answer. `variation`: the square of their coefficient of variation.

    `largest_pool`: KV tokens of the largest pool that was reported.
    """

    mean: DecayingRatio = field(default_factory=lambda: DecayingRatio(128.0, 1, 10_000))
    variation: Variation = field(default_factory=lambda: Variation(1000))
    largest_pool: int = 0

    @property
    def usual(self) -> float:
        """Tokens of an answer in the mean."""
        value = self.mean.value
        return min(value, MOST_OF_POOL * self.largest_pool) if self.largest_pool else value

    def expected(self, most: float | None) -> float:
        """Tokens that a request will likely generate, which may generate `most`; None when that is not bounded."""
        return self.usual if most is None else min(self.usual, most)

    def generated(self, tokens: int, ended: int, there: int, pool: int) -> bool:
        """Count what a pod generated between two reports, and how many requests ended; False when it cannot be.

        `there`: how many requests may have been there; `pool`: KV tokens that it holds.
        """
        if tokens < 0 or not 0 <= ended <= MOST_ENDED or tokens > pool * there:
            return False
        # Longer and shorter answers are believed step by step: one that lies must not hold everything, or nothing.
        least, most = self.usual * ended / MOST_LONGER, MOST_LONGER * self.usual * there
        self.mean.add(min(max(tokens, least), most), ended)
        return True

    def finished(self, tokens: int) -> None:
        """Count a whole answer. A single one, whatever it says, makes no difference."""
        if tokens > 0:
            self.variation.add(min(tokens, MOST_LONGER * self.usual))

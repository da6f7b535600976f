"""Estimates answer lengths: their mean and variation, from load reports and from whole answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_gateway.routing.decaying_stats import DecayingRatio, Variation

# A request counts for at most so many times the usual output between two reports.
MOST_LONGER = 8.0
# Upper bound of the requests that a pod ends between two reports.
MOST_ENDED = 10_000
# Upper bound of the mean, as a share of the largest pool. At the start, before any answer has ended, all generated
# tokens would count as one answer.
MOST_OF_POOL = 0.25


@dataclass(slots=True, eq=False)
class OutputLengthEstimator:
    """Estimates the answer lengths of one model. `largest_pool`: KV tokens of the largest reported pool.

    `mean`: tokens per answer. `variation`: the square of their coefficient of variation.
    """

    mean: DecayingRatio = field(default_factory=lambda: DecayingRatio(128.0, 1, 10_000))
    variation: Variation = field(default_factory=lambda: Variation(1000))
    largest_pool: int = 0

    @property
    def usual(self) -> float:
        """Mean tokens of an answer."""
        value = self.mean.value
        return min(value, MOST_OF_POOL * self.largest_pool) if self.largest_pool else value

    def expected(self, most: float | None) -> float:
        """Tokens that a request will likely generate. `most`: the request's own bound, None without one."""
        return self.usual if most is None else min(self.usual, most)

    def generated(self, tokens: int, ended: int, there: int, pool: int) -> bool:
        """Count tokens generated and requests ended between two reports of a pod; False if the numbers are impossible.

        `there`: requests that may have been at the pod. `pool`: KV tokens of its pool.
        """
        if tokens < 0 or not 0 <= ended <= MOST_ENDED or tokens > pool * there:
            return False
        # Longer and shorter answers take effect step by step: one pod with wrong reports must not make the gateway
        # hold all requests, or none.
        least, most = self.usual * ended / MOST_LONGER, MOST_LONGER * self.usual * there
        self.mean.add(min(max(tokens, least), most), ended)
        return True

    def finished(self, tokens: int) -> None:
        """Count a whole answer. A bound limits the effect of a single wrong count."""
        if tokens > 0:
            self.variation.add(min(tokens, MOST_LONGER * self.usual))

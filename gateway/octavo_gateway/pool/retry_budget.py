"""How many requests may be tried a second time. Pure."""

from __future__ import annotations


class RetryBudget:
    """Of one model: a share of its requests, with a small reserve, so that retries cannot multiply an outage.

    Models have budgets of their own: one whose replicas all fail does not use up what others may need.
    """

    def __init__(self, share: float = 0.2, reserve: float = 10.0) -> None:
        self._share = share
        self._reserve = reserve
        self._left = reserve

    def earn(self) -> None:
        """Count a request."""
        self._left = min(self._reserve, self._left + self._share)

    def spend(self) -> bool:
        """Take a retry; False when there is none left."""
        if self._left < 1:
            return False
        self._left -= 1
        return True

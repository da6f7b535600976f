"""Retry budget: bounds the number of requests that are tried a second time. Pure."""

from __future__ import annotations


class RetryBudget:
    """Retries of one model: a share of its requests, with a small reserve, so that retries cannot amplify an outage.

    Each model has its own budget: a model whose replicas all fail does not use up the retries of others.
    """

    def __init__(self, share: float = 0.2, reserve: float = 10.0) -> None:
        self._share = share
        self._reserve = reserve
        self._left = reserve

    def earn(self) -> None:
        """Count a request."""
        self._left = min(self._reserve, self._left + self._share)

    def spend(self) -> bool:
        """Take a retry; False if none is left."""
        if self._left < 1:
            return False
        self._left -= 1
        return True

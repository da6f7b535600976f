"""Decides when a request counts as an arrival, for which replicas are needed. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Seconds after which a request counts as computed: a replica refuses a request much sooner.
COMPUTED_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Arrival:
    """One request. `count` is called at most once, and a count is never taken back."""

    count: Callable[[], None]
    open: bool = True

    def counts(self) -> None:
        """The request waits for a replica, is computed by one, or got none."""
        if self.open:
            self.open = False
            self.count()

    def refused(self) -> None:
        """A replica refused the request without computing: more replicas would refuse it too."""
        self.open = False

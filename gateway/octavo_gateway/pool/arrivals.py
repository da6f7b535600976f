"""When a request counts as one that replicas are needed for. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# A replica refuses what it will not compute much sooner.
COMPUTED_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Arrival:
    """One request, for which `count` is called once at most: what is counted is never taken back."""

    count: Callable[[], None]
    open: bool = True

    def counts(self) -> None:
        """It waits for a replica, is computed by one, or got none."""
        if self.open:
            self.open = False
            self.count()

    def refused(self) -> None:
        """A replica refused it and computed nothing, as any number of them would."""
        self.open = False
